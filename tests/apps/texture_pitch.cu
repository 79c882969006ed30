// A texture object over pitched memory: no launch names that memory, and it has to be there
// whatever else is paged.
#include "common.h"

__global__ void sample(cudaTextureObject_t texture, float* out, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + 0.5f, y + 0.5f);
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr int kWidth = 500, kHeight = 300;
  float *image, *out;
  size_t pitch;
  RUNTIME_OK(cudaMallocPitch(&image, &pitch, kWidth * 4, kHeight));
  RUNTIME_OK(cudaMalloc(&out, kWidth * kHeight * 4));
  std::vector<float> host(kWidth * kHeight), got(kWidth * kHeight);
  for (int i = 0; i < kWidth * kHeight; ++i)
    host[i] = float(apps::word(i, uint32_t(options.seed)) & 0xffff);
  RUNTIME_OK(cudaMemcpy2D(image, pitch, host.data(), kWidth * 4, kWidth * 4, kHeight,
                          cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D.devPtr = image;
  resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
  resource.res.pitch2D.width = kWidth;
  resource.res.pitch2D.height = kHeight;
  resource.res.pitch2D.pitchInBytes = pitch;
  cudaTextureDesc description{};
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  RUNTIME_OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  apps::Pressure pressure(options.bytes);
  for (int round = 0; round < 3; ++round) {
    pressure.apply();
    sample<<<dim3(apps::blocks(kWidth), kHeight), 256>>>(texture, out, kWidth, kHeight);
    RUNTIME_OK(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(got == host, "round %d: what the texture read differs", round);
  }
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  RUNTIME_OK(cudaFree(image));
  pressure.check();
  return apps::ok("texture_pitch");
}
