// A program for the interposer's tests: it opens libcuda.so.1 as any program does and calls the
// driver API. usage: host TEST [argument]; exit 0 and "ok" when the test holds.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what, int line) {
  fprintf(stderr, "host.cpp:%d: %s\n", line, what);
  _exit(1);
}
#define CHECK(condition) \
  if (!(condition)) fail(#condition, __LINE__)

void* g_cuda = nullptr;

template <typename F>
F* symbol(const char* name) {
  void* found = dlsym(g_cuda, name);
  if (found == nullptr) fail(name, __LINE__);
  return reinterpret_cast<F*>(found);
}
#define CU(name) symbol<decltype(name)>(#name)

// The driver under the interposer.
const char* fakeDriver() {
  const char* found = getenv("FAKE_DRIVER");
  return found != nullptr ? found : getenv("OL_DRIVER");
}

// The driver under the interposer, to ask it what it was called with.
unsigned calls(const char* name) {
  static void* fake = dlopen(fakeDriver(), RTLD_NOW | RTLD_NOLOAD);
  CHECK(fake != nullptr);
  return reinterpret_cast<unsigned (*)(const char*)>(dlsym(fake, "fakeCalls"))(name);
}

CUcontext start() {
  CHECK(CU(cuInit)(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  CHECK(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS);
  CHECK(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
  return context;
}

CUfunction function(const char* name) {
  CUmodule module = nullptr;
  CUfunction found = nullptr;
  CHECK(CU(cuModuleLoadData)(&module, ".version 7.0\n.target sm_75\n.address_size 64\n") ==
        CUDA_SUCCESS);
  CHECK(CU(cuModuleGetFunction)(&found, module, name) == CUDA_SUCCESS);
  return found;
}

constexpr size_t kBytes = 4 << 20;
constexpr uint64_t kBase = 0x2a5d00000000;

// Allocation, copies, a launch: results come back, and the driver never allocates for the program.
// `alone`: no other thread allocates, so that a freed address stays free.
void basic(bool alone = true) {
  start();
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  CUdeviceptr c = 0;
  CHECK(CU(cuMemAlloc_v2)(&a, kBytes) == CUDA_SUCCESS);
  CHECK(CU(cuMemAlloc_v2)(&b, kBytes) == CUDA_SUCCESS);
  CHECK(CU(cuMemAlloc_v2)(&c, 1000) == CUDA_SUCCESS);
  CHECK(a >= kBase && a < kBase + (uint64_t{16} << 40));
  std::vector<uint32_t> in(250, 5);
  std::vector<uint32_t> out(250);
  CHECK(CU(cuMemcpyHtoD_v2)(a, in.data(), 1000) == CUDA_SUCCESS);
  CHECK(CU(cuMemsetD32_v2)(b, 7, 250) == CUDA_SUCCESS);
  uint64_t n = 250;
  void* parameters[] = {&a, &b, &c, &n};
  CHECK(CU(cuLaunchKernel)(function("add"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr) ==
        CUDA_SUCCESS);
  CHECK(CU(cuMemcpyDtoH_v2)(out.data(), c, 1000) == CUDA_SUCCESS);
  for (uint32_t value : out) CHECK(value == 12);
  CHECK(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
  if (alone) CHECK(CU(cuMemFree_v2)(a) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemFree_v2)(b + 16) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemFree_v2)(b) == CUDA_SUCCESS);
  CHECK(CU(cuMemFree_v2)(c) == CUDA_SUCCESS);
  CHECK(calls("cuMemFree_v2") == 0);
}

// Questions about an address are answered from the tables.
void questions() {
  CUcontext context = start();
  CUdeviceptr a = 0;
  CHECK(CU(cuMemAlloc_v2)(&a, 3000) == CUDA_SUCCESS);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(CU(cuMemGetAddressRange_v2)(&base, &bytes, a + 100) == CUDA_SUCCESS);
  CHECK(base == a && bytes == 3000);
  CUcontext of = nullptr;
  CHECK(CU(cuPointerGetAttribute)(&of, CU_POINTER_ATTRIBUTE_CONTEXT, a) == CUDA_SUCCESS);
  CHECK(of == context);
  unsigned type = 0;
  CHECK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a + 5) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  void* host = nullptr;
  CHECK(CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, a) ==
        CUDA_ERROR_INVALID_VALUE);
  int ordinal = 7;
  int managed = 7;
  CUpointer_attribute list[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* answers[] = {&ordinal, &managed, &host};
  host = &host;
  CHECK(CU(cuPointerGetAttributes)(3, list, answers, a) == CUDA_SUCCESS);
  CHECK(ordinal == 0 && managed == 0 && host == nullptr);
  // Inside the range but of no allocation: nothing is known, and the driver is not asked.
  CHECK(CU(cuPointerGetAttributes)(3, list, answers, kBase + (uint64_t{8} << 40)) == CUDA_SUCCESS);
  CHECK(ordinal == -2);
  CHECK(calls("cuPointerGetAttribute") == 0 && calls("cuPointerGetAttributes") == 0);
  size_t free_bytes = 0;
  size_t total = 0;
  CHECK(CU(cuMemGetInfo_v2)(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(free_bytes <= total && total > 0);
}

// Names lead to the same function whichever way they are asked for, and to per-thread forms where
// those are wanted.
void lookup() {
  start();
  void* by_name = dlsym(g_cuda, "cuMemAlloc_v2");
  CUdriverProcAddressQueryResult status{};
  void* by_version = nullptr;
  CHECK(CU(cuGetProcAddress_v2)("cuMemAlloc", &by_version, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && by_version != nullptr);
  CUdeviceptr a = 0;
  CHECK(reinterpret_cast<decltype(cuMemAlloc_v2)*>(by_version)(&a, 64) == CUDA_SUCCESS);
  CHECK(a >= kBase);
  CHECK(reinterpret_cast<decltype(cuMemAlloc_v2)*>(by_name)(&a, 64) == CUDA_SUCCESS);
  CHECK(a >= kBase);
  void* missing = &missing;
  CHECK(CU(cuGetProcAddress_v2)("cuNoSuchThing", &missing, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(missing == nullptr && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(CU(cuGetProcAddress_v2)("", &missing, 0, 0, &status) == CUDA_SUCCESS);
  CHECK(missing == nullptr);
  // The driver has no such function, so neither have we.
  CHECK(CU(cuGetProcAddress_v2)("cuMemAllocManaged", &missing, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(missing == nullptr);
}

// A forked child has no pager and no CUDA; its parent goes on.
void forks() {
  start();
  CUdeviceptr a = 0;
  CHECK(CU(cuMemAlloc_v2)(&a, kBytes) == CUDA_SUCCESS);
  CHECK(CU(cuMemsetD32_v2)(a, 1, 10) == CUDA_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr b = 0;
    if (CU(cuMemAlloc_v2)(&b, 100) != CUDA_ERROR_NOT_INITIALIZED) _exit(2);
    if (CU(cuInit)(0) != CUDA_ERROR_NOT_INITIALIZED) _exit(3);
    if (CU(cuMemFree_v2)(a) != CUDA_ERROR_NOT_INITIALIZED) _exit(4);
    exit(0);  // destructors and exit handlers run
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  uint32_t value = 0;
  CHECK(CU(cuMemcpyDtoH_v2)(&value, a, 4) == CUDA_SUCCESS);
  CHECK(value == 1);
  // A program that a child becomes starts afresh.
  const pid_t second = fork();
  if (second == 0) {
    execl("/proc/self/exe", "host", "basic", nullptr);
    _exit(9);
  }
  CHECK(waitpid(second, &status, 0) == second);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// A child that is forked before CUDA starts may use it.
void fork_first() {
  const pid_t child = fork();
  if (child == 0) {
    basic();
    exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  basic();
}

struct Late {
  CUdeviceptr memory = 0;
  bool active = false;
  ~Late() {
    if (!active) return;
    CHECK(CU(cuMemsetD32_v2)(memory, 3, 4) == CUDA_SUCCESS);
    CHECK(CU(cuMemFree_v2)(memory) == CUDA_SUCCESS);
    CHECK(CU(cuDevicePrimaryCtxRelease_v2)(0) == CUDA_SUCCESS);
    puts("late ok");
  }
};
Late g_late;  // made before CUDA is opened, destroyed after all of its exit handlers

void destructors() {
  start();
  CHECK(CU(cuMemAlloc_v2)(&g_late.memory, kBytes) == CUDA_SUCCESS);
  g_late.active = true;
}

// Every way to open libcuda leads to the same library.
void opening(const char* absolute) {
  void* expected = dlsym(g_cuda, "cuInit");
  for (const char* name : {"libcuda.so.1", "libcuda.so", absolute}) {
    for (int flags : {RTLD_NOW, RTLD_LAZY | RTLD_GLOBAL, RTLD_NOW | RTLD_DEEPBIND}) {
      void* handle = dlopen(name, flags);
      CHECK(handle != nullptr);
      CHECK(dlsym(handle, "cuInit") == expected);
    }
    void* apart = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
    CHECK(apart != nullptr);
    CHECK(dlsym(apart, "cuInit") == expected);
  }
  CHECK(dlopen("/nonexistent/libother.so", RTLD_NOW) == nullptr);
  CHECK(strstr(dlerror(), "libother") != nullptr);
  CHECK(dlopen(nullptr, RTLD_NOW) != nullptr);
  basic();
}

// cuInit says so; everything before and after it fails softly.
void refused(const char* expected) {
  CUdeviceptr a = 0;
  CHECK(CU(cuInit)(0) == static_cast<CUresult>(atoi(expected)));
  CHECK(CU(cuInit)(0) == static_cast<CUresult>(atoi(expected)));
  int version = 0;
  CHECK(CU(cuDriverGetVersion)(&version) == CUDA_SUCCESS && version >= 12040);
  CUcontext context = nullptr;
  if (CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS)
    return;  // the driver itself is there
  CHECK(CU(cuMemAlloc_v2)(&a, 100) != CUDA_SUCCESS);
}

// A capture's memory is what its graph's launches make resident; memory allocated in it lives as
// long as the graph.
void graphs() {
  start();
  CUstream stream = nullptr;
  CUdeviceptr a = 0;
  CUdeviceptr inside = 0;
  CHECK(CU(cuStreamCreate)(&stream, 0) == CUDA_SUCCESS);
  CHECK(CU(cuMemAlloc_v2)(&a, kBytes) == CUDA_SUCCESS);
  CUfunction fill = function("fill");
  CHECK(CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(CU(cuMemAllocAsync)(&inside, kBytes, stream) == CUDA_SUCCESS);
  uint64_t n = 16;
  uint32_t value = 9;
  void* parameters[] = {&a, &n, &value};
  CHECK(CU(cuLaunchKernel)(fill, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) == CUDA_SUCCESS);
  CHECK(CU(cuMemFreeAsync)(inside, stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CHECK(CU(cuStreamEndCapture)(stream, &graph) == CUDA_SUCCESS);
  CHECK(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS);
  CHECK(CU(cuGraphLaunch)(exec, stream) == CUDA_SUCCESS);
  CUdeviceptr base = 0;
  CHECK(CU(cuMemGetAddressRange_v2)(&base, nullptr, inside) == CUDA_SUCCESS && base == inside);
  CHECK(CU(cuGraphDestroy)(graph) == CUDA_SUCCESS);
  CHECK(CU(cuMemGetAddressRange_v2)(&base, nullptr, inside) == CUDA_SUCCESS && base == inside);
  CHECK(CU(cuGraphExecDestroy)(exec) == CUDA_SUCCESS);
  CHECK(CU(cuMemGetAddressRange_v2)(&base, nullptr, inside) == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuStreamDestroy_v2)(stream) == CUDA_SUCCESS);
  CHECK(CU(cuMemFree_v2)(a) == CUDA_SUCCESS);
}

// All threads at once through first use; then allocate, launch and free.
void threads() {
  std::vector<std::thread> all;
  all.reserve(8);
  for (int i = 0; i < 8; ++i) {
    all.emplace_back([] {
      for (int round = 0; round < 20; ++round) basic(false);
    });
  }
  for (std::thread& thread : all) thread.join();
}

// The cost of a launch beyond the driver's, in nanoseconds: printed, and bounded loosely (the bound
// is olbench's).
void cost() {
  start();
  CUfunction eight = function("eight");
  CUdeviceptr addresses[8];
  void* parameters[8];
  for (int i = 0; i < 8; ++i) {
    CHECK(CU(cuMemAlloc_v2)(&addresses[i], 2 << 20) == CUDA_SUCCESS);
    parameters[i] = &addresses[i];
  }
  auto* ours = CU(cuLaunchKernel);
  static void* fake = dlopen(fakeDriver(), RTLD_NOW | RTLD_NOLOAD);
  auto* theirs = reinterpret_cast<decltype(cuLaunchKernel)*>(dlsym(fake, "cuLaunchKernel"));
  // Between two launches a program does other things, and so does the driver: what is then read and
  // written here lies over the first-level cache.
  std::vector<uint64_t> others(16 << 10);
  constexpr int kLaunches = 20000;
  const auto spent = [] {  // by this thread: others take the processor now and then
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
  };
  const auto measure = [&](decltype(cuLaunchKernel)* launch, bool busy) {
    const double begin = spent();
    for (int i = 0; i < kLaunches; ++i) {
      for (size_t k = 0; busy && k < others.size(); k += 8) ++others[k];
      (void)launch(eight, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    }
    return (spent() - begin) / kLaunches;
  };
  measure(ours, false);
  for (const bool busy : {false, true}) {
    double with = 1e9, without = 1e9;
    for (int round = 0; round < 20; ++round) {  // in turns
      with = std::min(with, measure(ours, busy));
      without = std::min(without, measure(theirs, busy));
    }
    printf("launch with 8 pointers%s: %.0f ns, the driver's own %.0f ns, added %.0f ns\n",
           busy ? ", beside other work" : "", with, without, with - without);
    CHECK(with - without < 2000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string test = argc > 1 ? argv[1] : "";
  g_cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_cuda == nullptr) fail(dlerror(), __LINE__);
  if (test == "basic")
    basic();
  else if (test == "questions")
    questions();
  else if (test == "lookup")
    lookup();
  else if (test == "fork")
    forks();
  else if (test == "fork_first")
    fork_first();
  else if (test == "destructors")
    destructors();
  else if (test == "opening")
    opening(argv[2]);
  else if (test == "refused")
    refused(argv[2]);
  else if (test == "graphs")
    graphs();
  else if (test == "threads")
    threads();
  else if (test == "cost")
    cost();
  else
    fail("which test?", __LINE__);
  puts("ok");
  return 0;
}
