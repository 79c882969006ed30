// Pointer attributes of the runtime and the driver: fresh, after the memory was parked, and while
// it is in use.
#include "common.h"

constexpr size_t kPiece = size_t{2} << 20;

static void checkDevice(char* p, size_t bytes, const char* when) {
  for (const size_t at : {size_t{0}, bytes / 2 + 4, bytes - 1}) {
    cudaPointerAttributes attributes{};
    RUNTIME_OK(cudaPointerGetAttributes(&attributes, p + at));
    CHECK(attributes.type == cudaMemoryTypeDevice, "%s: type %d", when, int(attributes.type));
    CHECK(attributes.device == 0 && attributes.devicePointer == p + at &&
              attributes.hostPointer == nullptr,
          "%s: device %d, device pointer %p, host pointer %p of %p", when, attributes.device,
          attributes.devicePointer, attributes.hostPointer, static_cast<void*>(p + at));
    CUdeviceptr base = 0;
    size_t size = 0;
    DRIVER_OK(cuMemGetAddressRange(&base, &size, CUdeviceptr(p + at)));
    CHECK(base == CUdeviceptr(p) && size == bytes, "%s: range %#llx + %zu, expected %p + %zu", when,
          base, size, static_cast<void*>(p), bytes);
    CUmemorytype type{};
    unsigned managed = 9;
    DRIVER_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUdeviceptr(p + at)));
    DRIVER_OK(
        cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, CUdeviceptr(p + at)));
    CHECK(type == CU_MEMORYTYPE_DEVICE && managed == 0, "%s: memory type %d, managed %u", when,
          int(type), managed);
    CUcontext context = nullptr, current = nullptr;
    DRIVER_OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, CUdeviceptr(p + at)));
    DRIVER_OK(cuCtxGetCurrent(&current));
    CHECK(context == current, "%s: another context", when);
  }
}

// On a gpunode nobody of the program's machine can get at the device's memory beside the program,
// whatever the device says there.
static void checkForwarded() {
  const char* const gpunode = std::getenv("OL_GPUNODE");
  if (gpunode == nullptr || std::strcmp(gpunode, "none") == 0) return;
  for (const CUdevice_attribute attribute :
       {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES}) {
    int value = -1;
    const CUresult result = cuDeviceGetAttribute(&value, attribute, 0);
    CHECK(value == 0 || result == CUDA_ERROR_INVALID_VALUE, "attribute %d is %d", int(attribute),
          value);
  }
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  std::vector<char*> buffers(options.bytes / kPiece);
  std::vector<unsigned long long> ids(buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    checkDevice(buffers[b], kPiece, "fresh");
    DRIVER_OK(
        cuPointerGetAttribute(&ids[b], CU_POINTER_ATTRIBUTE_BUFFER_ID, CUdeviceptr(buffers[b])));
    for (size_t k = 0; k < b; ++k) CHECK(ids[k] != ids[b], "two buffers have the same id");
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t b = 0; b < buffers.size(); ++b)
      apps::fill(buffers[b], kPiece, uint32_t(options.seed + b));
    for (char* p : buffers) checkDevice(p, kPiece, "while paging");
  }
  for (size_t b = 0; b < buffers.size(); ++b) {
    unsigned long long id = 0;
    DRIVER_OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, CUdeviceptr(buffers[b])));
    CHECK(id == ids[b], "a buffer's id changed");
  }
  checkForwarded();
  // The other kinds.
  cudaPointerAttributes attributes{};
  void *pinned, *managed, *ordinary = malloc(4096);
  char* small;
  RUNTIME_OK(cudaHostAlloc(&pinned, 4096, cudaHostAllocDefault));
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 16));
  CHECK(attributes.type == cudaMemoryTypeHost &&
            attributes.hostPointer == static_cast<char*>(pinned) + 16,
        "pinned memory is type %d", int(attributes.type));
  RUNTIME_OK(cudaMallocManaged(&managed, 4096));
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, managed));
  CHECK(attributes.type == cudaMemoryTypeManaged, "managed memory is type %d",
        int(attributes.type));
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, ordinary));
  CHECK(attributes.type == cudaMemoryTypeUnregistered, "ordinary memory is type %d",
        int(attributes.type));
  RUNTIME_OK(cudaMalloc(&small, 1000));
  checkDevice(small, 1000, "small");
  CUmemorytype type{};
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUdeviceptr(ordinary)) ==
            CUDA_ERROR_INVALID_VALUE,
        "ordinary memory has a memory type");
  RUNTIME_OK(cudaFree(buffers[0]));
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, buffers[0]));
  CHECK(attributes.type == cudaMemoryTypeUnregistered, "freed memory is type %d",
        int(attributes.type));
  return apps::ok("attributes of %zu buffers", buffers.size());
}
