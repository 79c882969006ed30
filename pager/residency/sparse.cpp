#include "pager/residency/sparse.h"

#include "pager/pool.h"
#include "pager/space/region.h"

namespace olpager::pager {

namespace {
constexpr uint8_t kBelievedFast = 4, kBelievedSlow = 3, kBelievedSlowInPlace = 4, kMostSamples = 16;
// The fastest link in use (PCIe 5.0 x16 moves less): what is faster in place than half a fetch over
// it, is so over any.
constexpr uint64_t kLinkBytesPerSecond = 64'000'000'000;

uint64_t nsToMove(uint64_t bytes, uint64_t bytes_per_second) {
  return static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 /
                               static_cast<double>(bytes_per_second));
}
}  // namespace

bool judge(DensityRecord& record, uint64_t bytes, uint64_t ns, bool in_place,
           uint64_t vram_bytes_per_second) {
  const Density before = record.verdict;
  const uint64_t limit =
      nsToMove(bytes, in_place ? kLinkBytesPerSecond : vram_bytes_per_second) / 2;
  const bool fast = ns < limit;
  record.fast = fast ? static_cast<uint8_t>(record.fast + 1) : 0;
  record.slow = fast ? 0 : static_cast<uint8_t>(record.slow + 1);
  switch (record.verdict) {
    case Density::kUnknown:
      ++record.samples;
      if (record.fast >= kBelievedFast) {
        record = {Density::kSparse};
      } else if (record.slow >= kBelievedSlow || record.samples >= kMostSamples) {
        record = {Density::kDense};
      }
      break;
    case Density::kSparse:
      if (record.slow >= kBelievedSlowInPlace) record = {Density::kDense};
      if (record.fast > kBelievedFast) record.fast = kBelievedFast;
      break;
    case Density::kDense:
      break;
  }
  return record.verdict != before;
}

uint64_t vramBandwidth(const DriverApi& driver, CUdevice device) {
  int khz = 0, bits = 0;
  if (driver.cuDeviceGetAttribute(&khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device) !=
          CUDA_SUCCESS ||
      driver.cuDeviceGetAttribute(&bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device) !=
          CUDA_SUCCESS ||
      khz <= 0 || bits <= 0)
    return 1'000'000'000'000;
  return 2ull * static_cast<uint64_t>(khz) * 1000 * static_cast<uint64_t>(bits) /
         8;  // two transfers a clock
}

void TimedLaunch::begin(const DriverApi& driver, const StreamKey& stream) {
  const InContext current(driver, stream.context);
  for (CUevent* event : {&start, &end})
    if (*event == nullptr && driver.cuEventCreate(event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
      *event = nullptr;
  recorded = start != nullptr && end != nullptr &&
             driver.cuEventRecord(start, stream.stream) == CUDA_SUCCESS;
}

void TimedLaunch::finish(const DriverApi& driver, CUstream stream) {
  recorded = recorded && driver.cuEventRecord(end, stream) == CUDA_SUCCESS;
  // The launch was of another context of the device than the events: the next one gets events of
  // its own.
  if (!recorded) dropEvents(driver);
  state.store(State::kDone, std::memory_order_release);
}

void TimedLaunch::dropEvents(const DriverApi& driver) {
  for (CUevent* event : {&start, &end}) {
    if (*event != nullptr) driver.cuEventDestroy_v2(*event);
    *event = nullptr;
  }
}

TimedLaunch* LaunchTimer::take(Region& region, bool in_place) {
  for (TimedLaunch& launch : launches_) {
    if (launch.state.load(std::memory_order_acquire) != TimedLaunch::State::kFree) continue;
    launch.region = &region;
    launch.buffer_id = region.buffer_id;
    launch.tensor = launch.bytes = 0;
    launch.in_place = in_place;
    launch.state.store(TimedLaunch::State::kTaken, std::memory_order_relaxed);
    return &launch;
  }
  return nullptr;
}

// False while it is under way.
bool LaunchTimer::elapsed(const DriverApi& driver, const TimedLaunch& launch, uint64_t* ns,
                          bool* known) {
  if (!launch.recorded) return true;
  float milliseconds = 0;
  const CUresult result = driver.cuEventElapsedTime_v2(&milliseconds, launch.start, launch.end);
  if (result == CUDA_ERROR_NOT_READY) return false;
  *known = result == CUDA_SUCCESS;
  *ns = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
  return true;
}

bool LaunchTimer::busy() const {
  for (const TimedLaunch& launch : launches_)
    if (launch.state.load(std::memory_order_relaxed) == TimedLaunch::State::kDone) return true;
  return false;
}

void LaunchTimer::drop(const DriverApi& driver) {
  for (TimedLaunch& launch : launches_) {
    // One that is taken is of a launch being made in a context that is being destroyed: its thread
    // sees the errors.
    if (launch.state.load(std::memory_order_acquire) == TimedLaunch::State::kTaken) continue;
    launch.dropEvents(driver);
    launch.state.store(TimedLaunch::State::kFree, std::memory_order_release);
  }
}

}  // namespace olpager::pager
