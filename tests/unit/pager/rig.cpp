#include "tests/unit/pager/rig.h"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include "base/sanitizer.h"

namespace olpager::pager::test {

namespace {

// Each rig has a range of its own: one that was stopped leaves its mappings behind. ThreadSanitizer
// keeps other addresses for itself, and what it leaves has to do for all rigs.
constexpr uint64_t kTestVaBase = base::kThreadSanitizer ? 0x0001'0000'0000 : 0x2a5d'0000'0000;
constexpr uint64_t kTestVaSize = base::kThreadSanitizer ? 7ull << 29 : 8ull << 30;
constexpr uint64_t kMostRigs = base::kThreadSanitizer ? 144 : 512;
uint64_t rigs_made = 0;

std::string kernelsText() {
  std::ifstream in(KERNELS_PTX);
  std::string text(std::istreambuf_iterator<char>(in), {});
  REQUIRE_FALSE(text.empty());
  return text;
}

}  // namespace

Driver& driver() {
  static Driver* instance = [] {
    auto* made = new Driver;
    const char* path = std::getenv("OL_TEST_LIBCUDA");
    void* handle =
        dlopen(path != nullptr && *path != 0 ? path : SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "no driver to test with: %s\n", dlerror());
      std::exit(2);
    }
    const char* missing =
        loadDriverApi(made->api, [&](const char* name) { return dlsym(handle, name); });
#define OLPAGER_LOAD(name)                                                   \
  made->name = reinterpret_cast<decltype(made->name)>(dlsym(handle, #name)); \
  if (made->name == nullptr) missing = #name;
    OLPAGER_TEST_FUNCTIONS(OLPAGER_LOAD)
#undef OLPAGER_LOAD
    if (missing != nullptr || made->cuInit(0) != CUDA_SUCCESS) {
      std::fprintf(stderr, "the driver can't be used: %s\n",
                   missing != nullptr ? missing : "cuInit");
      std::exit(2);
    }
    return made;
  }();
  return *instance;
}

struct Watchdog::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
};

Watchdog::Watchdog(unsigned seconds) : state_(std::make_shared<State>()) {
  seconds *= kPatience;
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  std::thread([state = state_, name, seconds] {
    std::unique_lock lock(state->mutex);
    if (state->changed.wait_for(lock, std::chrono::seconds(seconds), [&] { return state->over; }))
      return;
    std::fprintf(stderr, "HANGS: \"%s\" has not ended after %u s\n", name.c_str(), seconds);
    std::fflush(nullptr);
    std::abort();
  }).detach();
}

Watchdog::~Watchdog() {
  std::lock_guard lock(state_->mutex);
  state_->over = true;
  state_->changed.notify_all();
}

bool inTestRange(CUdeviceptr address) { return address - kTestVaBase < kMostRigs * kTestVaSize; }

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void holdUntil(const std::atomic<bool>& open, CUstream stream) {
  const auto wait = [](void* flag) {
    while (!static_cast<const std::atomic<bool>*>(flag)->load())
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  };
  mustSucceed(driver().cuLaunchHostFunc(stream, wait, const_cast<std::atomic<bool>*>(&open)),
              "cuLaunchHostFunc");
}

uint64_t seedOr(uint64_t fallback) {
  const char* given = std::getenv("OL_TEST_SEED");
  const uint64_t seed =
      given != nullptr && *given != 0 ? std::strtoull(given, nullptr, 0) : fallback;
  std::printf("seed %llu (OL_TEST_SEED repeats it)\n", static_cast<unsigned long long>(seed));
  return seed;
}

Rig::Rig(const RigOptions& options) : watchdog_(options.seconds), options_(options) {
  Driver& gpu = driver();
  CUdevice device = 0;
  REQUIRE(gpu.cuDeviceGet(&device, 0) == CUDA_SUCCESS);
  REQUIRE(gpu.cuCtxCreate_v4(&context_, nullptr, 0, device) == CUDA_SUCCESS);
  REQUIRE(gpu.api.cuModuleLoadData(&module_, kernelsText().c_str()) == CUDA_SUCCESS);
  PoolOptions given;
  REQUIRE(rigs_made < kMostRigs);
  given.va_base = kTestVaBase + rigs_made++ * kTestVaSize;
  given.va_size = kTestVaSize;
  given.vram.bytes = options.vram;
  given.host.bytes = options.host;
  given.reach = options.reach;
  given.report = options.report;
  given.packing = options.packing;
  given.stream_arenas = options.stream_arenas;
  given.waits = options.waits;
  given.lower = options.remote;
  given.require_direct = options.require_direct;
  DriverApi api = gpu.api;
  if (options.alter != nullptr) options.alter(api);
  auto pool = Pool::create(given, api);
  if (!pool.ok()) FAIL(pool.error().message);
  pool_ = std::move(pool).value();
}

void Rig::end() {
  if (context_ == nullptr) return;
  pool_->contextGone(context_);
  driver().cuCtxDestroy_v2(context_);
  context_ = nullptr;
}

Rig::~Rig() { end(); }

std::string Rig::image() { return kernelsText(); }

CUfunction Rig::kernel(const char* name) {
  CUfunction function = nullptr;
  if (driver().api.cuModuleGetFunction(&function, module_, name) != CUDA_SUCCESS)
    FAIL("no kernel " << name);
  return function;
}

void Rig::enterThread() { driver().cuCtxSetCurrent(context_); }

CUstream Rig::makeStream() {
  CUstream stream = nullptr;
  mustSucceed(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

CUdeviceptr Rig::allocate(uint64_t bytes) {
  CUdeviceptr address = 0;
  mustSucceed(tryAllocate(bytes, &address), "allocate");
  if (!pool_->contains(address)) FAIL("an allocation outside of its pool");
  return address;
}

CUresult Rig::copyIn(CUstream stream, CUdeviceptr to, const void* from, uint64_t bytes,
                     bool stable) {
  Access access(*pool_, key(stream));
  access.addRange(to, bytes, Mode::kWrite);
  access.addHostSource(from, bytes, stable);
  if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
  const CUresult result = driver().api.cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
  access.submitted(result);
  return result;
}

CUresult Rig::copyOut(CUstream stream, void* to, CUdeviceptr from, uint64_t bytes) {
  Access access(*pool_, key(stream));
  access.addRange(from, bytes, Mode::kRead);
  if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
  const CUresult result = driver().api.cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  access.submitted(result);
  return result;
}

CUresult Rig::copyWithin(CUstream stream, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  Access access(*pool_, key(stream));
  access.addRange(from, bytes, Mode::kRead);
  access.addRange(to, bytes, Mode::kWrite);
  if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
  const CUresult result = driver().api.cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
  access.submitted(result);
  return result;
}

CUresult Rig::zero(CUstream stream, CUdeviceptr at, uint64_t bytes) {
  Access access(*pool_, key(stream));
  access.addRange(at, bytes, Mode::kWrite);
  if (const CUresult result = access.acquire(); result != CUDA_SUCCESS) return result;
  const CUresult result = driver().api.cuMemsetD8Async(at, 0, bytes, stream);
  access.submitted(result);
  return result;
}

void Rig::put(CUdeviceptr at, uint64_t value) {
  mustSucceed(copyIn(CU_STREAM_LEGACY, at, &value, sizeof(value), true), "copyIn");
  mustSucceed(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize");
}

uint64_t Rig::get(CUdeviceptr at) {
  uint64_t value = 0;
  mustSucceed(copyOut(CU_STREAM_LEGACY, &value, at, sizeof(value)), "copyOut");
  mustSucceed(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize");
  return value;
}

void Rig::fill(CUdeviceptr at, uint64_t bytes, uint64_t seed, CUstream stream) {
  launch(stream, "fill", at, bytes / 8 / kStep, kStep, seed);
}

bool Rig::holds(CUdeviceptr at, uint64_t bytes, uint64_t seed, uint64_t added) {
  bool holds = false;
  mustSucceed(tryHolds(at, bytes, seed, added, &holds), "copyOut");
  return holds;
}
CUresult Rig::tryHolds(CUdeviceptr at, uint64_t bytes, uint64_t seed, uint64_t added, bool* holds) {
  *holds = false;
  std::vector<uint64_t> words(bytes / 8);
  if (const CUresult result = copyOut(CU_STREAM_LEGACY, words.data(), at, bytes);
      result != CUDA_SUCCESS)
    return result;
  mustSucceed(driver().api.cuStreamSynchronize(CU_STREAM_LEGACY), "cuStreamSynchronize");
  for (uint64_t i = 0; i < bytes / 8 / kStep; ++i) {
    if (words[i * kStep] == mix(seed + i) + added) continue;
    UNSCOPED_INFO("word " << i * kStep << " of 0x" << std::hex << at << " is " << words[i * kStep]);
    return CUDA_SUCCESS;
  }
  *holds = true;
  return CUDA_SUCCESS;
}

void Rig::press() {
  if (pressure_.empty())
    for (uint64_t bytes = 0; bytes < options_.vram; bytes += 2 * kMiB)
      pressure_.push_back(allocate(2 * kMiB));
  for (const CUdeviceptr address : pressure_) fill(address, 2 * kMiB, address);
  synchronize();
}

}  // namespace olpager::pager::test
