// Copies between the client and the device: the client's side is bytes of the call, or of the
// answer.
#include "forwarding/wire/copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "gpunode/worker/block_ranges.h"
#include "gpunode/worker/bulk_copies.h"
#include "gpunode/worker/owed.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using forward::CopyHead;
using forward::CopyShape;

// The stream that a copy is made in. A synchronous one of the legacy default stream goes by the
// driver's own synchronous function.
struct Place {
  CUstream stream = nullptr;
  bool legacy = false;
};

// `legacy`: the driver's own synchronous call. Elsewhere the copy is sent, and its stream waited
// for.
Place placeOf(Invocation& in, const CopyHead& head) {
  Place place;
  place.stream = in.streamOf(head.stream, head.per_thread != 0);
  place.legacy = head.in_order == 0 && place.stream == nullptr && in.worker().driverMayWait();
  return place;
}

// Fills in the worker's side of a box: arrays by their handles.
bool settleArrays(Invocation& in, CUDA_MEMCPY3D& box) {
  const auto side = [&](CUmemorytype type, CUarray& array, CUdeviceptr) {
    if (type != CU_MEMORYTYPE_ARRAY) {
      array = nullptr;
      return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE;
    }
    array = in.translated<CUarray>(bitsOf(array));
    return array != nullptr;
  };
  if (!side(box.srcMemoryType, box.srcArray, box.srcDevice) ||
      !side(box.dstMemoryType, box.dstArray, box.dstDevice))
    return false;
  box.reserved0 = nullptr;
  box.reserved1 = nullptr;
  return true;
}

// And `near` in place of the client's memory.
bool settleBox(Invocation& in, CUDA_MEMCPY3D& box, void* near) {
  if (!settleArrays(in, box)) return false;
  box.srcHost = box.srcMemoryType == CU_MEMORYTYPE_HOST ? near : nullptr;
  box.dstHost = box.dstMemoryType == CU_MEMORYTYPE_HOST ? near : nullptr;
  return true;
}

// The packed side of a box has just as many bytes as are there: the driver believes it. A 2D copy
// does not look at Depth, and moves one layer whatever it says.
bool fits(const CopyHead& head, bool source) {
  const CUDA_MEMCPY3D& box = head.box;
  const auto type = source ? box.srcMemoryType : box.dstMemoryType;
  const auto other = source ? box.dstMemoryType : box.srcMemoryType;
  const uint64_t pitch = source ? box.srcPitch : box.dstPitch;
  const uint64_t height = source ? box.srcHeight : box.dstHeight;
  const uint64_t x = source ? box.srcXInBytes : box.dstXInBytes;
  const uint64_t y = source ? box.srcY : box.dstY;
  const uint64_t z = source ? box.srcZ : box.dstZ;
  if (box.WidthInBytes == 0 || box.Height == 0 || box.Depth == 0) return false;
  if (head.shape == CopyShape::kBox2d && box.Depth != 1) return false;
  const uint64_t whole = api::extract::saturatingProduct(
      box.WidthInBytes, api::extract::saturatingProduct(box.Height, box.Depth));
  return type == CU_MEMORYTYPE_HOST && other != CU_MEMORYTYPE_HOST && pitch == box.WidthInBytes &&
         height == box.Height && x == 0 && y == 0 && z == 0 && whole == head.bytes;
}

CUDA_MEMCPY2D flat(const CUDA_MEMCPY3D& box) {
  CUDA_MEMCPY2D copy{};
  copy.srcXInBytes = box.srcXInBytes, copy.srcY = box.srcY, copy.srcMemoryType = box.srcMemoryType;
  copy.srcHost = box.srcHost, copy.srcDevice = box.srcDevice, copy.srcArray = box.srcArray;
  copy.srcPitch = box.srcPitch;
  copy.dstXInBytes = box.dstXInBytes, copy.dstY = box.dstY, copy.dstMemoryType = box.dstMemoryType;
  copy.dstHost = box.dstHost, copy.dstDevice = box.dstDevice, copy.dstArray = box.dstArray;
  copy.dstPitch = box.dstPitch;
  copy.WidthInBytes = box.WidthInBytes, copy.Height = box.Height;
  return copy;
}

