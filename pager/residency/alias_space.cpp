#include "pager/residency/alias_space.h"

namespace olpager::pager {
namespace {

// If something is there already, the driver chooses another place.
constexpr uint64_t kPlace = 0x4000'0000'0000, kBytes = 1ull << 40, kDevices = 16;

}  // namespace

void AliasSpace::begin() {
  if (addresses_) return;
  const uint64_t wanted = kPlace + static_cast<uint64_t>(device_) % kDevices * kBytes;
  if (driver_.cuMemAddressReserve(&base_, kBytes, 0, wanted, 0) == CUDA_SUCCESS)
    addresses_.emplace(base_, kBytes);
}

void AliasSpace::end() {
  if (!addresses_ || addresses_->runs() != 0) return;
  addresses_.reset();
  (void)driver_.cuMemAddressFree(base_, kBytes);
}

CUdeviceptr AliasSpace::take(uint64_t bytes) {
  if (addresses_) {
    const std::lock_guard lock(mutex_);
    if (const auto run = addresses_->allocate(bytes >> space::kPageShift)) return *run;
  }
  CUdeviceptr alone = 0;
  return driver_.cuMemAddressReserve(&alone, bytes, 0, 0, 0) == CUDA_SUCCESS ? alone : 0;
}

void AliasSpace::give(CUdeviceptr alias, uint64_t bytes) {
  if (addresses_ && addresses_->contains(alias)) {
    const std::lock_guard lock(mutex_);
    (void)addresses_->release(alias);
    return;
  }
  (void)driver_.cuMemAddressFree(alias, bytes);
}

}  // namespace olpager::pager
