// Functions by the versions of older toolkits, as programs get them that were built with these:
// shorter structures, fewer arguments, 32 bits for lengths; and the variants for the per-thread
// default stream. Behind what they write lies something that stays as it is.
#include "driver_program.h"

namespace {

constexpr unsigned kCount = 256, kRow = 64;

template <typename Function>
Function* lookUp(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult why{};
  DRIVER_OK(cuGetProcAddress(name, &found, version, flags, &why));
  CHECK(found != nullptr, "%s of version %d: no function (%d)", name, version, int(why));
  return reinterpret_cast<Function*>(found);
}

template <typename T>
struct Guarded {
  T value{};
  uint64_t guard[2] = {0x5555555555555555, 0x5555555555555555};
  void check(const char* what) const {
    CHECK(guard[0] == 0x5555555555555555 && guard[1] == guard[0],
          "%s: what lies behind its result was written", what);
  }
};

void expect(CUdeviceptr words, uint32_t value, const char* what) {
  std::vector<uint32_t> host(kCount);
  DRIVER_OK(cuCtxSynchronize());
  DRIVER_OK(cuMemcpyDtoH(host.data(), words, kCount * 4));
  for (unsigned i = 0; i < kCount; ++i)
    CHECK(host[i] == value, "%s: word %u is %u, not %u", what, i, host[i], value);
}

// CUDA 10 and 11: parameters of kernel nodes without a kernel and a context, which are the 16 bytes
// behind them now.
void kernelNodes(CUdeviceptr words, const apps::Bump& bump) {
  const auto add =
      lookUp<CUresult(CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                      const CUDA_KERNEL_NODE_PARAMS_v1*)>("cuGraphAddKernelNode", 10000);
  const auto get = lookUp<CUresult(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v1*)>(
      "cuGraphKernelNodeGetParams", 10000);
  const auto set = lookUp<CUresult(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*)>(
      "cuGraphKernelNodeSetParams", 10000);
  const auto setExec =
      lookUp<CUresult(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*)>(
          "cuGraphExecKernelNodeSetParams", 10010);
  const auto instantiate = lookUp<CUresult(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t)>(
      "cuGraphInstantiate", 10000);
  const auto instantiate11 = lookUp<CUresult(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t)>(
      "cuGraphInstantiate", 11000);
  const auto update =
      lookUp<CUresult(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>(
          "cuGraphExecUpdate", 10020);

  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  uint32_t count = kCount, value = 3;
  void* parameters[] = {&words, &count, &value};
  // Bytes that an old program has behind the structure are its own.
  struct {
    CUDA_KERNEL_NODE_PARAMS_v1 params;
    uint64_t behind[2];
  } given{{bump.kernel(), kCount / 128, 1, 1, 128, 1, 1, 0, parameters, nullptr},
          {0xdeadbeefdeadbeef, 0xdeadbeefdeadbeef}};
  DRIVER_OK(cuGraphCreate(&graph, 0));
  DRIVER_OK(add(&node, graph, nullptr, 0, &given.params));
  const auto check = [&](const char* what, uint32_t expected) {
    Guarded<CUDA_KERNEL_NODE_PARAMS_v1> told;
    DRIVER_OK(get(node, &told.value));
    told.check(what);
    CHECK(told.value.blockDimX == 128 && told.value.gridDimX == kCount / 128 &&
              told.value.kernelParams != nullptr,
          "%s: %u blocks of %u threads", what, told.value.gridDimX, told.value.blockDimX);
    uint32_t its = 0;
    std::memcpy(&its, told.value.kernelParams[2], sizeof its);
    CHECK(its == expected, "%s: a parameter is %u, not %u", what, its, expected);
  };
  check("added", 3);
  value = 4;
  DRIVER_OK(set(node, &given.params));
  check("set", 4);

  struct {
    char room[16];
    char guard[16];
  } log;
  std::memset(&log, '?', sizeof log);
  CUgraphNode wrong = nullptr;
  CUgraphExec first = nullptr, second = nullptr;
  DRIVER_OK(instantiate(&first, graph, &wrong, log.room, sizeof log.room));
  DRIVER_OK(instantiate11(&second, graph, &wrong, log.room, sizeof log.room));
  for (const char c : log.guard) CHECK(c == '?', "%s", "more than a log's room was written");
  DRIVER_OK(cuMemsetD32(words, 0, kCount));
  DRIVER_OK(cuGraphLaunch(first, nullptr));
  DRIVER_OK(cuGraphLaunch(second, nullptr));
  expect(words, 8, "two graphs");
  value = 100;
  DRIVER_OK(setExec(first, node, &given.params));
  DRIVER_OK(cuGraphLaunch(first, nullptr));
  expect(words, 108, "a graph with another parameter");
  Guarded<CUgraphExecUpdateResult> updated;
  updated.value = CU_GRAPH_EXEC_UPDATE_ERROR;
  DRIVER_OK(update(first, graph, &wrong, &updated.value));
  updated.check("cuGraphExecUpdate");
  CHECK(updated.value == CU_GRAPH_EXEC_UPDATE_SUCCESS, "the update is %d", int(updated.value));
  DRIVER_OK(cuGraphLaunch(first, nullptr));
  expect(words, 112, "a graph that was updated");
  CHECK(add(&node, graph, nullptr, 0, nullptr) != CUDA_SUCCESS &&
            set(node, nullptr) != CUDA_SUCCESS && setExec(first, node, nullptr) != CUDA_SUCCESS,
        "%s", "a node has no parameters");
  DRIVER_OK(cuGraphExecDestroy(first));
  DRIVER_OK(cuGraphExecDestroy(second));
  DRIVER_OK(cuGraphDestroy(graph));
}

void captures(CUdeviceptr words, const apps::Bump& bump) {
  const auto begin = lookUp<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture", 10010);
  const auto info10 = lookUp<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>(
      "cuStreamGetCaptureInfo", 10010);
  const auto info11 =
      lookUp<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**,
                      size_t*)>("cuStreamGetCaptureInfo", 11030);
  CUstream stream = nullptr;
  CUgraph graph = nullptr, its = nullptr;
  const CUgraphNode* before = nullptr;
  Guarded<CUstreamCaptureStatus> status;
  Guarded<cuuint64_t> id;
  Guarded<size_t> count;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  bump(words, kCount, 1, stream);
  DRIVER_OK(info10(stream, &status.value, &id.value));
  CHECK(status.value == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the capture is %d", int(status.value));
  DRIVER_OK(info11(stream, &status.value, &id.value, &its, &before, &count.value));
  CHECK(its != nullptr && count.value == 1, "a capture has %zu nodes to depend on", count.value);
  status.check("a capture's status");
  id.check("a capture's number");
  count.check("a capture's dependencies");
  DRIVER_OK(cuStreamEndCapture(stream, &graph));
  DRIVER_OK(cuGraphDestroy(graph));
  DRIVER_OK(cuStreamDestroy(stream));
}

// CUDA 2: descriptors and lengths of 32 bits.
struct OldArray {
  unsigned width, height;
  CUarray_format format;
  unsigned channels;
};
struct OldArray3D {
  unsigned width, height, depth;
  CUarray_format format;
  unsigned channels, flags;
};

void arrays() {
  const auto create = lookUp<CUresult(CUarray*, const OldArray*)>("cuArrayCreate", 2000);
  const auto describe = lookUp<CUresult(OldArray*, CUarray)>("cuArrayGetDescriptor", 2000);
  const auto create3d = lookUp<CUresult(CUarray*, const OldArray3D*)>("cuArray3DCreate", 2000);
  const auto describe3d = lookUp<CUresult(OldArray3D*, CUarray)>("cuArray3DGetDescriptor", 2000);
  const auto in = lookUp<CUresult(CUarray, unsigned, const void*, unsigned)>("cuMemcpyHtoA", 2000);
  const auto out = lookUp<CUresult(void*, CUarray, unsigned, unsigned)>("cuMemcpyAtoH", 2000);
  const auto over =
      lookUp<CUresult(CUarray, unsigned, CUarray, unsigned, unsigned)>("cuMemcpyAtoA", 2000);
  const auto inLater = lookUp<CUresult(CUarray, unsigned, const void*, unsigned, CUstream)>(
      "cuMemcpyHtoAAsync", 2000);
  const auto outLater =
      lookUp<CUresult(void*, CUarray, unsigned, unsigned, CUstream)>("cuMemcpyAtoHAsync", 2000);

  const OldArray wanted{kRow, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CUarray one = nullptr, other = nullptr, box = nullptr;
  if (create(&one, &wanted) == CUDA_ERROR_NOT_SUPPORTED)
    apps::skip("the driver has no version 1 of cuArrayCreate");
  DRIVER_OK(create(&other, &wanted));
  Guarded<OldArray> told;
  DRIVER_OK(describe(&told.value, one));
  told.check("cuArrayGetDescriptor");
  CHECK(told.value.width == kRow && told.value.channels == 1 && told.value.format == wanted.format,
        "an array of %u is %u wide", kRow, told.value.width);
  const OldArray3D wanted3d{kRow, 4, 2, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  DRIVER_OK(create3d(&box, &wanted3d));
  Guarded<OldArray3D> told3d;
  DRIVER_OK(describe3d(&told3d.value, box));
  told3d.check("cuArray3DGetDescriptor");
  CHECK(told3d.value.width == kRow && told3d.value.height == 4 && told3d.value.depth == 2, "%s",
        "an array has other extents than it was made with");
  DRIVER_OK(cuArrayDestroy(box));

  uint32_t words[kRow], got[kRow] = {};
  for (unsigned i = 0; i < kRow; ++i) words[i] = apps::word(i, 5);
  DRIVER_OK(in(one, 0, words, sizeof words));
  DRIVER_OK(over(other, 0, one, 0, sizeof words));
  DRIVER_OK(out(got, other, 0, sizeof got));
  CHECK(std::memcmp(words, got, sizeof got) == 0, "%s", "through two arrays other words came");
  words[3] = 77;
  DRIVER_OK(inLater(one, 0, words, sizeof words, nullptr));
  DRIVER_OK(outLater(got, one, 0, sizeof got, nullptr));
  DRIVER_OK(cuCtxSynchronize());
  CHECK(std::memcmp(words, got, sizeof got) == 0, "%s",
        "through an array in a stream other words came");

  // In the calling thread's default stream.
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const auto toArray =
      lookUp<CUresult(CUarray, size_t, CUdeviceptr, size_t)>("cuMemcpyDtoA", 7000, kPerThread);
  const auto fromArray =
      lookUp<CUresult(CUdeviceptr, CUarray, size_t, size_t)>("cuMemcpyAtoD", 7000, kPerThread);
  const auto between =
      lookUp<CUresult(CUarray, size_t, CUarray, size_t, size_t)>("cuMemcpyAtoA", 7000, kPerThread);
  const auto peer = lookUp<CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)>(
      "cuMemcpyPeer", 7000, kPerThread);
  CUdeviceptr from = 0, to = 0;
  CUcontext context = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&context));
  DRIVER_OK(cuMemAlloc(&from, sizeof words));
  DRIVER_OK(cuMemAlloc(&to, sizeof words));
  words[5] = 99;
  DRIVER_OK(cuMemcpyHtoD(from, words, sizeof words));
  DRIVER_OK(cuMemsetD8(to, 0, sizeof words));
  DRIVER_OK(cuCtxSynchronize());
  constexpr size_t kHalf = sizeof words / 2;
  DRIVER_OK(toArray(one, 0, from, kHalf));
  DRIVER_OK(toArray(one, kHalf, from + kHalf, kHalf));
  DRIVER_OK(between(other, kHalf, one, kHalf, kHalf));
  DRIVER_OK(between(other, 0, one, 0, kHalf));
  DRIVER_OK(fromArray(to, other, 0, sizeof words));
  DRIVER_OK(cuMemcpyDtoH(got, to, sizeof got));
  CHECK(std::memcmp(words, got, sizeof got) == 0, "%s",
        "from device memory through two arrays other words came");
  words[6] = 111;
  DRIVER_OK(cuMemcpyHtoD(from, words, sizeof words));
  DRIVER_OK(peer(to, context, from, context, sizeof words));
  DRIVER_OK(cuMemcpyDtoH(got, to, sizeof got));
  CHECK(std::memcmp(words, got, sizeof got) == 0, "%s", "by cuMemcpyPeer other words came");
  DRIVER_OK(cuMemFree(from));
  DRIVER_OK(cuMemFree(to));
  DRIVER_OK(cuArrayDestroy(one));
  DRIVER_OK(cuArrayDestroy(other));
}

void others(CUdevice device) {
  const auto uuid = lookUp<CUresult(CUuuid*, CUdevice)>("cuDeviceGetUuid", 9020);
  Guarded<CUuuid> told;
  CUuuid expected{};
  DRIVER_OK(uuid(&told.value, device));
  DRIVER_OK(cuDeviceGetUuid(&expected, device));
  told.check("cuDeviceGetUuid");
  CHECK(std::memcmp(&told.value, &expected, sizeof expected) == 0, "%s", "a device has two UUIDs");

  const auto info = lookUp<CUresult(unsigned*, unsigned*)>("cuMemGetInfo", 2000);
  Guarded<unsigned> available, total;
  size_t available_now = 0, total_now = 0;
  const CUresult informed = info(&available.value, &total.value);
  available.check("cuMemGetInfo");
  total.check("cuMemGetInfo");
  DRIVER_OK(cuMemGetInfo(&available_now, &total_now));
  if (informed == CUDA_SUCCESS && total_now <= UINT32_MAX)
    CHECK(total.value == total_now, "there are %u bytes, or %zu", total.value, total_now);

  const auto elapsed = lookUp<CUresult(float*, CUevent, CUevent)>("cuEventElapsedTime", 2000);
  CUevent begin = nullptr, end = nullptr;
  Guarded<float> milliseconds;
  DRIVER_OK(cuEventCreate(&begin, 0));
  DRIVER_OK(cuEventCreate(&end, 0));
  DRIVER_OK(cuEventRecord(begin, nullptr));
  DRIVER_OK(cuEventRecord(end, nullptr));
  DRIVER_OK(cuEventSynchronize(end));
  milliseconds.value = -1;
  DRIVER_OK(elapsed(&milliseconds.value, begin, end));
  milliseconds.check("cuEventElapsedTime");
  CHECK(milliseconds.value >= 0, "%f ms between two events", double(milliseconds.value));
  DRIVER_OK(cuEventDestroy(begin));
  DRIVER_OK(cuEventDestroy(end));

  const auto create = lookUp<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate", 3020);
  CUcontext context = nullptr;
  unsigned flags = 0;
  DRIVER_OK(create(&context, CU_CTX_SCHED_BLOCKING_SYNC, device));
  DRIVER_OK(cuCtxGetFlags(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "a context's flags are %#x",
        flags);
  DRIVER_OK(cuCtxDestroy(context));

  // Nothing is written for what is not there yet, or never was.
  void* found = &found;
  CUdriverProcAddressQueryResult why{};
  DRIVER_OK(cuGetProcAddress("cuMemcpyBatchAsync", &found, 11000, 0, &why));
  CHECK(found == nullptr && why == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, "%s",
        "a function before its time");
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump bump(4);
  CUdeviceptr words = 0;
  DRIVER_OK(cuMemAlloc(&words, kCount * 4));
  // So that what the graphs use has been parked.
  std::vector<CUdeviceptr> others_memory(options.bytes >> 21);
  for (auto& buffer : others_memory) {
    DRIVER_OK(cuMemAlloc(&buffer, size_t{2} << 20));
    bump(buffer, 1024, 1);
  }
  kernelNodes(words, bump);
  captures(words, bump);
  others(device);
  arrays();
  for (const CUdeviceptr buffer : others_memory) DRIVER_OK(cuMemFree(buffer));
  DRIVER_OK(cuMemFree(words));
  return apps::ok("functions by their older versions");
}