CUresult copyBox(Invocation& in, const CopyHead& head, const Place& place) {
  const api::DriverTable& driver = in.driver();
  if (head.shape == CopyShape::kBox2d) {
    const CUDA_MEMCPY2D copy = flat(head.box);
    return place.legacy ? driver.cuMemcpy2DUnaligned_v2(&copy)
                        : driver.cuMemcpy2DAsync_v2(&copy, place.stream);
  }
  return place.legacy ? driver.cuMemcpy3D_v2(&head.box)
                      : driver.cuMemcpy3DAsync_v2(&head.box, place.stream);
}

// After a copy in a stream that the caller waits for.
CUresult waitFor(Invocation& in, const CopyHead& head, const Place& place, CUresult result) {
  if (result != CUDA_SUCCESS || place.legacy || head.in_order != 0) return result;
  return in.driver().cuStreamSynchronize(place.stream);
}

// A captured copy is made again with each launch of its graph: only with memory that stays, which
// both sides have.
bool captures(Invocation& in, const CopyHead& head, const Place& place) {
  return head.in_order != 0 && isCapturing(in, place.stream);
}

// The client's side of a linear copy where both have it; null where it travels.
std::byte* nearOf(Invocation& in, const CopyHead& head) {
  if (head.near == 0) return nullptr;
  if (!in.worker().hostMemory().has(head.near, head.bytes)) {
    in.arguments().fail();
    return nullptr;
  }
  return reinterpret_cast<std::byte*>(head.near);
}

// A box whose host side lies in a block: the driver is given it as the program gave it.
CUresult copyNearBox(Invocation& in, CopyHead& head, const Place& place) {
  if (!settleArrays(in, head.box)) return CUDA_ERROR_INVALID_VALUE;
  if (!inBlocks(in.worker().hostMemory(), head.box)) return CUDA_ERROR_INVALID_VALUE;
  return waitFor(in, head, place, copyBox(in, head, place));
}

bool isBulk(const CopyHead& head) { return head.region.key != 0; }

// The call's stream has been found. A region that the bytes are not in is nonsense.
BulkCopy bulkOf(Invocation& in, const CopyHead& head, const Place& place) {
  BulkCopy copy;
  copy.stream = place.stream;
  copy.context = in.enterContextOf(place.stream);
  copy.in_order = head.in_order != 0;
  if (head.array != 0) copy.array = in.translated<CUarray>(head.device);
  copy.device = head.array != 0 ? 0 : head.device;
  copy.offset = head.offset;
  copy.bytes = head.bytes;
  copy.region = head.region;
  copy.region_offset = head.region_offset;
  if (!copy.fits()) in.arguments().fail();
  return copy;
}

bool readHead(Invocation& in, CopyHead* head) {
  *head = in.value<CopyHead>();
  const bool bulk = in.ok() && isBulk(*head);
  const bool travels = !bulk && head->near == 0;
  if (!in.ok() || (travels && head->bytes > forward::kMostBytes) ||
      head->shape > CopyShape::kBox3d ||
      (bulk && (head->shape != CopyShape::kLinear || head->near != 0))) {
    in.arguments().fail();
    return false;
  }
  if (head->alone != 0) in.worker().operations().alone();
  return true;
}

