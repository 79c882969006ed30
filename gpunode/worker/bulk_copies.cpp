#include "gpunode/worker/bulk_copies.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr size_t kAhead = 8;        // pieces that the network moves at once
constexpr size_t kWithDriver = 16;  // pieces that wait for the GPU, of a copy whose caller waits
constexpr auto kLook = 100ms;       // a stream whose context is broken runs no host function

uint64_t pieceAt(const BulkCopy& copy, uint64_t at) { return std::min(Staging::kPieceBytes, copy.bytes - at); }

CUresult enqueueIn(const api::DriverTable& driver, const BulkCopy& copy, uint64_t at, const void* from,
                   uint64_t bytes) {
  return copy.array != nullptr ? driver.cuMemcpyHtoAAsync_v2(copy.array, copy.offset + at, from, bytes, copy.stream)
                               : driver.cuMemcpyHtoDAsync_v2(copy.device + at, from, bytes, copy.stream);
}
CUresult enqueueOut(const api::DriverTable& driver, const BulkCopy& copy, uint64_t at, void* into, uint64_t bytes) {
  return copy.array != nullptr ? driver.cuMemcpyAtoHAsync_v2(into, copy.array, copy.offset + at, bytes, copy.stream)
                               : driver.cuMemcpyDtoHAsync_v2(into, copy.device + at, bytes, copy.stream);
}

// Waits for what a host function of the stream signals. False: it will not come, *result says why.
template <typename There>
bool awaitStream(const api::DriverTable& driver, CUstream stream, std::unique_lock<std::mutex>& lock,
                 std::condition_variable& changed, CUresult* result, There there) {
  while (!there()) {
    if (changed.wait_for(lock, kLook, there)) return true;
    lock.unlock();
    const CUresult state = driver.cuStreamQuery(stream);
    lock.lock();
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY && !there()) {
      *result = state;
      return false;
    }
  }
  return true;
}

// --- to the device -----------------------------------------------------------------------------------------------------

// What the GPU still has to read.
struct Incoming {
  explicit Incoming(Staging& owner) : staging(owner) {}
  Staging& staging;
  std::mutex mutex;
  std::condition_variable changed;
  size_t with_driver = 0;
};
struct Read {
  std::shared_ptr<Incoming> of;
  Staging::Piece* piece;
};
void CUDA_CB giveBack(void* data) {
  const std::unique_ptr<Read> read(static_cast<Read*>(data));
  read->of->staging.give(read->piece);
  std::lock_guard lock(read->of->mutex);
  --read->of->with_driver;
  read->of->changed.notify_one();
}

struct Coming {
  Staging::Piece* piece;
  uint64_t bytes;
  calls::TransferPtr transfer;
};

}  // namespace

