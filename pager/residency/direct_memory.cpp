#include "pager/residency/direct_memory.h"

#include "base/fd.h"
#include "base/format.h"
#include "base/log.h"
#include "pager/counters/counters.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::pager {
namespace {

// NOLINTNEXTLINE(performance-no-int-to-ptr): names the memory, and nobody follows it

// 0 where the driver does not know it.
int valueOf(const DriverApi& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

// True if a card's writes are there for what is launched after the CPU has heard of them.
bool ordersWrites(const DriverApi& driver, CUdevice device) {
  return valueOf(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
         CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
}

bool canFlush(const DriverApi& driver, CUdevice device) {
  return (valueOf(driver, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) &
          CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
}

}  // namespace

std::string whyNoDmaBufs(const DriverApi& driver, CUdevice device) {
  const auto has = [&](CUdevice_attribute attribute) {
    return valueOf(driver, device, attribute) != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED))
    return base::format(
        "device {}: the driver gives no dma-bufs of its memory (it takes NVIDIA's open kernel "
        "modules, and a GPU that is made for it)",
        device);
  if (!has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
    return base::format("device {}: the GPU has no GPUDirect RDMA for memory of cuMemCreate",
                        device);
  if (!ordersWrites(driver, device) && !canFlush(driver, device))
    return base::format("device {}: the driver can't tell when what a card has written is in VRAM",
                        device);
  return "";
}

std::string requireDirectError(const std::string& why) {
  return "require = gpudirect: pages can't go straight between VRAM and memservers: " + why +
         "; leave it out, and they go by host memory";
}

std::string DirectMemory::begin(const std::shared_ptr<LowerTier>& tier) {
  std::string why = tier->whyNotDirect();
  if (why.empty()) why = whyNoDmaBufs(driver_, device_);
  if (!why.empty()) return why;
  flushes_ = !ordersWrites(driver_, device_);
  tier_ = tier;
  on_.store(true);
  return "";
}

bool DirectMemory::makeKnown(const VramChunk& chunk) {
  const NotKnown not_known = tryMakeKnown(chunk);
  if (not_known.why.empty()) return true;
  add(counters().rdma.refused_bytes, kPageBytes << chunk.order);
  if (!not_known.for_good)
    base::warnOnce("chunk refused",
                   "require = gpudirect: device %d: a part of the GPU's memory is not for RDMA "
                   "cards, and pages go by host memory there (counter rdma_refused_bytes): %s",
                   device_, not_known.why.c_str());
  else if (on_.exchange(false))
    base::logWarn("require = gpudirect: device %d: pages go by host memory from now on: %s",
                  device_, not_known.why.c_str());
  return false;
}

NotKnown DirectMemory::tryMakeKnown(const VramChunk& chunk) {
  const std::shared_ptr<LowerTier> tier = tier_.lock();
  if (tier == nullptr) return {"the memservers are gone", true};
  const uint64_t bytes = kPageBytes << chunk.order;
  int fd = -1;
  const CUresult result = driver_.cuMemGetHandleForAddressRange(
      &fd, chunk.alias, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS)
    return {base::format("the driver gives no dma-buf of {} MiB (CUDA error {})", bytes >> 20,
                         static_cast<int>(result)),
            result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED};
  const base::UniqueFd dma_buf(fd);
  const Status known = tier->makeKnown(chunk.bytes(), bytes, dma_buf.get());
  return {known.ok() ? "" : known.error().message};
}

void DirectMemory::letGo(const VramChunk& chunk) {
  if (const auto tier = tier_.lock(); tier != nullptr) tier->letGo(chunk.bytes());
}

}  // namespace olpager::pager
