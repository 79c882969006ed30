#include "gpunode/worker/bulk_copies.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

// Bounds of one copy, at once: bytes that the network brings, and pieces that it takes away.
constexpr uint64_t kBringBytes = 32ull << 20;
constexpr size_t kTakeAway = 16;
constexpr size_t kWithDriver = 32;  // pieces that wait for the GPU, of a copy whose caller waits

uint64_t pieceAt(const BulkCopy& copy, uint64_t at) {
  return std::min(Staging::kPieceBytes, copy.bytes - at);
}

CUresult enqueueIn(const api::DriverTable& driver, const BulkCopy& copy, uint64_t at,
                   const void* from, uint64_t bytes) {
  return copy.array != nullptr
             ? driver.cuMemcpyHtoAAsync_v2(copy.array, copy.offset + at, from, bytes, copy.stream)
             : driver.cuMemcpyHtoDAsync_v2(copy.device + at, from, bytes, copy.stream);
}
CUresult enqueueOut(const api::DriverTable& driver, const BulkCopy& copy, uint64_t at, void* into,
                    uint64_t bytes) {
  return copy.array != nullptr
             ? driver.cuMemcpyAtoHAsync_v2(into, copy.array, copy.offset + at, bytes, copy.stream)
             : driver.cuMemcpyDtoHAsync_v2(into, copy.device + at, bytes, copy.stream);
}

// --- to the device -------------------------------------------------------------------------------

// Pieces that one transfer brings.
struct Coming {
  uint64_t at;
  uint64_t bytes = 0;
  std::vector<Staging::Piece*> pieces;
  calls::TransferPtr transfer;
};

// To ask for bytes takes messages and wakes threads at both ends: a long copy asks for several
// pieces at once, a short one for single ones, so that the GPU begins before the network has ended.
size_t piecesAtOnce(const BulkCopy& copy) {
  constexpr uint64_t kMost = 4, kTurns = 8;
  return std::clamp<uint64_t>(copy.bytes / Staging::kPieceBytes / kTurns, 1, kMost);
}

// Asks for the next ones, from `at` on; for none when there is no memory.
Coming bringPieces(Invocation& in, const BulkCopy& copy, uint64_t at) {
  Worker& worker = in.worker();
  Coming coming{at};
  std::vector<transport::LocalRange> into;
  for (size_t left = piecesAtOnce(copy); left != 0 && at + coming.bytes < copy.bytes; --left) {
    Staging::Piece* const piece = worker.staging().take(in.driver(), copy.context);
    if (piece == nullptr) break;
    coming.pieces.push_back(piece);
    into.push_back({piece->region.get(), 0, pieceAt(copy, at + coming.bytes)});
    coming.bytes += into.back().length;
  }
  if (!into.empty())
    coming.transfer =
        worker.channel().fetch(into, {copy.region, copy.region_offset + at, coming.bytes});
  return coming;
}

}  // namespace

