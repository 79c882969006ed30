// Pitched allocations; copies and memsets of rectangles and boxes in every direction; asynchronous
// ones to pinned memory.
#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

__global__ void increment(uint32_t* base, size_t pitch, uint32_t width, uint32_t height) {
  const uint32_t x = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t y = blockIdx.y;
  if (x < width && y < height)
    ++reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(base) + y * pitch)[x];
}

namespace {

/// A stream that goes on when the program says so; after a while it does all the same.
struct Gate {
  std::atomic<bool> open{false}, late{false};
};
void CUDART_CB waitAt(void* data) {
  auto* const gate = static_cast<Gate*>(data);
  for (unsigned ms = 0; !gate->open && ms < 10000; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  gate->late = !gate->open;
}

/// Rectangles and a box that nobody waits for: they come behind what is in the stream, and touch
/// nothing between their rows.
void behindGate(uint32_t seed) {
  constexpr size_t kRow = 5000, kRows = 700, kInto = 6000;  // of 3.5 MB: more than one piece
  constexpr size_t kX = 300, kY = 7;
  constexpr size_t kSide = 24, kVolume = 64 * kSide * kSide;
  Gate gate;
  cudaStream_t stream;
  char *device, *word;
  uint8_t *pinned, *box;
  size_t pitch;
  cudaEvent_t event;
  RUNTIME_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaMallocPitch(reinterpret_cast<void**>(&device), &pitch, kRow, kRows));
  RUNTIME_OK(cudaMalloc(reinterpret_cast<void**>(&word), 256));
  RUNTIME_OK(
      cudaHostAlloc(reinterpret_cast<void**>(&pinned), kInto * (kRows + kY), cudaHostAllocDefault));
  RUNTIME_OK(cudaHostAlloc(reinterpret_cast<void**>(&box), kVolume, cudaHostAllocDefault));
  std::vector<uint32_t> sent(kRow / 4 * kRows);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = apps::word(uint32_t(i), seed ^ 0xa57c);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(sent.data());
  std::memset(pinned, 0x77, kInto * (kRows + kY));
  std::memset(box, 0x66, kVolume);
  RUNTIME_OK(cudaMemset2D(device, pitch, 0, kRow, kRows));
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaLaunchHostFunc(stream, waitAt, &gate));
  RUNTIME_OK(cudaMemcpy2DAsync(pinned + kY * kInto + kX, kInto, device, pitch, kRow, kRows,
                               cudaMemcpyDeviceToHost, stream));
  cudaMemcpy3DParms out{};
  out.srcPtr = make_cudaPitchedPtr(device, pitch, kRow, kSide);  // rows 1 to 4 of 8 layers
  out.srcPos = make_cudaPos(12, 1, 0);
  out.dstPtr = make_cudaPitchedPtr(box, 64, 64, kSide);
  out.dstPos = make_cudaPos(3, 2, 1);
  out.extent = make_cudaExtent(40, 4, 8);
  out.kind = cudaMemcpyDeviceToHost;
  RUNTIME_OK(cudaMemcpy3DAsync(&out, stream));
  CHECK(!gate.late, "a copy to pinned memory waited for its stream");
  CHECK(pinned[kY * kInto + kX] == 0x77 && box[64 * (kSide + 2) + 3] == 0x66,
        "a copy did not wait for what is before it in its stream");
  gate.open = true;
  RUNTIME_OK(cudaStreamSynchronize(stream));
  // The zeros are the image now; the same once more, behind a copy to the GPU in the same stream.
  for (int again = 0; again < 2; ++again) {
    for (size_t y = 0; y < kRows + kY; ++y)
      for (size_t x = 0; x < kInto; ++x) {
        const bool in = y >= kY && x >= kX && x < kX + kRow;
        const uint8_t is = pinned[y * kInto + x], expected = !in ? 0x77
                                                             : again
                                                                 ? bytes[(y - kY) * kRow + x - kX]
                                                                 : 0;
        CHECK(is == expected, "byte %zu of row %zu is %#x, expected %#x", x, y, is, expected);
      }
    for (size_t i = 0; i < kVolume; ++i) {
      const size_t x = i % 64, y = i / 64 % kSide, z = i / 64 / kSide;
      const bool in = x >= 3 && x < 43 && y >= 2 && y < 6 && z >= 1 && z < 9;
      const uint8_t expected = !in     ? 0x66
                               : again ? bytes[((z - 1) * kSide + y - 1) * kRow + x - 3 + 12]
                                       : 0;
      CHECK(box[i] == expected, "byte %zu of row %zu of layer %zu is %#x, expected %#x", x, y, z,
            box[i], expected);
    }
    if (again) break;
    RUNTIME_OK(cudaMemcpy2DAsync(device, pitch, sent.data(), kRow, kRow, kRows,
                                 cudaMemcpyHostToDevice, stream));
    RUNTIME_OK(cudaMemcpy2DAsync(pinned + kY * kInto + kX, kInto, device, pitch, kRow, kRows,
                                 cudaMemcpyDeviceToHost, stream));
    RUNTIME_OK(cudaMemcpy3DAsync(&out, stream));
    RUNTIME_OK(cudaEventRecord(event, stream));
    RUNTIME_OK(cudaEventSynchronize(event));
  }
  // Bytes in a row are read when they have come, without anybody who waits for them.
  RUNTIME_OK(cudaMemset2DAsync(device, pitch, 0x3c, kRow, kRows, stream));
  RUNTIME_OK(cudaMemcpy2DAsync(pinned + kY * kInto + kX, kInto, device, pitch, kRow, kRows,
                               cudaMemcpyDeviceToHost, stream));
  RUNTIME_OK(cudaMemcpyAsync(word, pinned + (kY + kRows - 1) * kInto + kX + kRow - 16, 16,
                             cudaMemcpyHostToDevice, stream));
  uint32_t read = 0;
  RUNTIME_OK(cudaMemcpyAsync(&read, word, sizeof read, cudaMemcpyDeviceToHost, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(read == 0x3c3c3c3c, "%#x was read from pinned memory before it had come", read);
  RUNTIME_OK(cudaFree(device));
  RUNTIME_OK(cudaFree(word));
  RUNTIME_OK(cudaFreeHost(pinned));
  RUNTIME_OK(cudaFreeHost(box));
}

}  // namespace

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
    RUNTIME_OK(cudaMemcpy2D(images[k], pitch, host.data(), kWidth * 4, kWidth * 4, kHeight,
                            cudaMemcpyHostToDevice));
    increment<<<dim3(apps::blocks(kWidth), kHeight), 256>>>(images[k], pitch, kWidth, kHeight);
  }
  RUNTIME_OK(cudaGetLastError());
  // Device to device: each image's middle goes into the next image's middle, from the last to the
  // first.
  constexpr uint32_t kX = 50, kY = 100, kW = 123, kH = 456;
  for (size_t k = images.size() - 1; k > 0; --k) {
    char* to = reinterpret_cast<char*>(images[k]) + kY * pitch + kX * 4;
    const char* from = reinterpret_cast<const char*>(images[k - 1]) + kY * pitch + kX * 4;
    RUNTIME_OK(cudaMemcpy2DAsync(to, pitch, from, pitch, kW * 4, kH, cudaMemcpyDeviceToDevice));
  }
  for (size_t k = 0; k < images.size(); ++k) {
    RUNTIME_OK(cudaMemcpy2D(back.data(), kWidth * 4, images[k], pitch, kWidth * 4, kHeight,
                            cudaMemcpyDeviceToHost));
    for (uint32_t y = 0; y < kHeight; ++y) {
      for (uint32_t x = 0; x < kWidth; ++x) {
        const bool middle = k > 0 && x >= kX && x < kX + kW && y >= kY && y < kY + kH;
        const uint32_t expected =
            apps::word(y * kWidth + x, seed + uint32_t(k) - (middle ? 1 : 0)) + 1;
        CHECK(back[y * kWidth + x] == expected, "image %zu at %u,%u is %#x, expected %#x", k, x, y,
              back[y * kWidth + x], expected);
      }
    }
    // Bytes between the rows were set once and must have stayed.
    std::vector<uint8_t> row(pitch);
    RUNTIME_OK(cudaMemcpy(row.data(), reinterpret_cast<char*>(images[k]) + 7 * pitch, pitch,
                          cudaMemcpyDeviceToHost));
    for (size_t i = kWidth * 4; i < pitch; ++i)
      CHECK(row[i] == 0xee, "padding byte %zu is %#x", i, row[i]);
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
  behindGate(seed);
  // One rectangle of more than forwarded calls hold.
  if (options.bytes >= 128u << 20) {
    constexpr size_t kRow = 60000, kRows = 1200;
    char* large;
    size_t large_pitch;
    RUNTIME_OK(cudaMallocPitch(reinterpret_cast<void**>(&large), &large_pitch, kRow, kRows));
    std::vector<uint32_t> sent(kRow / 4 * kRows), came(kRow / 4 * kRows);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = apps::word(uint32_t(i), seed ^ 0x1a49e);
    RUNTIME_OK(
        cudaMemcpy2D(large, large_pitch, sent.data(), kRow, kRow, kRows, cudaMemcpyHostToDevice));
    RUNTIME_OK(
        cudaMemcpy2D(came.data(), kRow, large, large_pitch, kRow, kRows, cudaMemcpyDeviceToHost));
    CHECK(came == sent, "the large rectangle came back different");
  }
  return apps::ok("copy_2d with %zu images, pitch %zu", images.size(), pitch);
}
