// Sources of texture and surface objects. That kernels read them right is shown by tests/unit/ptx
// and tests/apps.
#include "driver.h"

using namespace simgpu_test;

namespace {

CUDA_RESOURCE_DESC linear(CUdeviceptr address, size_t bytes,
                          CUarray_format format = CU_AD_FORMAT_FLOAT, unsigned channels = 1) {
  CUDA_RESOURCE_DESC out{};
  out.resType = CU_RESOURCE_TYPE_LINEAR;
  out.res.linear.devPtr = address;
  out.res.linear.format = format;
  out.res.linear.numChannels = channels;
  out.res.linear.sizeInBytes = bytes;
  return out;
}

CUDA_RESOURCE_DESC pitched(CUdeviceptr address, size_t width, size_t height, size_t pitch) {
  CUDA_RESOURCE_DESC out{};
  out.resType = CU_RESOURCE_TYPE_PITCH2D;
  out.res.pitch2D.devPtr = address;
  out.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT8;
  out.res.pitch2D.numChannels = 4;
  out.res.pitch2D.width = width;
  out.res.pitch2D.height = height;
  out.res.pitch2D.pitchInBytes = pitch;
  return out;
}

CUDA_RESOURCE_DESC over(CUarray array) {
  CUDA_RESOURCE_DESC out{};
  out.resType = CU_RESOURCE_TYPE_ARRAY;
  out.res.array.hArray = array;
  return out;
}

CUresult make(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& how = {}) {
  CUtexObject object = 0;
  const CUresult result = CU(cuTexObjectCreate)(&object, &resource, &how, nullptr);
  if (result == CUDA_SUCCESS) OK(CU(cuTexObjectDestroy)(object));
  return result;
}

CUarray array(size_t width, size_t height, size_t depth, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = width, descriptor.Height = height, descriptor.Depth = depth;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  descriptor.NumChannels = 4;
  descriptor.Flags = flags;
  CUarray out = nullptr;
  const CUresult result = CU(cuArray3DCreate)(&out, &descriptor);
  INFO(width << "x" << height << "x" << depth << ", flags " << flags);
  if (result != CUDA_ERROR_INVALID_VALUE) OK(result);
  return out;
}

}  // namespace

TEST_CASE("textures over memory: addresses, sizes, what may be filtered", "[texture]") {
  const Primary primary;
  CUdeviceptr memory = 0;
  OK(CU(cuMemAlloc)(&memory, kPage));
  CHECK(make(linear(memory, kPage)) == CUDA_SUCCESS);
  CHECK(make(linear(memory + 512, 16)) == CUDA_SUCCESS);
  CHECK(make(linear(memory + 256, 16)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(linear(memory, kPage + 4)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(linear(memory, 3)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(linear(memory, 64, CU_AD_FORMAT_FLOAT, 3)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(linear(0x1000, 64)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(pitched(memory, 100, 50, 416)) == CUDA_SUCCESS);
  CHECK(make(pitched(memory, 100, 50, 384)) == CUDA_ERROR_INVALID_VALUE);  // narrower than a row
  CHECK(make(pitched(memory, 100, 50, 404)) == CUDA_ERROR_INVALID_VALUE);  // not a multiple of 32
  CHECK(make(pitched(memory, 100, kPage / 416 + 1, 416)) == CUDA_ERROR_INVALID_VALUE);

  CUDA_TEXTURE_DESC filtered{};
  filtered.filterMode = CU_TR_FILTER_MODE_LINEAR;
  CHECK(make(pitched(memory, 100, 50, 416), filtered) == CUDA_SUCCESS);
  filtered.flags = CU_TRSF_READ_AS_INTEGER;
  CHECK(make(pitched(memory, 100, 50, 416), filtered) == CUDA_ERROR_INVALID_VALUE);
  CHECK(make(linear(memory, 64, CU_AD_FORMAT_UNSIGNED_INT32), filtered) ==
        CUDA_ERROR_INVALID_VALUE);
  CUDA_TEXTURE_DESC srgb{};
  srgb.flags = CU_TRSF_SRGB;
  CHECK(make(pitched(memory, 100, 50, 416), srgb) == CUDA_SUCCESS);
  CHECK(make(linear(memory, 64), srgb) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemFree)(memory));
}

TEST_CASE("arrays of every shape, textures and surfaces over them", "[texture][array]") {
  const Primary primary;
  CHECK(array(8, 0, 4, 0) == nullptr);  // no height but a depth
  CHECK(array(8, 8, 0, CUDA_ARRAY3D_LAYERED) == nullptr);
  CHECK(array(8, 8, 5, CUDA_ARRAY3D_CUBEMAP) == nullptr);
  CHECK(array(8, 4, 6, CUDA_ARRAY3D_CUBEMAP) == nullptr);
  for (const CUarray each :
       {array(8, 0, 0, 0), array(8, 4, 0, 0), array(8, 4, 3, 0),
        array(8, 0, 3, CUDA_ARRAY3D_LAYERED), array(8, 4, 3, CUDA_ARRAY3D_LAYERED)}) {
    REQUIRE(each != nullptr);
    CHECK(make(over(each)) == CUDA_SUCCESS);
    CUsurfObject surface = 0;
    const CUDA_RESOURCE_DESC resource = over(each);
    CHECK(CU(cuSurfObjectCreate)(&surface, &resource) ==
          CUDA_ERROR_INVALID_VALUE);  // was not made for it
    OK(CU(cuArrayDestroy)(each));
    CHECK(make(over(each)) == CUDA_ERROR_INVALID_HANDLE);
  }
  const CUarray cube = array(8, 8, 6, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_SURFACE_LDST);
  CHECK(make(over(cube)) == CUDA_ERROR_NOT_SUPPORTED);
  CUsurfObject surface = 0;
  const CUDA_RESOURCE_DESC faces = over(cube);
  OK(CU(cuSurfObjectCreate)(&surface, &faces));
  CUDA_RESOURCE_DESC got{};
  OK(CU(cuSurfObjectGetResourceDesc)(&got, surface));
  CHECK(got.res.array.hArray == cube);
  OK(CU(cuSurfObjectDestroy)(surface));
  CHECK(CU(cuSurfObjectDestroy)(surface) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuArrayDestroy)(cube));
}

TEST_CASE("objects and arrays end with their context", "[texture][array]") {
  const Primary primary;
  CUdeviceptr memory = 0;
  OK(CU(cuMemAlloc)(&memory, 4096));
  CUtexObject texture = 0;
  const CUDA_RESOURCE_DESC words = linear(memory, 4096);
  const CUDA_TEXTURE_DESC how{};
  OK(CU(cuTexObjectCreate)(&texture, &words, &how, nullptr));
  CUDA_RESOURCE_DESC got{};
  OK(CU(cuTexObjectGetResourceDesc)(&got, texture));
  CHECK(got.res.linear.devPtr == memory);
  const CUarray kept = array(8, 8, 0, 0);
  OK(CU(cuDevicePrimaryCtxReset)(primary.device));
  OK(CU(cuDevicePrimaryCtxRetain)(const_cast<CUcontext*>(&primary.context), primary.device));
  OK(CU(cuCtxSetCurrent)(primary.context));
  CHECK(CU(cuTexObjectGetResourceDesc)(&got, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuArrayDestroy)(kept) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(CU(cuTexObjectDestroy)(texture) == CUDA_ERROR_INVALID_VALUE);
}
