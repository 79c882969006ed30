#include <sys/mman.h>

#include <cstring>
#include <random>

#include "driver.h"

using namespace simgpu_test;

TEST_CASE("VRAM is counted exactly and runs out truly", "[memory]") {
  const Primary primary;
  size_t free_at_start = 0, total = 0;
  OK(CU(cuMemGetInfo)(&free_at_start, &total));
  CHECK(free_at_start == total);
  CUdeviceptr p = 0, q = 0;
  OK(CU(cuMemAlloc)(&p, 3 << 20));
  CHECK(freeBytes() == total - 2 * kPage);
  CHECK(CU(cuMemAlloc)(&q, total) == CUDA_ERROR_OUT_OF_MEMORY);
  OK(CU(cuMemAlloc)(&q, total - 2 * kPage));
  CHECK(freeBytes() == 0);
  CUdeviceptr small = 0;
  CHECK(CU(cuMemAlloc)(&small, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  OK(CU(cuMemFree)(q));
  OK(CU(cuMemAlloc)(&small, 1));
  OK(CU(cuMemFree)(small));
  OK(CU(cuMemFree)(p));
  CHECK(freeBytes() == total);
  CHECK(CU(cuMemFree)(p) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemAlloc)(&p, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("ten thousand allocations in random order leave nothing behind", "[memory]") {
  const Primary primary;
  const size_t before = freeBytes();
  std::mt19937 random(7);
  std::vector<CUdeviceptr> live;
  for (int i = 0; i < 10000; ++i) {
    if (live.size() < 64 || random() % 2) {
      CUdeviceptr p = 0;
      const CUresult rc = CU(cuMemAlloc)(&p, 1 + random() % (random() % 8 ? 4096 : 300000));
      if (rc == CUDA_SUCCESS) {
        if (p % 512 != 0) FAIL("an address that is not 512-byte aligned");
        live.push_back(p);
      } else if (rc != CUDA_ERROR_OUT_OF_MEMORY) {
        FAIL("cuMemAlloc: " << rc);
      }
    } else {
      const size_t which = random() % live.size();
      if (CU(cuMemFree)(live[which]) != CUDA_SUCCESS) FAIL("cuMemFree");
      live[which] = live.back();
      live.pop_back();
    }
  }
  for (CUdeviceptr p : live) OK(CU(cuMemFree)(p));
  CHECK(freeBytes() == before);
}

TEST_CASE("copies of every direction carry the bytes", "[copy]") {
  const Primary primary;
  constexpr size_t kBytes = 5 << 20;
  std::vector<uint8_t> source(kBytes), back(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = uint8_t(i * 31 + (i >> 13));
  CUdeviceptr p = 0, q = 0;
  OK(CU(cuMemAlloc)(&p, kBytes));
  OK(CU(cuMemAlloc)(&q, kBytes));
  OK(CU(cuMemcpyHtoD)(p, source.data(), kBytes));
  OK(CU(cuMemcpyDtoD)(q, p, kBytes));
  OK(CU(cuMemcpyDtoH)(back.data(), q, kBytes));
  CHECK(back == source);
  std::fill(back.begin(), back.end(), uint8_t{0});
  OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(back.data()), p, kBytes));
  CHECK(back == source);
  // A small pageable source is taken when the call is made.
  uint8_t word[4] = {1, 2, 3, 4};
  OK(CU(cuMemcpyHtoDAsync)(p, word, 4, nullptr));
  std::memset(word, 0, 4);
  OK(CU(cuMemcpyDtoH)(word, p, 4));
  CHECK(word[3] == 4);
  CHECK(CU(cuMemcpyHtoD)(p + kBytes, source.data(), 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemcpyDtoH)(back.data(), p + kBytes - 1, 4096) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(p));
  CHECK(CU(cuMemcpyDtoH)(back.data(), p, 1) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(q));
}

TEST_CASE("planes and boxes are copied by their pitches", "[copy]") {
  const Primary primary;
  constexpr size_t kWidth = 100, kHeight = 30, kDepth = 4;
  CUdeviceptr p = 0;
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch)(&p, &pitch, kWidth, kHeight * kDepth, 4));
  CHECK(pitch >= kWidth);
  CHECK(pitch % 512 == 0);
  std::vector<uint8_t> in(kWidth * kHeight * kDepth), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = uint8_t(i % 251);
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST, box.srcHost = in.data(), box.srcPitch = kWidth,
  box.srcHeight = kHeight;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE, box.dstDevice = p, box.dstPitch = pitch,
  box.dstHeight = kHeight;
  box.WidthInBytes = kWidth, box.Height = kHeight, box.Depth = kDepth;
  OK(CU(cuMemcpy3D)(&box));
  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = CU_MEMORYTYPE_DEVICE, plane.srcDevice = p, plane.srcPitch = pitch;
  plane.dstMemoryType = CU_MEMORYTYPE_HOST, plane.dstHost = out.data(), plane.dstPitch = kWidth;
  plane.WidthInBytes = kWidth, plane.Height = kHeight * kDepth;
  OK(CU(cuMemcpy2D)(&plane));
  CHECK(in == out);
  OK(CU(cuMemsetD2D16)(p, pitch, 0xabcd, kWidth / 2, 2));
  OK(CU(cuMemcpy2DUnaligned)(&plane));
  CHECK(out[0] == 0xcd);
  CHECK(out[2 * kWidth - 1] == 0xab);
  CHECK(out[2 * kWidth] == in[2 * kWidth]);
  OK(CU(cuMemFree)(p));
}

TEST_CASE("arrays keep what is copied into them", "[array]") {
  const Primary primary;
  CUDA_ARRAY_DESCRIPTOR descriptor{64, 16, CU_AD_FORMAT_FLOAT, 2};
  CUarray array = nullptr;
  OK(CU(cuArrayCreate)(&array, &descriptor));
  std::vector<float> in(64 * 16 * 2), out(in.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = float(i);
  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = CU_MEMORYTYPE_HOST, plane.srcHost = in.data(), plane.srcPitch = 512;
  plane.dstMemoryType = CU_MEMORYTYPE_ARRAY, plane.dstArray = array;
  plane.WidthInBytes = 512, plane.Height = 16;
  OK(CU(cuMemcpy2D)(&plane));
  OK(CU(cuMemcpyAtoH)(out.data(), array, 0, 512));
  CHECK(std::equal(out.begin(), out.begin() + 128, in.begin()));
  plane.Height = 17;
  CHECK(CU(cuMemcpy2D)(&plane) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_DESCRIPTOR got{};
  OK(CU(cuArrayGetDescriptor)(&got, array));
  CHECK(got.Width == 64);
  OK(CU(cuArrayDestroy)(array));
  CHECK(CU(cuArrayDestroy)(array) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("pinned, registered and managed memory is one for both sides", "[host]") {
  const Primary primary;
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 100000, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr device = 0;
  OK(CU(cuMemHostGetDevicePointer)(&device, pinned, 0));
  OK(CU(cuMemsetD8)(device, 0x42, 100000));
  CHECK(static_cast<uint8_t*>(pinned)[99999] == 0x42);
  unsigned flags = 0;
  OK(CU(cuMemHostGetFlags)(&flags, pinned));
  CHECK((flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0);
  std::vector<uint8_t> plain(50000);
  uint8_t* middle = plain.data() + 100;
  OK(CU(cuMemHostRegister)(middle, 40000, 0));
  CHECK(CU(cuMemHostRegister)(middle + 5, 10, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(CU(cuMemcpyHtoD)(reinterpret_cast<CUdeviceptr>(middle), pinned, 40000));
  CHECK(middle[39999] == 0x42);
  OK(CU(cuMemHostUnregister)(middle));
  CHECK(CU(cuMemHostUnregister)(middle) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CUdeviceptr managed = 0;
  OK(CU(cuMemAllocManaged)(&managed, 3 << 20, CU_MEM_ATTACH_GLOBAL));
  auto* bytes = reinterpret_cast<uint8_t*>(managed);
  bytes[5] = 9;
  OK(CU(cuMemcpyDtoD)(managed + (1 << 20), managed, 64));
  OK(CU(cuCtxSynchronize)());
  CHECK(bytes[(1 << 20) + 5] == 9);
  unsigned is_managed = 0;
  OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  CHECK(is_managed == 1);
  OK(CU(cuMemFree)(managed));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_CASE("pools reuse memory in stream order", "[pool]") {
  const Primary primary;
  const size_t before = freeBytes();
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = 0, q = 0;
  OK(CU(cuMemAllocAsync)(&p, 1 << 20, stream));
  OK(CU(cuMemsetD8Async)(p, 7, 1 << 20, stream));
  OK(CU(cuMemFreeAsync)(p, stream));
  OK(CU(cuMemAllocAsync)(&q, 1 << 20, stream));
  CHECK(p == q);
  CUmemoryPool pool = nullptr, of_pointer = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  OK(CU(cuPointerGetAttribute)(&of_pointer, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, q));
  CHECK(of_pointer == pool);
  cuuint64_t used = 0;
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK(used == 1 << 20);
  OK(CU(cuMemFreeAsync)(q, stream));
  CHECK(CU(cuMemFreeAsync)(q, stream) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(freeBytes() == before);  // nothing is kept above the release threshold of 0
  cuuint64_t keep = ~0ull;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  OK(CU(cuMemAllocAsync)(&p, 8 << 20, stream));
  OK(CU(cuMemFreeAsync)(p, stream));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(freeBytes() < before);
  OK(CU(cuMemPoolTrimTo)(pool, 0));
  CHECK(freeBytes() == before);
  // Memory that a pool keeps is given up when the device runs out.
  OK(CU(cuMemAllocAsync)(&p, 8 << 20, stream));
  OK(CU(cuMemFreeAsync)(p, stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuMemAlloc)(&p, before));
  OK(CU(cuMemFree)(p));
  keep = 0;
  OK(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemoryPool own = nullptr;
  OK(CU(cuMemPoolCreate)(&own, &props));
  OK(CU(cuMemAllocFromPoolAsync)(&p, 4096, own, stream));
  OK(CU(cuMemPoolDestroy)(own));
  CHECK(CU(cuMemAllocFromPoolAsync)(&q, 4096, own, stream) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFreeAsync)(p, stream));
  OK(CU(cuStreamDestroy)(stream));
}
