// Pitched allocations; copies and memsets of rectangles and boxes in every direction.
#include "common.h"

__global__ void increment(uint32_t* base, size_t pitch, uint32_t width, uint32_t height) {
  const uint32_t x = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t y = blockIdx.y;
  if (x < width && y < height) ++reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(base) + y * pitch)[x];
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr uint32_t kWidth = 300, kHeight = 1024;  // in words, in rows: no round width
  const uint32_t seed = uint32_t(options.seed);
  size_t pitch = 0;
  std::vector<uint32_t*> images;
  for (size_t used = 0; used < options.bytes || images.size() < 2; used += pitch * kHeight) {
    uint32_t* p;
    RUNTIME_OK(cudaMallocPitch(reinterpret_cast<void**>(&p), &pitch, kWidth * 4, kHeight));
    CHECK(pitch >= kWidth * 4, "pitch %zu is below the width", pitch);
    images.push_back(p);
  }
  std::vector<uint32_t> host(kWidth * kHeight), back(kWidth * kHeight);
  for (size_t k = 0; k < images.size(); ++k) {
    for (uint32_t i = 0; i < kWidth * kHeight; ++i) host[i] = apps::word(i, seed + uint32_t(k));
    RUNTIME_OK(cudaMemset2D(images[k], pitch, 0xee, pitch, kHeight));
    RUNTIME_OK(cudaMemcpy2D(images[k], pitch, host.data(), kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice));
    increment<<<dim3(apps::blocks(kWidth), kHeight), 256>>>(images[k], pitch, kWidth, kHeight);
  }
  RUNTIME_OK(cudaGetLastError());
  // Device to device: each image's middle goes into the next image's middle, from the last to the first.
  constexpr uint32_t kX = 50, kY = 100, kW = 123, kH = 456;
  for (size_t k = images.size() - 1; k > 0; --k) {
    char* to = reinterpret_cast<char*>(images[k]) + kY * pitch + kX * 4;
    const char* from = reinterpret_cast<const char*>(images[k - 1]) + kY * pitch + kX * 4;
    RUNTIME_OK(cudaMemcpy2DAsync(to, pitch, from, pitch, kW * 4, kH, cudaMemcpyDeviceToDevice));
  }
  for (size_t k = 0; k < images.size(); ++k) {
    RUNTIME_OK(cudaMemcpy2D(back.data(), kWidth * 4, images[k], pitch, kWidth * 4, kHeight, cudaMemcpyDeviceToHost));
    for (uint32_t y = 0; y < kHeight; ++y) {
      for (uint32_t x = 0; x < kWidth; ++x) {
        const bool middle = k > 0 && x >= kX && x < kX + kW && y >= kY && y < kY + kH;
        const uint32_t expected = apps::word(y * kWidth + x, seed + uint32_t(k) - (middle ? 1 : 0)) + 1;
        CHECK(back[y * kWidth + x] == expected, "image %zu at %u,%u is %#x, expected %#x", k, x, y,
              back[y * kWidth + x], expected);
      }
    }
    // What lies between the rows was set once and must have stayed.
    std::vector<uint8_t> row(pitch);
    RUNTIME_OK(cudaMemcpy(row.data(), reinterpret_cast<char*>(images[k]) + 7 * pitch, pitch, cudaMemcpyDeviceToHost));
    for (size_t i = kWidth * 4; i < pitch; ++i) CHECK(row[i] == 0xee, "padding byte %zu is %#x", i, row[i]);
  }
  // A box: 16 x 16 x 16 words out of a pitched volume.
  constexpr size_t kSide = 16;
  cudaPitchedPtr volume;
  RUNTIME_OK(cudaMalloc3D(&volume, make_cudaExtent(40 * 4, 32, 32)));
  RUNTIME_OK(cudaMemset3D(volume, 0, make_cudaExtent(40 * 4, 32, 32)));
  std::vector<uint32_t> box(kSide * kSide * kSide), got(kSide * kSide * kSide);
  for (uint32_t i = 0; i < box.size(); ++i) box[i] = apps::word(i, seed ^ 0xb0c5);
  cudaMemcpy3DParms in{};
  in.srcPtr = make_cudaPitchedPtr(box.data(), kSide * 4, kSide, kSide);
  in.dstPtr = volume;
  in.dstPos = make_cudaPos(8 * 4, 5, 3);
  in.extent = make_cudaExtent(kSide * 4, kSide, kSide);
  in.kind = cudaMemcpyHostToDevice;
  RUNTIME_OK(cudaMemcpy3D(&in));
  cudaMemcpy3DParms out{};
  out.srcPtr = volume;
  out.srcPos = in.dstPos;
  out.dstPtr = make_cudaPitchedPtr(got.data(), kSide * 4, kSide, kSide);
  out.extent = in.extent;
  out.kind = cudaMemcpyDeviceToHost;
  RUNTIME_OK(cudaMemcpy3D(&out));
  CHECK(got == box, "the box came back different");
  // One rectangle of more than forwarded calls hold.
  if (options.bytes >= 128u << 20) {
    constexpr size_t kRow = 60000, kRows = 1200;
    char* large;
    size_t large_pitch;
    RUNTIME_OK(cudaMallocPitch(reinterpret_cast<void**>(&large), &large_pitch, kRow, kRows));
    std::vector<uint32_t> sent(kRow / 4 * kRows), came(kRow / 4 * kRows);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = apps::word(uint32_t(i), seed ^ 0x1a49e);
    RUNTIME_OK(cudaMemcpy2D(large, large_pitch, sent.data(), kRow, kRow, kRows, cudaMemcpyHostToDevice));
    RUNTIME_OK(cudaMemcpy2D(came.data(), kRow, large, large_pitch, kRow, kRows, cudaMemcpyDeviceToHost));
    CHECK(came == sent, "the large rectangle came back different");
  }
  return apps::ok("copy_2d with %zu images, pitch %zu", images.size(), pitch);
}
