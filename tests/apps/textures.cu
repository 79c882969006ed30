// Textures and surfaces of each kind, as the runtime offers them, over paged memory and over
// arrays, while everything else of the program is paged. Expected values come from the CPU.
#include <cmath>

#include "common.h"

namespace {

constexpr int kSide = 96;  // of arrays

__global__ void fetchLinear(cudaTextureObject_t texture, uint32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    out[i] = tex1Dfetch<unsigned>(texture, i) + tex1Dfetch<unsigned>(texture, count - 1 - i);
}

// Normalised coordinates from -1 to 2: the image three times in each direction.
__global__ void sampleAround(cudaTextureObject_t texture, float4* out, int side) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= side) return;
  out[y * side + x] =
      tex2D<float4>(texture, 3 * (x + 0.25f) / side - 1, 3 * (y + 0.25f) / side - 1);
}

__global__ void sampleVolume(cudaTextureObject_t texture, float* out, int side) {
  const int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
  out[(z * side + y) * side + x] = tex3D<float>(texture, x + 0.5f, y + 0.5f, z + 0.5f);
}

__global__ void sampleLayers(cudaTextureObject_t texture, float* out, int side) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y, layer = blockIdx.z;
  if (x < side)
    out[(layer * side + y) * side + x] = tex2DLayered<float>(texture, x + 0.5f, y + 0.5f, layer);
}

// Reads one surface and writes the other; the border, read with an offset, is zero.
__global__ void shiftSurface(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int side, int by) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= side) return;
  uchar4 texel;
  surf2Dread(&texel, from, (x + by) * 4, y, cudaBoundaryModeZero);
  surf2Dwrite(texel, to, x * 4, y);
}

uchar4 imageAt(int x, int y, uint32_t seed) {
  const uint32_t w = apps::word(uint32_t(y * kSide + x), seed);
  return make_uchar4(w & 255, w >> 8 & 255, w >> 16 & 255, w >> 24);
}

cudaTextureObject_t textureOf(cudaArray_t array, cudaTextureDesc how) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureObject_t texture = 0;
  RUNTIME_OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  cudaResourceDesc got{};
  RUNTIME_OK(cudaGetTextureObjectResourceDesc(&got, texture));
  CHECK(got.resType == cudaResourceTypeArray && got.res.array.array == array,
        "the texture's description is another's");
  return texture;
}

cudaSurfaceObject_t surfaceOf(cudaArray_t array) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaSurfaceObject_t surface = 0;
  RUNTIME_OK(cudaCreateSurfaceObject(&surface, &resource));
  return surface;
}