// Between the client's side and the device, by one call of the driver. A box is as its side says.
CUresult callIn(Invocation& in, CopyHead& head, const Place& place, const std::byte* from) {
  const api::DriverTable& driver = in.driver();
  if (head.shape != CopyShape::kLinear)
    return settleBox(in, head.box, const_cast<std::byte*>(from)) ? copyBox(in, head, place)
                                                                 : CUDA_ERROR_INVALID_VALUE;
  if (head.array != 0) {
    const auto array = in.translated<CUarray>(head.device);
    if (!in.ok()) return in.refusal();
    return place.legacy
               ? driver.cuMemcpyHtoA_v2(array, head.offset, from, head.bytes)
               : driver.cuMemcpyHtoAAsync_v2(array, head.offset, from, head.bytes, place.stream);
  }
  return place.legacy ? driver.cuMemcpyHtoD_v2(head.device, from, head.bytes)
                      : driver.cuMemcpyHtoDAsync_v2(head.device, from, head.bytes, place.stream);
}

CUresult callOut(Invocation& in, CopyHead& head, const Place& place, std::byte* into) {
  const api::DriverTable& driver = in.driver();
  if (head.shape != CopyShape::kLinear)
    return settleBox(in, head.box, into) ? copyBox(in, head, place) : CUDA_ERROR_INVALID_VALUE;
  if (head.array != 0) {
    const auto array = in.translated<CUarray>(head.device);
    if (!in.ok()) return in.refusal();
    return place.legacy
               ? driver.cuMemcpyAtoH_v2(into, array, head.offset, head.bytes)
               : driver.cuMemcpyAtoHAsync_v2(into, array, head.offset, head.bytes, place.stream);
  }
  return place.legacy ? driver.cuMemcpyDtoH_v2(into, head.device, head.bytes)
                      : driver.cuMemcpyDtoHAsync_v2(into, head.device, head.bytes, place.stream);
}

// A copy whose host side travels, cut into parts that fit a pinned piece each. A part has its bytes
// packed.
class Parts {
 public:
  explicit Parts(const CopyHead& head) : whole_(head) {}
  /// The first one, or the next; false: there is no more.
  bool next() {
    at_ += part_.bytes;
    if (at_ >= whole_.bytes) return false;
    part_ = whole_;
    if (whole_.shape == CopyShape::kLinear) {
      part_.bytes = std::min(whole_.bytes - at_, Staging::kPieceBytes);
      (whole_.array != 0 ? part_.offset : part_.device) += at_;
    } else {
      cutBox();
    }
    return true;
  }
  CopyHead& head() { return part_; }
  uint64_t at() const { return at_; }
  uint64_t bytes() const { return part_.bytes; }

 private:
  // Whole layers, else rows of one, else a part of a row.
  void cutBox() {
    const CUDA_MEMCPY3D& whole = whole_.box;
    CUDA_MEMCPY3D& box = part_.box;
    const uint64_t x = at_ % whole.WidthInBytes, rows = at_ / whole.WidthInBytes;
    const uint64_t y = rows % whole.Height, z = rows / whole.Height;
    const uint64_t most = Staging::kPieceBytes / whole.WidthInBytes;  // rows
    box.Height = box.Depth = 1;
    if (most == 0) {
      box.WidthInBytes = std::min(whole.WidthInBytes - x, Staging::kPieceBytes);
    } else if (y == 0 && most >= whole.Height) {
      box.Height = whole.Height;
      box.Depth = std::min(whole.Depth - z, most / whole.Height);
    } else {
      box.Height = std::min(whole.Height - y, most);
    }
    part_.bytes = box.WidthInBytes * box.Height * box.Depth;
    if (box.srcMemoryType == CU_MEMORYTYPE_HOST) {
      box.srcPitch = box.WidthInBytes, box.srcHeight = box.Height;
      box.dstXInBytes += x, box.dstY += y, box.dstZ += z;
      if (box.dstMemoryType == CU_MEMORYTYPE_DEVICE)
        beginThere(box.dstDevice, box.dstPitch, box.dstHeight, box.dstXInBytes, box.dstY, box.dstZ);
    } else {
      box.dstPitch = box.WidthInBytes, box.dstHeight = box.Height;
      box.srcXInBytes += x, box.srcY += y, box.srcZ += z;
      if (box.srcMemoryType == CU_MEMORYTYPE_DEVICE)
        beginThere(box.srcDevice, box.srcPitch, box.srcHeight, box.srcXInBytes, box.srcY, box.srcZ);
    }
  }

