// Times that the simulated GPU takes because it is told to: of its link, of calls that map, and
// what events tell of them. A busy machine makes all of it longer, never shorter.
#include <sys/mman.h>

#include <array>
#include <chrono>

#include "driver.h"

using namespace simgpu_test;

namespace {

double setting(const char* name) {
  const char* const value = std::getenv(name);
  REQUIRE(value != nullptr);
  return std::strtod(value, nullptr);
}

template <typename Work>
double secondsOf(Work&& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

constexpr size_t kBytes = 2 * kPage;

/// A host chunk, mapped for CPU and device.
struct HostChunk {
  CUdeviceptr at = 0;
  HostChunk() {
    const auto prop = chunkOf(CU_MEM_LOCATION_TYPE_HOST);
    CUmemGenericAllocationHandle handle = 0;
    OK(CU(cuMemCreate)(&handle, kBytes, &prop, 0));
    OK(CU(cuMemAddressReserve)(&at, kBytes, 0, 0, 0));
    OK(CU(cuMemMap)(at, kBytes, 0, handle, 0));
    const std::array access = {accessFor(CU_MEM_LOCATION_TYPE_DEVICE),
                               accessFor(CU_MEM_LOCATION_TYPE_HOST)};
    OK(CU(cuMemSetAccess)(at, kBytes, access.data(), access.size()));
    OK(CU(cuMemRelease)(handle));
  }
  ~HostChunk() {
    CU(cuMemUnmap)(at, kBytes);
    CU(cuMemAddressFree)(at, kBytes);
  }
  HostChunk(const HostChunk&) = delete;
  HostChunk& operator=(const HostChunk&) = delete;
};

}  // namespace

TEST_CASE("whatever host memory a copy is of, it takes the link's time", "[.link]") {
  const Primary primary;
  const double least = static_cast<double>(kBytes) / (setting("OL_SIM_BANDWIDTH") * 1e9);
  CUdeviceptr device = 0, managed = 0;
  OK(CU(cuMemAlloc)(&device, kBytes));
  OK(CU(cuMemAllocManaged)(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
  const HostChunk chunk;
  std::vector<uint8_t> pageable(kBytes);
  void *pinned = nullptr, *registered = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, kBytes, 0));
  registered = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(registered != MAP_FAILED);
  OK(CU(cuMemHostRegister)(registered, kBytes, 0));
  const auto look = [&](const char* what, uint64_t host) {
    INFO(what);
    void* const memory = reinterpret_cast<void*>(host);
    const auto takes = [&](CUresult copied) {  // some return before they are done
      OK(copied);
      OK(CU(cuCtxSynchronize)());
    };
    CHECK(secondsOf([&] { takes(CU(cuMemcpyHtoD)(device, memory, kBytes)); }) >= least);
    CHECK(secondsOf([&] { takes(CU(cuMemcpyDtoH)(memory, device, kBytes)); }) >= least);
    CHECK(secondsOf([&] { takes(CU(cuMemcpy)(device, host, kBytes)); }) >= least);
  };
  look("pageable", reinterpret_cast<uint64_t>(pageable.data()));
  look("pinned", reinterpret_cast<uint64_t>(pinned));
  look("registered", reinterpret_cast<uint64_t>(registered));
  look("managed", managed);
  look("host chunk", chunk.at);
  OK(CU(cuMemHostUnregister)(registered));
  munmap(registered, kBytes);
  OK(CU(cuMemFreeHost)(pinned));
  OK(CU(cuMemFree)(managed));
  OK(CU(cuMemFree)(device));
}

TEST_CASE("copies of several streams share the link", "[.link]") {
  const Primary primary;
  constexpr size_t kStreams = 4;
  const double least = kStreams * static_cast<double>(kBytes) / (setting("OL_SIM_BANDWIDTH") * 1e9);
  const HostChunk chunk;
  std::array<CUstream, kStreams> streams{};
  std::array<CUdeviceptr, kStreams> memory{};
  for (size_t i = 0; i < kStreams; ++i) {
    OK(CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
    OK(CU(cuMemAlloc)(&memory[i], kBytes));
  }
  const auto all = [&](auto&& copy) {
    return secondsOf([&] {
      for (size_t i = 0; i < kStreams; ++i) OK(copy(memory[i], streams[i]));
      OK(CU(cuCtxSynchronize)());
    });
  };
  void* const host = reinterpret_cast<void*>(chunk.at);
  CHECK(all([&](CUdeviceptr to, CUstream stream) {
          return CU(cuMemcpyHtoDAsync)(to, host, kBytes, stream);
        }) >= least);
  CHECK(all([&](CUdeviceptr from, CUstream stream) {
          return CU(cuMemcpyDtoHAsync)(host, from, kBytes, stream);
        }) >= least);
  for (size_t i = 0; i < kStreams; ++i) {
    OK(CU(cuStreamDestroy)(streams[i]));
    OK(CU(cuMemFree)(memory[i]));
  }
}

TEST_CASE("calls that map take their time", "[.link]") {
  const Primary primary;
  const double call = setting("OL_SIM_MAPPING") * 1e-6;
  // cuMemMap and cuMemSetAccess; cuMemUnmap.
  CHECK(secondsOf([] { const HostChunk chunk; }) >= 3 * call);
}

TEST_CASE("events tell the time of a faster GPU", "[.link]") {
  const Primary primary;
  const double speed = setting("OL_SIM_SPEED");
  const double least = static_cast<double>(kBytes) / (setting("OL_SIM_BANDWIDTH") * 1e9);
  CUdeviceptr device = 0;
  CUevent start = nullptr, end = nullptr;
  OK(CU(cuMemAlloc)(&device, kBytes));
  OK(CU(cuEventCreate)(&start, 0));
  OK(CU(cuEventCreate)(&end, 0));
  std::vector<uint8_t> pageable(kBytes);
  const double took = secondsOf([&] {
    OK(CU(cuEventRecord)(start, nullptr));
    OK(CU(cuMemcpyHtoD)(device, pageable.data(), kBytes));
    OK(CU(cuEventRecord)(end, nullptr));
    OK(CU(cuEventSynchronize)(end));
  });
  float milliseconds = 0;
  OK(CU(cuEventElapsedTime)(&milliseconds, start, end));
  constexpr double kRounded = 1e-6;  // a float's
  CHECK(milliseconds * speed / 1000 >= least * (1 - kRounded));
  CHECK(milliseconds * speed / 1000 <= took * (1 + kRounded));
  OK(CU(cuEventDestroy)(start));
  OK(CU(cuEventDestroy)(end));
  OK(CU(cuMemFree)(device));
}