template <typename T>
std::vector<T> download(const void* from, size_t count) {
  std::vector<T> out(count);
  RUNTIME_OK(cudaMemcpy(out.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
  return out;
}

void linearMemory(apps::Pressure& pressure, uint32_t seed) {
  constexpr int kCount = 600'000;  // more than one page
  uint32_t *words, *out;
  RUNTIME_OK(cudaMalloc(&words, kCount * 4));
  RUNTIME_OK(cudaMalloc(&out, kCount * 4));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = words;
  resource.res.linear.desc = cudaCreateChannelDesc<unsigned>();
  resource.res.linear.sizeInBytes = kCount * 4;
  cudaTextureDesc how{};
  how.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  RUNTIME_OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  for (uint32_t round = 0; round < 2; ++round) {
    std::vector<uint32_t> host(kCount);
    for (int i = 0; i < kCount; ++i) host[i] = apps::word(i, seed + round);
    RUNTIME_OK(cudaMemcpy(words, host.data(), kCount * 4, cudaMemcpyHostToDevice));
    pressure.apply();
    fetchLinear<<<apps::blocks(kCount), 256>>>(texture, out, kCount);
    RUNTIME_OK(cudaGetLastError());
    const auto got = download<uint32_t>(out, kCount);
    for (int i = 0; i < kCount; ++i)
      CHECK(got[i] == host[i] + host[kCount - 1 - i], "linear memory, round %u, texel %d: %#x",
            round, i, got[i]);
  }
  // In this order; what comes to lie at the same address has nothing to do with the old object.
  RUNTIME_OK(cudaFree(words));
  uint32_t* next;
  RUNTIME_OK(cudaMalloc(&next, kCount * 4));
  resource.res.linear.devPtr = next;
  cudaTextureObject_t other = 0;
  RUNTIME_OK(cudaCreateTextureObject(&other, &resource, &how, nullptr));
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  apps::fill(next, kCount * 4, seed);
  const auto filled = download<uint32_t>(next, kCount);
  pressure.apply();
  pressure.apply();
  fetchLinear<<<apps::blocks(kCount), 256>>>(other, out, kCount);
  const auto got = download<uint32_t>(out, kCount);
  for (int i = 0; i < kCount; ++i)
    CHECK(got[i] == filled[i] + filled[kCount - 1 - i],
          "memory that an older object had, texel %d: %#x", i, got[i]);
  RUNTIME_OK(cudaDestroyTextureObject(other));
  RUNTIME_OK(cudaFree(next));
  RUNTIME_OK(cudaFree(out));
}

void image(apps::Pressure& pressure, uint32_t seed) {
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
  RUNTIME_OK(cudaMallocArray(&array, &format, kSide, kSide));
  std::vector<uchar4> host(kSide * kSide);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) host[y * kSide + x] = imageAt(x, y, seed);
  // By way of paged memory.
  uchar4* staged;
  RUNTIME_OK(cudaMalloc(&staged, host.size() * 4));
  RUNTIME_OK(cudaMemcpy(staged, host.data(), host.size() * 4, cudaMemcpyHostToDevice));
  pressure.apply();
  RUNTIME_OK(cudaMemcpy2DToArray(array, 0, 0, staged, kSide * 4, kSide * 4, kSide,
                                 cudaMemcpyDeviceToDevice));
  cudaTextureDesc how{};
  how.readMode = cudaReadModeNormalizedFloat;
  how.filterMode = cudaFilterModeLinear;
  how.normalizedCoords = 1;
  how.addressMode[0] = cudaAddressModeWrap;
  how.addressMode[1] = cudaAddressModeMirror;
  const cudaTextureObject_t texture = textureOf(array, how);
  float4* out;
  RUNTIME_OK(cudaMalloc(&out, kSide * kSide * sizeof(float4)));
  sampleAround<<<dim3(apps::blocks(kSide, 64), kSide), 64>>>(texture, out, kSide);
  RUNTIME_OK(cudaGetLastError());
  const auto got = download<float4>(out, kSide * kSide);
  const auto wrap = [](int i) { return ((i % kSide) + kSide) % kSide; };
  const auto mirror = [](int i) {
    const int m = ((i % (2 * kSide)) + 2 * kSide) % (2 * kSide);
    return m < kSide ? m : 2 * kSide - 1 - m;
  };
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double u = 3 * (x + 0.25) - kSide - 0.5, v = 3 * (y + 0.25) - kSide - 0.5;
      const int i = int(std::floor(u)), j = int(std::floor(v));
      const double a = u - i, b = v - j;
      double expected = 0;
      for (int k = 0; k < 4; ++k) {
        const int dx = k & 1, dy = k >> 1;
        expected += (dx ? a : 1 - a) * (dy ? b : 1 - b) *
                    imageAt(wrap(i + dx), mirror(j + dy), seed).y / 255.0;
      }
      CHECK(std::fabs(got[y * kSide + x].y - expected) < 0.01,
            "filtered image at %d, %d: %f, expected %f", x, y, got[y * kSide + x].y, expected);
    }
  }
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  RUNTIME_OK(cudaFreeArray(array));
  RUNTIME_OK(cudaFree(out));
  RUNTIME_OK(cudaFree(staged));
}

