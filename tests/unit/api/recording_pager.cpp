#include "tests/unit/api/recording_pager.h"

#include <cstring>
#include <memory>
#include <new>
#include <utility>

Record g_record;
CUresult g_enter_result = CUDA_SUCCESS;
CUresult g_driver_result = CUDA_SUCCESS;
bool g_managed = false;
void (*g_enter_throws)() = nullptr;
CUcontext g_ended = nullptr;

namespace {
bool g_use_pool = true;
}  // namespace

// --- the pager -----------------------------------------------------------------------------------
namespace olpager::pager {

struct PoolState {};

Pool::Pool(std::unique_ptr<PoolState> state)
    : Allocations(*state),
      VirtualMemory(*state),
      Streams(*state),
      ExecutorMemory(*state),
      base_(kPoolBase),
      end_(kPoolEnd),
      asks_names_(false),
      state_(std::move(state)) {}
Result<std::unique_ptr<Pool>> Pool::create(const PoolOptions&, const DriverApi&) {
  return std::unique_ptr<Pool>(new Pool(std::make_unique<PoolState>()));
}
Pool::~Pool() = default;
bool Pool::paging() const { return true; }
bool Pool::hasManaged() const { return g_managed; }
void Streams::awaitHostFunctions(const StreamKey&) { g_record.steps += 'f'; }
void Streams::awaitHostFunctionsIn(CUcontext, bool) {}
CodeLoad Streams::codeLoadBegins(CUdevice) { return CodeLoad::kPlain; }
void Streams::codeLoadEnded(CUdevice) {}
bool Streams::runs(CUdevice) { return false; }
bool Pool::mayHoldRoot(uint64_t address, uint64_t bytes) const {
  return address < kRoot + kRootBytes && bytes > 0 && (address >= kRoot || kRoot - address < bytes);
}

Access::Access(Pool& pool, const StreamKey& stream) : pool_(pool), operation_(stream) {
  g_record.stream = stream;
}
Access::~Access() = default;
void Access::addRange(uint64_t address, uint64_t bytes, Mode mode) {
  if (bytes != 0 &&
      (pool_.contains(address) || (mode != Mode::kRead && pool_.mayHoldRoot(address, bytes))))
    g_record.ranges.push_back({address, bytes, static_cast<int>(mode)});
}
void Access::addParameter(const void* bytes_at, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes_at, bytes);
  g_record.words.push_back(word);
}
bool Access::namesManaged() const { return g_managed; }
void Access::addHostSource(const void* host, uint64_t bytes, bool stable) {
  g_record.sources.push_back({host, bytes, stable});
}

}  // namespace olpager::pager

// --- the runtime ---------------------------------------------------------------------------------
olpager::api::DriverTable& recordingDriver() {
  static olpager::api::DriverTable driver;
  return driver;
}

void usePool(bool on) { g_use_pool = on; }

namespace olpager::local {

bool runsNow(const pager::StreamKey&) { return true; }

const Runtime& localRuntime() noexcept {
  static const auto pool = pager::Pool::create({}, {});
  static const Runtime with{&recordingDriver(), pool.value().get()};
  static const Runtime without{&recordingDriver(), nullptr};
  return g_use_pool ? with : without;
}

pager::StreamKey streamKey(CUstream stream, bool per_thread_default) noexcept {
  if (stream == nullptr) stream = per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  return {kContext, stream, stream == CU_STREAM_PER_THREAD ? 1u : 0u};
}

bool readableNow(const void*, uint64_t, HostRead read) noexcept { return read == HostRead::kNow; }

bool waitsInDriver(uint64_t, uint64_t, bool source, bool sync) noexcept { return sync || !source; }
void awaitStream(const pager::StreamKey&) { g_record.steps += 'w'; }

bool contextsEnded() noexcept { return g_ended != nullptr; }
CUresult endedIn(const pager::StreamKey& stream) noexcept {
  return stream.context == g_ended ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}

CUresult enter(pager::Access&, const pager::StreamKey&) {
  g_record.steps += 'e';
  if (g_enter_throws != nullptr) g_enter_throws();
  return g_enter_result;
}

void leave(pager::Access&, const pager::StreamKey&, CUresult result) {
  g_record.steps += 'l';
  g_record.left_with = result;
}

CUresult failed(const char* function, const std::exception& error) noexcept {
  g_record.failed = function;
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? CUDA_ERROR_OUT_OF_MEMORY
                                                                : CUDA_ERROR_UNKNOWN;
}

}  // namespace olpager::local
