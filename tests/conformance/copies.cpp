// Copies and memsets: which arguments are refused, what crosses from one allocation into another.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionCopies() {
  const Base base;
  constexpr size_t kMiB = size_t{1} << 20;
  CUdeviceptr p = 0, q = 0, small = 0;
  need(api.cuMemAlloc(&p, 4 * kMiB), "cuMemAlloc");
  need(api.cuMemAlloc(&q, 4 * kMiB), "cuMemAlloc");
  need(api.cuMemAlloc(&small, 1000), "cuMemAlloc");
  std::vector<uint8_t> host(
      65 * kMiB, 5);  // larger than what is refused, should a driver read it all the same
  record("copies.htod", api.cuMemcpyHtoD(p, host.data(), 4 * kMiB));
  record("copies.htod_0", api.cuMemcpyHtoD(p, host.data(), 0));
  record("copies.htod_0_null", api.cuMemcpyHtoD(0, nullptr, 0));
  record("copies.htod_null_destination", api.cuMemcpyHtoD(0, host.data(), 16));
  record("copies.htod_null_source", api.cuMemcpyHtoD(p, nullptr, 16));
  record("copies.htod_garbage_destination", api.cuMemcpyHtoD(0x1234, host.data(), 16));
  record("copies.htod_beyond_end", api.cuMemcpyHtoD(p + 4 * kMiB - 16, host.data(), 64 * kMiB));
  record("copies.htod_past_small", api.cuMemcpyHtoD(small, host.data(), 1200));
  record("copies.htod_past_small_4k", api.cuMemcpyHtoD(small, host.data(), 1 * kMiB));
  record("copies.dtoh", api.cuMemcpyDtoH(host.data(), p, 4 * kMiB));
  record("copies.dtoh_null_source", api.cuMemcpyDtoH(host.data(), 0, 16));
  record("copies.dtoh_beyond_end", api.cuMemcpyDtoH(host.data(), p + 4 * kMiB - 16, 4 * kMiB));
  record("copies.dtod", api.cuMemcpyDtoD(q, p, 4 * kMiB));
  record("copies.dtod_overlap", api.cuMemcpyDtoD(p + 16, p, kMiB));
  record("copies.dtod_host_source", api.cuMemcpyDtoD(q, CUdeviceptr(host.data()), 16));
  record("copies.htod_device_source", api.cuMemcpyHtoD(q, reinterpret_cast<const void*>(p), 16));
  record("copies.unified_htod", api.cuMemcpy(p, CUdeviceptr(host.data()), 4096));
  record("copies.unified_dtod", api.cuMemcpy(p, q, 4096));
  record("copies.unified_htoh",
         api.cuMemcpy(CUdeviceptr(host.data()), CUdeviceptr(host.data() + 8192), 4096));
  record("copies.async_pageable", api.cuMemcpyHtoDAsync(p, host.data(), 4096, nullptr));
  record("copies.async_beyond_end",
         api.cuMemcpyHtoDAsync(p + 4 * kMiB - 16, host.data(), 64 * kMiB, nullptr));
  CUdeviceptr freed = 0;
  need(api.cuMemAlloc(&freed, 64 * kMiB), "cuMemAlloc");
  need(api.cuMemFree(freed), "cuMemFree");
  record("copies.dtoh_freed", api.cuMemcpyDtoH(host.data(), freed, 16));
  record("copies.htod_freed", api.cuMemcpyHtoD(freed, host.data(), 16));
  record("copies.memset_freed", api.cuMemsetD8(freed, 1, 16));

  record("copies.memset_0", api.cuMemsetD8(p, 1, 0));
  record("copies.memset_null", api.cuMemsetD8(0, 1, 16));
  record("copies.memset_null_0", api.cuMemsetD8(0, 1, 0));
  record("copies.memset_host", api.cuMemsetD8(CUdeviceptr(host.data()), 1, 16));
  record("copies.memset_beyond_end", api.cuMemsetD8(p, 1, 64 * kMiB));
  record("copies.memset16_odd", api.cuMemsetD16(p + 1, 1, 4));
  record("copies.memset32_odd", api.cuMemsetD32(p + 2, 1, 4));
  record("copies.memset2d_pitch_below_width", api.cuMemsetD2D8(p, 10, 1, 100, 10));
  record("copies.memset2d_0_height", api.cuMemsetD2D8(p, 128, 1, 100, 0));
  record("copies.memset2d32_odd_pitch", api.cuMemsetD2D32(p, 402, 1, 100, 4));
  void* pinned = nullptr;
  need(api.cuMemHostAlloc(&pinned, kMiB, 0), "cuMemHostAlloc");
  record("copies.memset_pinned", api.cuMemsetD8(CUdeviceptr(pinned), 0x77, 64));
  api.cuCtxSynchronize();
  recordBool("copies.memset_pinned_seen", *static_cast<uint8_t*>(pinned) == 0x77);
  record("copies.dtod_pinned_source", api.cuMemcpyDtoD(p, CUdeviceptr(pinned), 64));

  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = CU_MEMORYTYPE_HOST;
  plane.srcHost = host.data();
  plane.srcPitch = 256;
  plane.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  plane.dstDevice = p;
  plane.dstPitch = 512;
  plane.WidthInBytes = 256;
  plane.Height = 100;
  record("copies.2d", api.cuMemcpy2D(&plane));
  CUDA_MEMCPY2D odd = plane;
  odd.srcPitch = 200;
  record("copies.2d_source_pitch_below_width", api.cuMemcpy2D(&odd));
  odd = plane;
  odd.dstPitch = 300;
  record("copies.2d_odd_pitch", api.cuMemcpy2D(&odd));
  record("copies.2d_unaligned_odd_pitch", api.cuMemcpy2DUnaligned(&odd));
  odd = plane;
  odd.Height = 0;
  record("copies.2d_0_height", api.cuMemcpy2D(&odd));
  odd = plane;
  odd.dstDevice = 0;
  record("copies.2d_null_destination", api.cuMemcpy2D(&odd));
  odd = plane;
  odd.Height = 1000000;
  record("copies.2d_beyond_end", api.cuMemcpy2D(&odd));
  odd = plane;
  odd.srcMemoryType = CUmemorytype(99);
  record("copies.2d_bad_type", api.cuMemcpy2D(&odd));
  odd = plane;
  odd.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  odd.srcDevice = q;
  record("copies.2d_unified_source", api.cuMemcpy2D(&odd));
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = q;
  box.srcPitch = 256;
  box.srcHeight = 16;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = p;
  box.dstPitch = 256;
  box.dstHeight = 16;
  box.WidthInBytes = 128;
  box.Height = 8;
  box.Depth = 4;
  record("copies.3d", api.cuMemcpy3D(&box));
  box.dstHeight = 4;
  record("copies.3d_height_below", api.cuMemcpy3D(&box));
  record("copies.synchronize_at_end", api.cuCtxSynchronize());
}

}  // namespace conformance