CUresult bulkIn(Invocation& in, const BulkCopy& copy) {
  Worker& worker = in.worker();
  Staging& staging = worker.staging();
  const api::DriverTable& driver = in.driver();
  const auto incoming = std::make_shared<Incoming>(staging);
  std::deque<Coming> under_way;
  CUresult result = CUDA_SUCCESS;
  uint64_t asked = 0;
  for (uint64_t at = 0; at < copy.bytes && result == CUDA_SUCCESS;) {
    while (asked < copy.bytes && under_way.size() < kAhead) {
      Staging::Piece* const piece = staging.take(driver, in.head().context);
      if (piece == nullptr) break;
      const uint64_t bytes = pieceAt(copy, asked);
      under_way.push_back(
          {piece, bytes,
           worker.channel().fetch({piece->region.get(), 0, bytes}, {copy.region, copy.region_offset + asked, bytes})});
      asked += bytes;
    }
    if (under_way.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    const Coming one = under_way.front();
    under_way.pop_front();
    if (!worker.arrived(*one.transfer)) {
      staging.give(one.piece);
      result = CUDA_ERROR_INVALID_VALUE;
      break;
    }
    result = enqueueIn(driver, copy, at, one.piece->bytes, one.bytes);
    if (result != CUDA_SUCCESS) {
      staging.give(one.piece);
      break;
    }
    {
      std::lock_guard lock(incoming->mutex);
      ++incoming->with_driver;
    }
    auto read = std::make_unique<Read>(Read{incoming, one.piece});
    // Refused, the piece stays with the driver until its context is gone.
    result = driver.cuLaunchHostFunc(copy.stream, giveBack, read.get());
    if (result != CUDA_SUCCESS) break;
    (void)read.release();
    at += one.bytes;
    if (copy.in_order) continue;
    std::unique_lock lock(incoming->mutex);
    (void)awaitStream(driver, copy.stream, lock, incoming->changed, &result,
                      [&] { return incoming->with_driver < kWithDriver; });
  }
  for (const Coming& one : under_way) {
    (void)worker.arrived(*one.transfer);
    staging.give(one.piece);
  }
  if (result != CUDA_SUCCESS || copy.in_order) return result;
  return driver.cuStreamSynchronize(copy.stream);
}

// --- from the device ---------------------------------------------------------------------------------------------------

namespace {

struct Part {
  Staging::Piece* piece;
  uint64_t at, bytes;
  calls::TransferPtr transfer;  // null until the GPU has written the piece
};

// A copy on its way out; of the caller and of the stream's host functions.
struct Outgoing {
  Outgoing(Worker& owner, const BulkCopy& what, uint32_t with) : worker(owner), copy(what), number(with) {}
  Worker& worker;
  const BulkCopy copy;
  const uint32_t number;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Part> parts;  // grows at its end alone, while the stream has some of it
  size_t seen = 0;         // by the stream's host functions
  size_t written = 0;      // by the GPU and on their way, from the first on
  size_t over = 0;         // moved and given back, from the first on
  bool cancelled = false;
};
struct Written {
  std::shared_ptr<Outgoing> of;
};

void CUDA_CB partWritten(void* data) {
  const std::unique_ptr<Written> written(static_cast<Written*>(data));
  Outgoing& out = *written->of;
  std::lock_guard lock(out.mutex);
  Part& part = out.parts[out.seen++];
  if (out.cancelled) {
    out.worker.staging().give(part.piece);
  } else {
    ++out.written;
    part.transfer = out.worker.channel().put({part.piece->region.get(), 0, part.bytes},
                                             {out.copy.region, out.copy.region_offset + part.at, part.bytes});
  }
  out.changed.notify_all();
}

// Of the parts that were written and not given back, the first. False: it did not come to the client.
bool endFirst(Outgoing& out) {
  Part part{};
  {
    std::lock_guard lock(out.mutex);
    part = out.parts[out.over++];
  }
  const bool there = out.worker.arrived(*part.transfer);
  out.worker.staging().give(part.piece);
  return there;
}

bool endWritten(Outgoing& out) {
  bool there = true;
  for (;;) {
    {
      std::lock_guard lock(out.mutex);
      if (out.over == out.written) return there;
    }
    there = endFirst(out) && there;
  }
}

void CUDA_CB allWritten(void* data) {
  const std::unique_ptr<Written> written(static_cast<Written*>(data));
  Outgoing& out = *written->of;
  (void)endWritten(out);
  out.worker.tell(forward::Answer::kBytes, out.number, CUDA_SUCCESS, {}, true);
}

CUresult enqueueParts(Invocation& in, const std::shared_ptr<Outgoing>& out) {
  const BulkCopy& copy = out->copy;
  const api::DriverTable& driver = in.driver();
  CUresult result = CUDA_SUCCESS;
  for (uint64_t at = 0; at < copy.bytes; at += Staging::kPieceBytes) {
    if (out->number == 0) {
      std::unique_lock lock(out->mutex);
      const bool full = out->parts.size() - out->over >= kWithDriver;
      if (full &&
          !awaitStream(driver, copy.stream, lock, out->changed, &result, [&] { return out->written > out->over; }))
        return result;
      lock.unlock();
      if (full && !endFirst(*out)) return CUDA_ERROR_INVALID_VALUE;
    }
    Staging::Piece* const piece = out->worker.staging().take(driver, in.head().context);
    if (piece == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t bytes = pieceAt(copy, at);
    result = enqueueOut(driver, copy, at, piece->bytes, bytes);
    if (result != CUDA_SUCCESS) {
      out->worker.staging().give(piece);
      return result;
    }
    {
      std::lock_guard lock(out->mutex);
      out->parts.push_back({piece, at, bytes, nullptr});
    }
    auto written = std::make_unique<Written>(Written{out});
    result = driver.cuLaunchHostFunc(copy.stream, partWritten, written.get());
    if (result != CUDA_SUCCESS) return result;
    (void)written.release();
  }
  return result;
}

}  // namespace

CUresult bulkOut(Invocation& in, const BulkCopy& copy, uint32_t number, Owed& owed) {
  const auto out = std::make_shared<Outgoing>(in.worker(), copy, number);
  CUresult result = enqueueParts(in, out);
  if (result == CUDA_SUCCESS && number != 0) {
    auto written = std::make_unique<Written>(Written{out});
    result = in.driver().cuLaunchHostFunc(copy.stream, allWritten, written.get());
    if (result == CUDA_SUCCESS) {
      (void)written.release();
      owed.comes();
      return result;
    }
  }
  if (result == CUDA_SUCCESS) result = in.driver().cuStreamSynchronize(copy.stream);
  if (result != CUDA_SUCCESS) {
    // Nothing more goes to the client's memory, and what is on its way is waited for: the caller may use it again.
    std::lock_guard lock(out->mutex);
    out->cancelled = true;
  }
  const bool there = endWritten(*out);
  return result != CUDA_SUCCESS ? result : there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace olpager::gpunode