  // A part has an address of its own: nobody holds the memory at the whole's beginning for it.
  static void beginThere(CUdeviceptr& address, size_t pitch, size_t height, size_t& x, size_t& y,
                         size_t& z) {
    if (pitch == 0) return;
    address += (z * height + y) * pitch + x;
    x = y = z = 0;
  }

  const CopyHead whole_;
  CopyHead part_{};
  uint64_t at_ = 0;
};

// Tells the device memory that the copy uses by several calls: no more than that, but for gaps in a
// box.
void tellUses(Invocation& in, const CopyHead& head) {
  if (head.shape == CopyShape::kLinear) {
    if (head.array == 0) in.worker().operations().uses(head.device, head.bytes);
    return;
  }
  const CUDA_MEMCPY3D& box = head.box;
  const bool into = box.dstMemoryType == CU_MEMORYTYPE_DEVICE;
  if (!into && box.srcMemoryType != CU_MEMORYTYPE_DEVICE) return;
  const uint64_t pitch = into ? box.dstPitch : box.srcPitch;
  const uint64_t layer = pitch * (into ? box.dstHeight : box.srcHeight);
  const uint64_t first =
      into ? box.dstDevice + box.dstZ * layer + box.dstY * pitch + box.dstXInBytes
           : box.srcDevice + box.srcZ * layer + box.srcY * pitch + box.srcXInBytes;
  in.worker().operations().uses(
      first, (box.Depth - 1) * layer + (box.Height - 1) * pitch + box.WidthInBytes);
}

CUresult inByPieces(Invocation& in, const CopyHead& head, const Place& place,
                    std::span<const std::byte> bytes) {
  const api::DriverTable& driver = in.driver();
  Staging& staging = in.worker().staging();
  const uint64_t context = in.enterContextOf(place.stream);
  tellUses(in, head);
  std::vector<Staging::Piece*> with_driver;  // of a copy whose caller waits
  CUresult result = CUDA_SUCCESS;
  for (Parts parts(head); result == CUDA_SUCCESS && parts.next();) {
    Staging::Piece* const piece = staging.take(driver, context);
    if (piece == nullptr) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    std::memcpy(piece->bytes, bytes.data() + parts.at(), parts.bytes());
    result = callIn(in, parts.head(), place, piece->bytes);
    if (result != CUDA_SUCCESS) {
      staging.give(piece);
      break;
    }
    result = staging.mark(driver, piece, place.stream);
    if (result != CUDA_SUCCESS) {
      staging.leave(piece);
    } else if (head.in_order != 0) {
      staging.giveBehind(piece);
    } else {
      with_driver.push_back(piece);
    }
  }
  if (head.in_order != 0) return result;
  const CUresult done = driver.cuStreamSynchronize(place.stream);
  for (Staging::Piece* const piece : with_driver)
    done == CUDA_SUCCESS ? staging.give(piece) : staging.leave(piece);
  return result != CUDA_SUCCESS ? result : done;
}