CUresult bulkIn(Invocation& in, const BulkCopy& copy) {
  Worker& worker = in.worker();
  Staging& staging = worker.staging();
  const api::DriverTable& driver = in.driver();
  std::deque<Coming> under_way;
  std::deque<Staging::Piece*> with_driver;  // of a copy whose caller waits
  CUresult result = CUDA_SUCCESS;
  if (copy.array == nullptr) worker.operations().uses(copy.device, copy.bytes);
  // To the GPU, but for what comes behind a piece that it does not take.
  const auto enqueue = [&](Staging::Piece* piece, uint64_t at) {
    if (result == CUDA_SUCCESS)
      result = enqueueIn(driver, copy, at, piece->bytes, pieceAt(copy, at));
    if (result != CUDA_SUCCESS) {
      staging.give(piece);
      return;
    }
    result = staging.mark(driver, piece, copy.stream);
    if (result != CUDA_SUCCESS) {
      staging.leave(piece);
    } else if (copy.in_order) {
      staging.giveBehind(piece);
    } else {
      with_driver.push_back(piece);
    }
  };
  uint64_t asked = 0;
  for (uint64_t at = 0; at < copy.bytes && result == CUDA_SUCCESS;) {
    while (asked < copy.bytes && asked - at < kBringBytes) {
      Coming coming = bringPieces(in, copy, asked);
      if (coming.pieces.empty()) break;
      asked += coming.bytes;
      under_way.push_back(std::move(coming));
    }
    if (under_way.empty()) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
      break;
    }
    const Coming one = std::move(under_way.front());
    under_way.pop_front();
    if (!worker.arrived(*one.transfer)) result = CUDA_ERROR_INVALID_VALUE;
    for (Staging::Piece* const piece : one.pieces) {
      enqueue(piece, at);
      at += pieceAt(copy, at);
    }
    while (result == CUDA_SUCCESS && with_driver.size() > kWithDriver) {
      result = driver.cuEventSynchronize(with_driver.front()->event);
      if (result != CUDA_SUCCESS) break;
      staging.give(with_driver.front());
      with_driver.pop_front();
    }
  }
  for (const Coming& one : under_way) {
    (void)worker.arrived(*one.transfer);
    for (Staging::Piece* const piece : one.pieces) staging.give(piece);
  }
  if (copy.in_order) return result;
  const CUresult done = driver.cuStreamSynchronize(copy.stream);
  for (Staging::Piece* const piece : with_driver)
    done == CUDA_SUCCESS ? staging.give(piece) : staging.leave(piece);
  return result != CUDA_SUCCESS ? result : done;
}

// --- from the device -----------------------------------------------------------------------------

