#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "driver.h"

using namespace simgpu_test;

TEST_CASE("devices answer what the runtime asks at its start", "[device]") {
  OK(CU(cuInit)(0));
  int version = 0, count = 0;
  OK(CU(cuDriverGetVersion)(&version));
  CHECK(version == 13000);
  OK(CU(cuDeviceGetCount)(&count));
  REQUIRE(count >= 1);
  // The ids that cudart 13.0 asks for at its start, each of which has to succeed.
  std::vector<int> ids = {75,  76,  40,  16,  18,  19,  21,  77,  22,  23,  73,  74,  70,  71,
                          72,  45,  46,  24,  25,  26,  47,  48,  49,  52,  42,  43,  27,  28,
                          29,  31,  32,  33,  34,  50,  35,  41,  37,  38,  108, 39,  30,  51,
                          8,   97,  81,  12,  82,  10,  11,  1,   2,   3,   4,   5,   6,   7,
                          9,   14,  78,  79,  80,  83,  84,  85,  86,  88,  89,  90,  91,  95,
                          100, 101, 106, 109, 111, 99,  112, 113, 114, 115, 116, 117, 118, 119,
                          120, 121, 125, 129, 130, 131, 133, 134, 139, 140, 143};
  for (int id = 53; id <= 68; ++id) ids.push_back(id);
  for (int device = 0; device < count; ++device) {
    for (int id : ids) {
      int value = 0;
      INFO("attribute " << id);
      CHECK(CU(cuDeviceGetAttribute)(&value, CUdevice_attribute(id), device) == CUDA_SUCCESS);
    }
    char bus[32];
    OK(CU(cuDeviceGetPCIBusId)(bus, sizeof bus, device));
    CUdevice same = -1;
    OK(CU(cuDeviceGetByPCIBusId)(&same, bus));
    CHECK(same == device);
  }
  int value = 0;
  CHECK(CU(cuDeviceGetAttribute)(&value, CUdevice_attribute(9999), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetAttribute)(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99) ==
        CUDA_ERROR_INVALID_DEVICE);
  const char* name = nullptr;
  OK(CU(cuGetErrorName)(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
  CHECK(std::string(name) == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(CU(cuGetErrorName)(CUresult(12345), &name) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a primary context has one handle, and is active while retained", "[context]") {
  OK(CU(cuInit)(0));
  unsigned flags = 9;
  int active = 9;
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 0);
  CUcontext first = nullptr, second = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&first, 0));
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 1);
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  OK(CU(cuDevicePrimaryCtxRetain)(&second, 0));
  CHECK(first == second);
  OK(CU(cuCtxSetCurrent)(second));
  CUdeviceptr p = 0;
  OK(CU(cuMemAlloc)(&p, 1 << 20));
  OK(CU(cuDevicePrimaryCtxReset)(0));
  CHECK(CU(cuMemAlloc)(&p, 1 << 20) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(CU(cuDevicePrimaryCtxRetain)(&second, 0));
  OK(CU(cuMemAlloc)(&p, 1 << 20));
  // Contexts retained before the reset are still counted, as on hardware.
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 1);
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  CHECK(active == 0);
  CHECK(CU(cuDevicePrimaryCtxRelease)(0) == CUDA_ERROR_INVALID_CONTEXT);
  OK(CU(cuCtxSetCurrent)(nullptr));
}

TEST_CASE("contexts are stacked for each thread, and a destroyed one is found out", "[context]") {
  const Primary primary;
  CUcontext made = nullptr, current = nullptr, popped = nullptr;
  OK(CU(cuCtxCreate)(&made, nullptr, 0, 0));
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == made);
  std::thread([&] {
    CUcontext other = made;
    CHECK(CU(cuCtxGetCurrent)(&other) == CUDA_SUCCESS);
    CHECK(other == nullptr);
    CUdeviceptr p = 0;
    CHECK(CU(cuMemAlloc)(&p, 64) == CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  unsigned long long id_made = 0, id_primary = 0;
  OK(CU(cuCtxGetId)(made, &id_made));
  OK(CU(cuCtxGetId)(primary.context, &id_primary));
  CHECK(id_made != id_primary);
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, 0));
  OK(CU(cuCtxPopCurrent)(&popped));
  CHECK(popped == made);
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == primary.context);
  OK(CU(cuCtxDestroy)(made));
  CHECK(CU(cuCtxSetCurrent)(made) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxDestroy)(made) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(CU(cuStreamSynchronize)(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuCtxDestroy)(primary.context) == CUDA_ERROR_INVALID_CONTEXT);
  size_t stack = 0;
  OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 4096));
  OK(CU(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE));
  CHECK(stack == 4096);
}

TEST_CASE("functions are found by name and version", "[lookup]") {
  void* found = nullptr;
  CUdriverProcAddressQueryResult why{};
  auto get =
      function<CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>(
          "cuGetProcAddress_v2");
  OK(get("cuMemAlloc", &found, 3020, 0, &why));
  CHECK(found == dlsym(library(), "cuMemAlloc_v2"));
  OK(get("cuMemcpyHtoD", &found, 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &why));
  CHECK(found == dlsym(library(), "cuMemcpyHtoD_v2_ptds"));
  OK(get("", &found, 0, 0, &why));
  CHECK(found == nullptr);
  CHECK(why == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_CASE("what is missing says so", "[lookup]") {
  const Primary primary;
  CHECK(function<CUresult (*)(void*, void*)>("cuMulticastCreate")(nullptr, nullptr) ==
        CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a forked child gets an error, not a hang", "[fork]") {
  const Primary primary;
  CUdeviceptr p = 0;
  OK(CU(cuMemAlloc)(&p, 1 << 20));
  OK(CU(cuMemsetD8)(p, 1, 1 << 20));
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    const bool refused = CU(cuMemcpyDtoH)(&byte, p, 1) == CUDA_ERROR_NOT_INITIALIZED &&
                         CU(cuInit)(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         CU(cuCtxSynchronize)() == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  char byte = 0;
  OK(CU(cuMemcpyDtoH)(&byte, p, 1));
  CHECK(byte == 1);
  OK(CU(cuMemFree)(p));
}

TEST_CASE("peers see each other's memory once it is enabled", "[peers]") {
  OK(CU(cuInit)(0));
  int count = 0;
  OK(CU(cuDeviceGetCount)(&count));
  if (count < 2) return;
  const Primary first(0);
  CUcontext second = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&second, 1));
  int can = 0;
  OK(CU(cuDeviceCanAccessPeer)(&can, 0, 1));
  CHECK(can == 1);
  CUdeviceptr near = 0, far = 0;
  OK(CU(cuMemAlloc)(&near, 4096));
  OK(CU(cuMemsetD32)(near, 0x1234567, 1024));
  OK(CU(cuCtxPushCurrent)(second));
  OK(CU(cuMemAlloc)(&far, 4096));
  OK(CU(cuMemcpyPeer)(far, second, near, first.context, 4096));
  uint32_t word = 0;
  OK(CU(cuMemcpyDtoH)(&word, far + 4092, 4));
  CHECK(word == 0x1234567);
  OK(CU(cuCtxEnablePeerAccess)(first.context, 0));
  CHECK(CU(cuCtxEnablePeerAccess)(first.context, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  OK(CU(cuCtxDisablePeerAccess)(first.context));
  CHECK(CU(cuCtxDisablePeerAccess)(first.context) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  OK(CU(cuCtxPopCurrent)(nullptr));
  OK(CU(cuDevicePrimaryCtxRelease)(1));
}
