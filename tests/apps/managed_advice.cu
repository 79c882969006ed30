// Managed memory as it is told about: attributes of its addresses, advice that is told back,
// prefetches, streams that it is attached to. And as it is used: by memsets and copies of every
// kind, by functions of the driver for device memory, freed in any order.
#include "common.h"

__global__ void twice(uint32_t* at, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] *= 2;
}

namespace {

constexpr size_t kPage = 65536;

int rangeAttribute(CUmem_range_attribute attribute, CUdeviceptr at, size_t bytes) {
  int value = 0;
  DRIVER_OK(cuMemRangeGetAttribute(&value, sizeof value, attribute, at, bytes));
  return value;
}

void checkAttributes(CUdeviceptr at, size_t bytes) {
  unsigned type = 0, managed = 0;
  CUdeviceptr device = 0, start = 0;
  void* host = nullptr;
  size_t size = 0;
  DRIVER_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 5));
  DRIVER_OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at + 5));
  CHECK(type == CU_MEMORYTYPE_DEVICE && (managed & 0xff) == 1,
        "managed memory is of type %u, managed %u", type, managed);
  CUpointer_attribute what[] = {
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* into[] = {&device, &host, &start, &size};
  DRIVER_OK(cuPointerGetAttributes(4, what, into, at + 5));
  CHECK(device == at + 5 && CUdeviceptr(host) == at + 5, "addresses %#llx and %p of %#llx", device,
        host, at + 5);
  CHECK(start == at && size == bytes, "a range of %zu at %#llx, not of %zu at %#llx", size, start,
        bytes, at);
  DRIVER_OK(cuMemGetAddressRange(&start, &size, at + 5));
  CHECK(start == at && size == bytes, "a block of %zu at %#llx, not of %zu at %#llx", size, start,
        bytes, at);
  cudaPointerAttributes told{};
  RUNTIME_OK(cudaPointerGetAttributes(&told, reinterpret_cast<void*>(at)));
  CHECK(told.type == cudaMemoryTypeManaged, "the runtime says type %d", int(told.type));
}

