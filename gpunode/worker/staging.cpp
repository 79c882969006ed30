#include "gpunode/worker/staging.h"

#include <sys/mman.h>

#include <algorithm>

namespace olpager::gpunode {

Staging::Staging() : domain_(transport::makeDomain()) {}

Staging::~Staging() {
  for (auto& piece : all_) drop(std::move(piece));
}

std::unique_ptr<Staging::Piece> Staging::make() {
  void* const memory =
      mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto piece = std::make_unique<Piece>();
  piece->bytes = static_cast<std::byte*>(memory);
  auto region = transport::registerMemory(domain_, {memory, kPieceBytes, -1, 0}, transport::kLocalOnly);
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

Staging::Piece* Staging::take(const api::DriverTable& driver, uint64_t context) {
  Piece* piece = nullptr;
  std::unique_ptr<Piece> spare;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      piece = free_.back();
      free_.pop_back();
    }
    if (free_.size() > kKept) {
      const auto at =
          std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.get() == free_.back(); });
      free_.pop_back();
      spare = std::move(*at);
      all_.erase(at);
    }
  }
  if (spare != nullptr) {
    if (spare->pinned && driver.cuMemHostUnregister != nullptr) (void)driver.cuMemHostUnregister(spare->bytes);
    drop(std::move(spare));
  }
  if (piece == nullptr) {
    auto made = make();
    if (made == nullptr) return nullptr;
    piece = made.get();
    std::lock_guard lock(mutex_);
    all_.push_back(std::move(made));
  }
  // Memory that the driver does not want to pin serves as well, only slower.
  if (!piece->pinned && driver.cuMemHostRegister_v2 != nullptr)
    piece->pinned = driver.cuMemHostRegister_v2(piece->bytes, kPieceBytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  piece->context = context;
  piece->used = true;
  return piece;
}

void Staging::give(Piece* piece) {
  std::lock_guard lock(mutex_);
  if (!piece->used) return;  // its context is gone, and took it
  piece->used = false;
  free_.push_back(piece);
}

void Staging::contextGone(uint64_t context) {
  std::lock_guard lock(mutex_);
  for (auto& piece : all_) {
    if (piece->context != context) continue;
    piece->pinned = false;
    if (piece->used) free_.push_back(piece.get());
    piece->used = false;
  }
}

}  // namespace olpager::gpunode