// A volume and layers: filled by 3D copies, read texel by texel.
void volume(bool layered, apps::Pressure& pressure, uint32_t seed) {
  constexpr int kCube = 24;
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  RUNTIME_OK(cudaMalloc3DArray(&array, &format, make_cudaExtent(kCube, kCube, kCube),
                               layered ? cudaArrayLayered : cudaArrayDefault));
  std::vector<float> host(kCube * kCube * kCube);
  for (size_t i = 0; i < host.size(); ++i) host[i] = float(apps::word(uint32_t(i), seed) & 0xffff);
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(host.data(), kCube * 4, kCube, kCube);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(kCube, kCube, kCube);
  copy.kind = cudaMemcpyHostToDevice;
  RUNTIME_OK(cudaMemcpy3D(&copy));
  cudaTextureDesc how{};
  how.readMode = cudaReadModeElementType;
  const cudaTextureObject_t texture = textureOf(array, how);
  float* out;
  RUNTIME_OK(cudaMalloc(&out, host.size() * 4));
  pressure.apply();
  if (layered) {
    sampleLayers<<<dim3(1, kCube, kCube), 32>>>(texture, out, kCube);
  } else {
    sampleVolume<<<dim3(kCube, kCube), kCube>>>(texture, out, kCube);
  }
  RUNTIME_OK(cudaGetLastError());
  CHECK(download<float>(out, host.size()) == host, "%s: what the texture read differs",
        layered ? "layers" : "volume");
  // And back through the array, into the middle of paged memory.
  cudaMemcpy3DParms back{};
  back.srcArray = array;
  back.dstPtr = make_cudaPitchedPtr(out, kCube * 4, kCube, kCube);
  back.extent = make_cudaExtent(kCube, kCube, kCube);
  back.kind = cudaMemcpyDeviceToDevice;
  RUNTIME_OK(cudaMemset(out, 0, host.size() * 4));
  pressure.apply();
  RUNTIME_OK(cudaMemcpy3D(&back));
  CHECK(download<float>(out, host.size()) == host, "%s: what was copied out differs",
        layered ? "layers" : "volume");
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  RUNTIME_OK(cudaFreeArray(array));
  RUNTIME_OK(cudaFree(out));
}

void surfaces(apps::Pressure& pressure, uint32_t seed) {
  cudaArray_t arrays[2];
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<uchar4>();
  for (cudaArray_t& array : arrays)
    RUNTIME_OK(cudaMallocArray(&array, &format, kSide, kSide, cudaArraySurfaceLoadStore));
  std::vector<uchar4> host(kSide * kSide);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) host[y * kSide + x] = imageAt(x, y, seed);
  RUNTIME_OK(cudaMemcpy2DToArray(arrays[0], 0, 0, host.data(), kSide * 4, kSide * 4, kSide,
                                 cudaMemcpyHostToDevice));
  const cudaSurfaceObject_t from = surfaceOf(arrays[0]), to = surfaceOf(arrays[1]);
  uchar4* out;
  RUNTIME_OK(cudaMalloc(&out, host.size() * 4));
  for (int by : {7, -5}) {
    shiftSurface<<<dim3(apps::blocks(kSide, 32), kSide), 32>>>(from, to, kSide, by);
    RUNTIME_OK(cudaGetLastError());
    pressure.apply();
    RUNTIME_OK(cudaMemcpy2DFromArray(out, kSide * 4, arrays[1], 0, 0, kSide * 4, kSide,
                                     cudaMemcpyDeviceToDevice));
    const auto got = download<uchar4>(out, host.size());
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const bool inside = x + by >= 0 && x + by < kSide;
        const uchar4 expected = inside ? imageAt(x + by, y, seed) : make_uchar4(0, 0, 0, 0);
        CHECK(std::memcmp(&got[y * kSide + x], &expected, 4) == 0,
              "surface shifted by %d differs at %d, %d", by, x, y);
      }
    }
  }
  // A surface that was written is read as a texture.
  cudaTextureDesc how{};
  how.readMode = cudaReadModeNormalizedFloat;
  const cudaTextureObject_t texture = textureOf(arrays[1], how);
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  RUNTIME_OK(cudaDestroySurfaceObject(from));
  RUNTIME_OK(cudaDestroySurfaceObject(to));
  for (cudaArray_t array : arrays) RUNTIME_OK(cudaFreeArray(array));
  RUNTIME_OK(cudaFree(out));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const auto seed = uint32_t(options.seed);
  apps::Pressure pressure(options.bytes);
  linearMemory(pressure, seed);
  image(pressure, seed + 1);
  volume(false, pressure, seed + 2);
  volume(true, pressure, seed + 3);
  surfaces(pressure, seed + 4);
  pressure.check();
  return apps::ok("textures");
}