void checkAdvice(CUdeviceptr at, size_t bytes, cudaStream_t stream) {
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0}, host{CU_MEM_LOCATION_TYPE_HOST, 0};
  CHECK(rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, bytes) == 0,
        "read mostly before it was said");
  CHECK(rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, bytes) == CU_DEVICE_INVALID,
        "preferred before");
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here));
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
  CHECK(rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, bytes) == 1, "advice was not kept");
  CHECK(rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at, bytes) == 0,
        "a preferred location was not kept");
  DRIVER_OK(cuMemAdvise(at + kPage, kPage, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  CHECK(
      rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, at + kPage, kPage) == CU_DEVICE_CPU,
      "part of it");
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, here));
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here));
  DRIVER_OK(cuMemAdvise(at, bytes, CU_MEM_ADVISE_UNSET_ACCESSED_BY, host));
  CHECK(rangeAttribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, at, bytes) == 0,
        "advice was not taken back");
  int devices[3] = {7, 7, 7};
  DRIVER_OK(cuMemRangeGetAttribute(devices, sizeof devices, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, at,
                                   bytes));
  CHECK(devices[0] == CU_DEVICE_INVALID && devices[2] == CU_DEVICE_INVALID, "accessed by %d",
        devices[0]);
  DRIVER_OK(cuMemPrefetchAsync(at, bytes, here, 0, stream));
  int last = 0, mostly = 7;
  void* into[] = {&last, &mostly};
  size_t sizes[] = {sizeof last, sizeof mostly};
  CUmem_range_attribute what[] = {CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                  CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
  DRIVER_OK(cuMemRangeGetAttributes(into, sizes, what, 2, at, bytes));
  CHECK(last == 0 && mostly == 0, "prefetched to %d, read mostly %d", last, mostly);
  CHECK(cuMemAdvise(at, bytes + kPage * 64, CU_MEM_ADVISE_SET_READ_MOSTLY, here) ==
            CUDA_ERROR_INVALID_VALUE,
        "advice beyond the end was taken");
  DRIVER_OK(cuStreamAttachMemAsync(stream, at, 0, CU_MEM_ATTACH_GLOBAL));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t words = options.bytes / 64 + 3 * kPage / 4, bytes = words * 4;
  int managed = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
  if (managed == 0) apps::skip("no managed memory");
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t *first, *second, *device;
  RUNTIME_OK(cudaMallocManaged(&first, bytes));
  RUNTIME_OK(cudaMallocManaged(&second, bytes, cudaMemAttachHost));
  RUNTIME_OK(cudaMalloc(&device, bytes));
  CUdeviceptr nothing = 0;
  CHECK(cuMemAllocManaged(&nothing, 64, CU_MEM_ATTACH_SINGLE) == CUDA_ERROR_INVALID_VALUE,
        "a wrong flag was taken");
  CHECK(cuMemAllocManaged(&nothing, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE,
        "no bytes were taken");
  checkAttributes(CUdeviceptr(first), bytes);
  checkAdvice(CUdeviceptr(first), bytes, stream);
  // Set, changed, copied to and fro, and seen by the CPU each time.
  const auto seen = [&](const uint32_t* at, uint32_t value, const char* what) {
    for (size_t i = 0; i < words; ++i)
      CHECK(at[i] == value, "%s: word %zu is %#x, not %#x", what, i, at[i], value);
  };
  DRIVER_OK(cuMemsetD32Async(CUdeviceptr(first), 21, words, stream));
  twice<<<apps::blocks(words), 256, 0, stream>>>(first, uint32_t(words));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  seen(first, 42, "set and doubled");
  DRIVER_OK(cuMemcpyDtoD(CUdeviceptr(second), CUdeviceptr(first), bytes));
  RUNTIME_OK(cudaDeviceSynchronize());
  seen(second, 42, "copied as device memory");
  DRIVER_OK(cuMemcpyDtoD(CUdeviceptr(device), CUdeviceptr(second), bytes));
  twice<<<apps::blocks(words), 256>>>(device, uint32_t(words));
  DRIVER_OK(cuMemcpyDtoD(CUdeviceptr(first), CUdeviceptr(device), bytes));
  RUNTIME_OK(cudaDeviceSynchronize());
  seen(first, 84, "copied from device memory");
  for (size_t i = 0; i < words; ++i) first[i] = 5;
  DRIVER_OK(cuMemcpyDtoH(second, CUdeviceptr(first), bytes));
  seen(second, 5, "copied to the host");
  DRIVER_OK(cuMemsetD2D8(CUdeviceptr(first), 512, 3, 512, bytes / 512));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t i = 0; i < bytes / 512 * 128; ++i)
    CHECK(first[i] == 0x03030303, "row word %zu is %#x", i, first[i]);
  for (size_t i = 0; i < words; ++i) second[i] = uint32_t(i);
  twice<<<apps::blocks(words), 256, 0, stream>>>(second, uint32_t(words));
  RUNTIME_OK(
      cudaMemcpy2DAsync(device, 1024, second, 1024, 1024, bytes / 1024, cudaMemcpyDefault, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  std::vector<uint32_t> got(bytes / 1024 * 256);
  RUNTIME_OK(cudaMemcpy(got.data(), device, got.size() * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == 2 * i, "copied word %zu is %u", i, got[i]);
  CHECK(cuMemFreeHost(first) != CUDA_SUCCESS, "managed memory was freed as pinned memory");
  RUNTIME_OK(cudaFree(first));
  // Again and again, in another order.
  for (int round = 0; round < 3; ++round) {
    uint32_t* other;
    RUNTIME_OK(cudaMallocManaged(&other, bytes));
    other[1] = 17;
    twice<<<1, 32>>>(other, 2);
    RUNTIME_OK(cudaDeviceSynchronize());
    CHECK(other[1] == 34, "a new block has %u", other[1]);
    RUNTIME_OK(cudaFree(other));
  }
  // Freed while the CPU asks for what the GPU has.
  for (int i = 0; i < 30; ++i) {
    uint32_t* block;
    RUNTIME_OK(cudaMallocManaged(&block, bytes));
    RUNTIME_OK(cudaMemset(block, i, bytes));
    DRIVER_OK(cuMemPrefetchAsync(reinterpret_cast<CUdeviceptr>(block), bytes,
                                 {CU_MEM_LOCATION_TYPE_HOST, 0}, 0, stream));
    RUNTIME_OK(cudaFree(block));
  }
  RUNTIME_OK(cudaFree(second));
  RUNTIME_OK(cudaFree(device));
  return apps::ok("managed memory of %zu KiB, advised", bytes >> 10);
}