// To a caller that waits.
CUresult outByPieces(Invocation& in, const CopyHead& head, const Place& place) {
  const api::DriverTable& driver = in.driver();
  Staging& staging = in.worker().staging();
  const uint64_t context = in.enterContextOf(place.stream);
  tellUses(in, head);
  struct Written {
    Staging::Piece* piece;
    uint64_t at, bytes;
  };
  constexpr size_t kMost = 8;  // with the driver
  std::deque<Written> with_driver;
  std::vector<std::byte> all(head.bytes);
  const auto take = [&] {
    const Written part = with_driver.front();
    with_driver.pop_front();
    const CUresult done = driver.cuEventSynchronize(part.piece->event);
    if (done == CUDA_SUCCESS) std::memcpy(all.data() + part.at, part.piece->bytes, part.bytes);
    done == CUDA_SUCCESS ? staging.give(part.piece) : staging.leave(part.piece);
    return done;
  };
  CUresult result = CUDA_SUCCESS;
  for (Parts parts(head); result == CUDA_SUCCESS && parts.next();) {
    if (with_driver.size() == kMost) result = take();
    Staging::Piece* const piece = result == CUDA_SUCCESS ? staging.take(driver, context) : nullptr;
    if (piece == nullptr) {
      if (result == CUDA_SUCCESS) result = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    result = callOut(in, parts.head(), place, piece->bytes);
    if (result != CUDA_SUCCESS) {
      staging.give(piece);
      break;
    }
    result = staging.mark(driver, piece, place.stream);
    if (result == CUDA_SUCCESS) {
      with_driver.push_back({piece, parts.at(), parts.bytes()});
    } else {
      staging.leave(piece);
    }
  }
  while (!with_driver.empty()) {
    const CUresult done = take();
    if (result == CUDA_SUCCESS) result = done;
  }
  if (result == CUDA_SUCCESS) in.results().bytes = std::move(all);
  return result;
}

}  // namespace

CUresult copyIn(Invocation& in) {
  CopyHead head;
  if (!readHead(in, &head)) return in.refusal();
  if (isBulk(head)) {
    const Place where = placeOf(in, head);
    const BulkCopy copy = bulkOf(in, head, where);
    if (!in.ok()) return in.refusal();
    return captures(in, head, where) ? CUDA_ERROR_NOT_SUPPORTED : bulkIn(in, copy);
  }
  if (head.near != 0 && head.shape != CopyShape::kLinear) {
    const Place where = placeOf(in, head);
    return in.ok() ? copyNearBox(in, head, where) : in.refusal();
  }
  std::byte* const near = nearOf(in, head);
  const auto bytes = near != nullptr ? std::span<const std::byte>(near, head.bytes)
                                     : in.arguments().raw(head.bytes);
  const Place place = placeOf(in, head);
  if (!in.ok()) return in.refusal();
  if (near == nullptr && captures(in, head, place)) return CUDA_ERROR_NOT_SUPPORTED;
  if (head.shape != CopyShape::kLinear && !fits(head, true)) {
    in.arguments().fail();
    return in.refusal();
  }
  if (near == nullptr && !place.legacy && !in.worker().driverMayWait() &&
      (head.in_order == 0 || head.bytes > forward::kDriverTakesBytes))
    return inByPieces(in, head, place, bytes);
  return waitFor(in, head, place, callIn(in, head, place, bytes.data()));
}

namespace {

// A copy's bytes between the GPU and the client. If nobody waits for the copy, they are in pinned
// memory: a driver that copies to other memory waits for the stream, and answers nobody meanwhile.
class Between {
  static_assert(forward::kLaterBoxBytes <= Staging::kPieceBytes &&
                forward::kBulkBytes <= Staging::kPieceBytes);

