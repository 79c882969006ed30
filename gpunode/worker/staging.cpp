#include "gpunode/worker/staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/fd.h"
#include "gpunode/worker/relaxed.h"

namespace olpager::gpunode {

Staging::Staging(uint32_t access) : domain_(transport::makeDomain()), access_(access) {}

Staging::~Staging() {
  for (auto& piece : all_) drop(std::move(piece));
}

std::unique_ptr<Staging::Piece> Staging::make() {
  base::UniqueFd shared;
  if (access_ != transport::kLocalOnly) {
    shared = base::UniqueFd(memfd_create("olpager-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!shared || !base::resizeFile(shared.get(), kPieceBytes) ||
        fcntl(shared.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
      return nullptr;
  }
  const int sharing = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const memory = mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, sharing | MAP_POPULATE,
                            shared ? shared.get() : -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto piece = std::make_unique<Piece>();
  piece->bytes = static_cast<std::byte*>(memory);
  auto region = transport::registerMemory(
      domain_, {memory, kPieceBytes, shared ? shared.get() : -1, 0}, access_);
  if (!region.ok()) {
    munmap(memory, kPieceBytes);
    return nullptr;
  }
  piece->region = std::move(region).value();
  return piece;
}

void Staging::drop(std::unique_ptr<Piece> piece) {
  piece->region.reset();
  munmap(piece->bytes, kPieceBytes);
}

// One that is free; one too many of those goes.
Staging::Piece* Staging::takeFree(const api::DriverTable& driver) {
  Piece* piece = nullptr;
  std::unique_ptr<Piece> spare;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      piece = free_.back();
      free_.pop_back();
      piece->used = true;
    }
    if (free_.size() > kKept && (may_wait_ == nullptr || may_wait_())) {
      const auto at = std::find_if(all_.begin(), all_.end(),
                                   [&](const auto& one) { return one.get() == free_.back(); });
      free_.pop_back();
      spare = std::move(*at);
      all_.erase(at);
    }
  }
  if (spare != nullptr) {
    if (spare->event != nullptr) (void)driver.cuEventDestroy_v2(spare->event);
    if (spare->pinned && driver.cuMemHostUnregister != nullptr)
      (void)driver.cuMemHostUnregister(spare->bytes);
    drop(std::move(spare));
  }
  return piece;
}

// One that the GPU is done with, the last of those: it is in the processor's cache still. Asking is
// allowed while something captures only to who says that it knows what it does.
Staging::Piece* Staging::takeMarked(const api::DriverTable& driver) {
  constexpr size_t kLooks = 8;
  constexpr size_t kNotDone = 2;  // streams that are in the middle of something
  const Relaxed relaxed(driver);
  Piece* found = nullptr;
  for (size_t look = 0, not_done = 0; look < kLooks && not_done < kNotDone; ++look) {
    Piece* piece = nullptr;
    CUevent event = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (behind_.empty()) break;
      piece = behind_.front();
      behind_.pop_front();
      piece->left = false;  // this thread's while it asks
      event = piece->event;
    }
    const bool done = driver.cuEventQuery(event) == CUDA_SUCCESS;
    std::lock_guard lock(mutex_);
    if (!done && !piece->gone) {
      piece->left = true;
      behind_.push_back(piece);
      ++not_done;
      continue;
    }
    if (found != nullptr) release(found);
    found = piece;
  }
  return found;
}

Staging::Piece* Staging::take(const api::DriverTable& driver, uint64_t context) {
  Piece* piece = takeMarked(driver);
  if (piece == nullptr) piece = takeFree(driver);
  if (piece == nullptr) {
    auto made = make();
    if (made == nullptr) return nullptr;
    piece = made.get();
    piece->used = true;
    std::lock_guard lock(mutex_);
    all_.push_back(std::move(made));
  }
  {
    std::lock_guard lock(mutex_);
    if (piece->gone) forget(piece);
  }
  // Memory that the driver does not want to pin serves as well, only slower.
  if (!piece->pinned && driver.cuMemHostRegister_v2 != nullptr)
    piece->pinned = driver.cuMemHostRegister_v2(piece->bytes, kPieceBytes,
                                                CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
  if (piece->event != nullptr && piece->context != context) {
    (void)driver.cuEventDestroy_v2(piece->event);
    piece->event = nullptr;
  }
  std::lock_guard lock(mutex_);
  piece->context = context;
  return piece;
}

// Under mutex_: what the driver knew of it.
void Staging::forget(Piece* piece) {
  piece->pinned = piece->gone = false;
  piece->event = nullptr;
}

// Under mutex_.
void Staging::release(Piece* piece) {
  if (piece->gone) forget(piece);
  piece->used = piece->left = false;
  free_.push_back(piece);
}

CUresult Staging::mark(const api::DriverTable& driver, Piece* piece, CUstream stream) {
  if (piece->event == nullptr) {
    const CUresult result = driver.cuEventCreate(&piece->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
      piece->event = nullptr;
      return result;
    }
  }
  return driver.cuEventRecord(piece->event, stream);
}

void Staging::give(Piece* piece) {
  std::lock_guard lock(mutex_);
  if (piece->used) release(piece);  // else it was left, and its context is gone
}

void Staging::giveBehind(Piece* piece) {
  std::lock_guard lock(mutex_);
  if (piece->gone) return release(piece);
  piece->left = true;
  behind_.push_back(piece);
}

void Staging::leave(Piece* piece) {
  std::lock_guard lock(mutex_);
  if (piece->gone) return release(piece);
  piece->left = true;
}

void Staging::contextGone(uint64_t context) {
  std::lock_guard lock(mutex_);
  std::erase_if(behind_, [&](const Piece* piece) { return piece->context == context; });
  for (auto& piece : all_) {
    if (piece->context != context) continue;
    if (piece->used && !piece->left) {
      piece->gone = true;
    } else {
      forget(piece.get());
      if (piece->used) release(piece.get());
    }
  }
}

}  // namespace olpager::gpunode
