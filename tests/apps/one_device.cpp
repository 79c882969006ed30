// The unified view: one device, whose memory nobody else is given, and handles whose numbers say
// nothing of where things are. Natively there is no such view: the program skips.
#include <algorithm>
#include <map>
#include <string>

#include "driver_program.h"

namespace {

// A number of the program's own: a mark, and the slot that means every executor.
bool isOwn(const void* handle) {
  const auto bits = reinterpret_cast<uint64_t>(handle);
  return bits >> 48 == 0x5a5a && (bits >> 40 & 0x7f) == 63;
}

std::map<uint64_t, std::string> g_seen;

template <typename Handle>
Handle own(Handle handle, const char* what) {
  const void* const pointer = reinterpret_cast<const void*>(handle);
  CHECK(isOwn(pointer), "%s is %p, which is no number of the program's own", what, pointer);
  const auto [at, fresh] = g_seen.try_emplace(reinterpret_cast<uint64_t>(pointer), what);
  CHECK(fresh, "%s has the number of %s", what, at->second.c_str());
  return handle;
}

void refuses(CUresult result, const char* what) {
  CHECK(result == CUDA_ERROR_NOT_SUPPORTED, "%s: CUresult %d", what, int(result));
}

int attributeOf(CUdevice device, CUdevice_attribute attribute) {
  int value = -1;
  DRIVER_OK(cuDeviceGetAttribute(&value, attribute, device));
  return value;
}

// Nobody else gets at memory or events of a device that is several.
void gives(CUdevice device) {
  CHECK(attributeOf(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0,
        "it says that it exports memory");
  CHECK(attributeOf(device, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) == 0,
        "it says that it exports events");
  CUdeviceptr memory = 0;
  DRIVER_OK(cuMemAlloc(&memory, 4096));
  CUipcMemHandle of_memory{};
  refuses(cuIpcGetMemHandle(&of_memory, memory), "cuIpcGetMemHandle");
  CUdeviceptr opened = 0;
  refuses(cuIpcOpenMemHandle(&opened, of_memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "cuIpcOpenMemHandle");
  DRIVER_OK(cuMemFree(memory));
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  CUmemGenericAllocationHandle allocation = 0;
  DRIVER_OK(cuMemCreate(&allocation, size_t{2} << 20, &prop, 0));
  (void)own(allocation, "memory of cuMemCreate");
  int descriptor = -1;
  refuses(cuMemExportToShareableHandle(&descriptor, allocation,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
  CHECK(descriptor == -1, "a descriptor all the same");
  refuses(cuMemImportFromShareableHandle(&allocation, reinterpret_cast<void*>(intptr_t{1}),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
  DRIVER_OK(cuMemRelease(allocation));
}

// Objects made by calls that are answered, and by those that go one way; one that the driver names
// again keeps its number.
void makes(CUdevice device, CUcontext primary) {
  (void)own(primary, "the primary context");
  CUcontext current = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&current));
  CHECK(current == primary, "another context is current");
  const apps::Bump bump(4);
  const CUfunction kernel = own(bump.kernel(), "a kernel");
  CUmodule module = nullptr, again = nullptr;
  DRIVER_OK(cuFuncGetModule(&module, kernel));
  (void)own(module, "a module");
  DRIVER_OK(cuFuncGetModule(&again, kernel));
  CHECK(again == module, "one module, two numbers");
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  (void)own(stream, "a stream");
  DRIVER_OK(cuStreamGetCtx(stream, &current));
  CHECK(current == primary, "the stream is of another context");
  CUevent event = nullptr;
  DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  (void)own(event, "an event");
  CUipcEventHandle of_event{};
  refuses(cuIpcGetEventHandle(&of_event, event), "cuIpcGetEventHandle");
  CUmemoryPool pool = nullptr;
  DRIVER_OK(cuDeviceGetDefaultMemPool(&pool, device));
  (void)own(pool, "the default pool");

  // A graph of two kernels, by capture and by hand.
  CUdeviceptr memory = 0;
  DRIVER_OK(cuMemAlloc(&memory, 4096));
  DRIVER_OK(cuMemsetD32(memory, 0, 1024));
  DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  bump(memory, 1024, 3, stream);
  CUgraph graph = nullptr;
  DRIVER_OK(cuStreamEndCapture(stream, &graph));
  (void)own(graph, "a captured graph");
  CUgraphNode nodes[2] = {};
  size_t count = 2;
  DRIVER_OK(cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 1, "%zu nodes were captured", count);
  (void)own(nodes[0], "a captured node");
  CUDA_KERNEL_NODE_PARAMS params{};
  uint32_t words = 1024, value = 4;
  void* parameters[] = {&memory, &words, &value};
  params.func = kernel;
  params.gridDimX = 8, params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = 128, params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = parameters;
  DRIVER_OK(cuGraphAddKernelNode(&nodes[1], graph, nodes, 1, &params));
  (void)own(nodes[1], "an added node");
  CUgraphExec exec = nullptr;
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  (void)own(exec, "an executable graph");
  DRIVER_OK(cuGraphLaunch(exec, stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  std::vector<uint32_t> read(1024);
  DRIVER_OK(cuMemcpyDtoH(read.data(), memory, 4096));
  CHECK(std::count(read.begin(), read.end(), 7u) == 1024, "the first word is %u, not 7", read[0]);
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphDestroy(graph));
  DRIVER_OK(cuMemFree(memory));

  // A destroyed object has no number any more, and the next one has another.
  DRIVER_OK(cuEventDestroy(event));
  CHECK(cuEventQuery(event) != CUDA_SUCCESS, "an event that was destroyed");
  DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  DRIVER_OK(cuEventDestroy(own(event, "the next event")));
  DRIVER_OK(cuStreamDestroy(stream));
  CUcontext second = nullptr;
  DRIVER_OK(cuCtxCreate(&second, nullptr, 0, device));
  DRIVER_OK(cuCtxDestroy(own(second, "a second context")));
}

}  // namespace

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  CUcontext context = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&context));
  const auto bits = reinterpret_cast<uint64_t>(context);
  if (bits >> 48 != 0x5a5a || (bits >> 40 & 0x7f) != 63) apps::skip("this is not the unified view");
  int count = 0;
  DRIVER_OK(cuDeviceGetCount(&count));
  CHECK(count == 1, "%d devices", count);
  CUdevice other = 0;
  CHECK(cuDeviceGet(&other, 1) == CUDA_ERROR_INVALID_DEVICE, "there is a second device");
  CHECK(cuCtxCreate(&context, nullptr, 0, 1) != CUDA_SUCCESS, "a context of a second device");
  char name[96] = {};
  DRIVER_OK(cuDeviceGetName(name, sizeof name, device));
  CUuuid uuid{};
  DRIVER_OK(cuDeviceGetUuid(&uuid, device));
  size_t total = 0, free = 0, of_device = 0;
  DRIVER_OK(cuMemGetInfo(&free, &total));
  DRIVER_OK(cuDeviceTotalMem(&of_device, device));
  CHECK(free <= total && total != 0 && of_device != 0, "%zu of %zu bytes free, the device has %zu",
        free, total, of_device);
  DRIVER_OK(cuCtxGetCurrent(&context));
  gives(device);
  makes(device, context);
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("%s, %zu handles", name, g_seen.size());
}