namespace {

struct Part {
  Staging::Piece* piece;
  uint64_t at, bytes;
  calls::TransferPtr transfer;  // null until the GPU has written the piece
};

calls::TransferPtr startPut(Worker& worker, const BulkCopy& copy, const Part& part) {
  return worker.channel().put({part.piece->region.get(), 0, part.bytes},
                              {copy.region, copy.region_offset + part.at, part.bytes});
}

// The next piece of a copy, which the GPU is to write.
CUresult enqueuePart(Invocation& in, const BulkCopy& copy, uint64_t at, Part* part) {
  Staging& staging = in.worker().staging();
  Staging::Piece* const piece = staging.take(in.driver(), copy.context);
  if (piece == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *part = {piece, at, pieceAt(copy, at), nullptr};
  const CUresult result = enqueueOut(in.driver(), copy, at, piece->bytes, part->bytes);
  if (result != CUDA_SUCCESS) staging.give(piece);
  return result;
}

// --- to a caller that waits

CUresult outNow(Invocation& in, const BulkCopy& copy) {
  Worker& worker = in.worker();
  const api::DriverTable& driver = in.driver();
  std::deque<Part> copying, moving;
  CUresult result = CUDA_SUCCESS;
  const auto endFirst = [&] {
    if (!worker.arrived(*moving.front().transfer) && result == CUDA_SUCCESS)
      result = CUDA_ERROR_INVALID_VALUE;
    worker.staging().give(moving.front().piece);
    moving.pop_front();
  };
  // The GPU's oldest goes to the network.
  const auto pass = [&] {
    Part part = copying.front();
    result = driver.cuEventSynchronize(part.piece->event);
    if (result != CUDA_SUCCESS) return;
    copying.pop_front();
    part.transfer = startPut(worker, copy, part);
    moving.push_back(std::move(part));
    while (moving.size() > kTakeAway) endFirst();
  };
  for (uint64_t at = 0; at < copy.bytes && result == CUDA_SUCCESS; at += Staging::kPieceBytes) {
    if (copying.size() == kWithDriver) pass();
    Part part{};
    if (result == CUDA_SUCCESS) result = enqueuePart(in, copy, at, &part);
    if (result != CUDA_SUCCESS) break;
    result = worker.staging().mark(driver, part.piece, copy.stream);
    if (result == CUDA_SUCCESS) {
      copying.push_back(std::move(part));
    } else {
      worker.staging().leave(part.piece);
    }
  }
  while (result == CUDA_SUCCESS && !copying.empty()) pass();
  // Pieces on their way are waited for also when the rest has failed: the caller may use its memory
  // again afterwards.
  while (!moving.empty()) endFirst();
  for (const Part& part : copying) {
    const bool done = driver.cuEventSynchronize(part.piece->event) == CUDA_SUCCESS;
    done ? worker.staging().give(part.piece) : worker.staging().leave(part.piece);
  }
  return result;
}

// --- behind what is in the stream

// A copy on its way out; of the call that makes it and of the stream's host functions.
struct Outgoing {
  Outgoing(Worker& owner, const BulkCopy& what, uint32_t with)
      : worker(owner), copy(what), number(with) {}
  Worker& worker;
  const BulkCopy copy;
  const uint32_t number;
  std::mutex mutex;
  std::deque<Part> parts;  // grows at its end alone, while the stream has some of it
  size_t seen = 0;         // by the stream's host functions
  size_t written = 0;      // by the GPU and on their way, from the first on
  size_t over = 0;         // moved and given back, from the first on
  bool cancelled = false;
};
struct Written {
  std::shared_ptr<Outgoing> of;
};

// Callbacks, which unlike host functions are called behind a fault, too: then nothing was written,
// and the client is told all the same.
void CUDA_CB partWritten(CUstream /*stream*/, CUresult status, void* data) {
  const std::unique_ptr<Written> written(static_cast<Written*>(data));
  Outgoing& out = *written->of;
  std::lock_guard lock(out.mutex);
  Part& part = out.parts[out.seen++];
  if (status != CUDA_SUCCESS) out.cancelled = true;
  if (out.cancelled) {
    out.worker.staging().give(part.piece);
  } else {
    ++out.written;
    part.transfer = startPut(out.worker, out.copy, part);
  }
}

void endWritten(Outgoing& out) {
  for (;;) {
    Part part{};
    {
      std::lock_guard lock(out.mutex);
      if (out.over == out.written) return;
      part = out.parts[out.over++];
    }
    (void)out.worker.arrived(*part.transfer);
    out.worker.staging().give(part.piece);
  }
}

void CUDA_CB allWritten(CUstream /*stream*/, CUresult /*status*/, void* data) {
  const std::unique_ptr<Written> written(static_cast<Written*>(data));
  Outgoing& out = *written->of;
  endWritten(out);
  out.worker.tell(forward::Answer::kBytes, out.number, CUDA_SUCCESS, {}, true);
}

CUresult launchBehind(Invocation& in, const std::shared_ptr<Outgoing>& out,
                      CUstreamCallback function) {
  auto written = std::make_unique<Written>(Written{out});
  const CUresult result =
      in.driver().cuStreamAddCallback(out->copy.stream, function, written.get(), 0);
  if (result == CUDA_SUCCESS) (void)written.release();
  return result;
}

CUresult outBehind(Invocation& in, const BulkCopy& copy, uint32_t number) {
  const auto out = std::make_shared<Outgoing>(in.worker(), copy, number);
  CUresult result = CUDA_SUCCESS;
  for (uint64_t at = 0; at < copy.bytes && result == CUDA_SUCCESS; at += Staging::kPieceBytes) {
    Part part{};
    result = enqueuePart(in, copy, at, &part);
    if (result != CUDA_SUCCESS) break;
    in.worker().staging().leave(part.piece);  // the callback gives it
    {
      std::lock_guard lock(out->mutex);
      out->parts.push_back(std::move(part));
    }
    result = launchBehind(in, out, partWritten);
  }
  if (result == CUDA_SUCCESS) result = launchBehind(in, out, allWritten);
  if (result == CUDA_SUCCESS) return result;
  // Nothing more goes to the client's memory, and what is on its way is waited for.
  {
    std::lock_guard lock(out->mutex);
    out->cancelled = true;
  }
  endWritten(*out);
  return result;
}

}  // namespace

CUresult bulkOut(Invocation& in, const BulkCopy& copy, uint32_t number, Owed& owed) {
  if (copy.array == nullptr) in.worker().operations().uses(copy.device, copy.bytes);
  if (number == 0) return outNow(in, copy);
  const CUresult result = outBehind(in, copy, number);
  if (result == CUDA_SUCCESS) owed.comes();
  return result;
}

}  // namespace olpager::gpunode