 public:
  Between(Invocation& in, const CopyHead& head, const Place& place)
      : worker_(in.worker()), number_(head.number), length_(head.bytes) {
    if (number_ != 0 && length_ <= Staging::kPieceBytes)
      piece_ = worker_.staging().take(in.driver(), in.enterContextOf(place.stream));
    if (piece_ == nullptr) bytes_.resize(length_);
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;
  ~Between() {
    if (piece_ != nullptr) worker_.staging().give(piece_);
  }
  /// The GPU may write there whatever comes.
  void leave() {
    if (piece_ != nullptr) worker_.staging().leave(piece_);
  }
  std::byte* data() { return piece_ != nullptr ? piece_->bytes : bytes_.data(); }
  /// The bytes of a copy that the caller waits for, and that is over.
  std::vector<std::byte> take() {
    if (piece_ != nullptr) bytes_.assign(piece_->bytes, piece_->bytes + length_);
    return std::move(bytes_);
  }
  void send(CUresult status) {
    const std::span<const std::byte> bytes =
        status == CUDA_SUCCESS ? std::span(data(), length_) : std::span<std::byte>();
    worker_.tell(forward::Answer::kBytes, number_, CUDA_SUCCESS, bytes, true);
  }

 private:
  Worker& worker_;
  const uint32_t number_;
  const uint64_t length_;
  Staging::Piece* piece_ = nullptr;
  std::vector<std::byte> bytes_;
};

// A callback, which unlike a host function is called behind a fault, too: the client waits for
// bytes, or for word that there are none.
void CUDA_CB sendBetween(CUstream /*stream*/, CUresult status, void* data) {
  std::unique_ptr<Between>(static_cast<Between*>(data))->send(status);
}

}  // namespace

CUresult copyOut(Invocation& in) {
  CopyHead head;
  const bool read = readHead(in, &head);
  Owed owed(in.worker(), forward::Answer::kBytes, head.number);
  if (!read) return in.refusal();
  const Place place = placeOf(in, head);
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  if (isBulk(head)) {
    const BulkCopy copy = bulkOf(in, head, place);
    if (!in.ok()) return in.refusal();
    return captures(in, head, place) ? CUDA_ERROR_NOT_SUPPORTED
                                     : bulkOut(in, copy, head.number, owed);
  }
  if (head.near != 0 && head.shape != CopyShape::kLinear) return copyNearBox(in, head, place);
  std::byte* const near = nearOf(in, head);
  if (!in.ok()) return in.refusal();
  if (near == nullptr && captures(in, head, place)) return CUDA_ERROR_NOT_SUPPORTED;
  if (head.shape != CopyShape::kLinear && !fits(head, false)) {
    in.arguments().fail();
    return in.refusal();
  }
  if (near == nullptr && head.number == 0 && !place.legacy && !in.worker().driverMayWait())
    return outByPieces(in, head, place);
  auto between = near == nullptr ? std::make_unique<Between>(in, head, place) : nullptr;
  CUresult result = callOut(in, head, place, near != nullptr ? near : between->data());
  if (near != nullptr) return waitFor(in, head, place, result);
  if (head.number != 0) {
    if (result != CUDA_SUCCESS) return result;
    between->leave();
    result = driver.cuStreamAddCallback(place.stream, sendBetween, between.get(), 0);
    (void)between.release();  // also when nothing will send it: the GPU may still write there
    if (result == CUDA_SUCCESS) owed.comes();
    return result;
  }
  if (!place.legacy && result == CUDA_SUCCESS) {
    result = driver.cuStreamSynchronize(place.stream);
    if (result != CUDA_SUCCESS) {
      between->leave();
      (void)between.release();  // the GPU may still write there
    }
  }
  if (result == CUDA_SUCCESS) in.results().bytes = between->take();
  return result;
}

CUresult copyDevice(Invocation& in) {
  const auto head = in.value<CopyHead>();
  const Place place = placeOf(in, head);
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  CopyHead box = head;
  CUresult result = CUDA_SUCCESS;
  if (head.shape != CopyShape::kLinear) {
    if (head.box.srcMemoryType == CU_MEMORYTYPE_HOST ||
        head.box.dstMemoryType == CU_MEMORYTYPE_HOST || !settleBox(in, box.box, nullptr))
      return CUDA_ERROR_INVALID_VALUE;
    result = copyBox(in, box, place);
  } else {
    result = place.legacy
                 ? driver.cuMemcpyDtoD_v2(head.device, head.offset, head.bytes)
                 : driver.cuMemcpyDtoDAsync_v2(head.device, head.offset, head.bytes, place.stream);
  }
  return waitFor(in, head, place, result);
}

CUresult synchronizeDefault(Invocation& in) {
  const auto head = in.value<CopyHead>();
  const Place place = placeOf(in, head);
  if (!in.ok()) return in.refusal();
  return in.driver().cuStreamSynchronize(place.stream);
}

}  // namespace olpager::gpunode
