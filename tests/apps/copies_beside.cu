// One thread has kernels and host functions use managed memory in turns; another one copies to and
// from memory that is not pinned, as the default stream does it: behind all that is in the first
// one's stream by then. So a function comes before, behind and amid the copies.
#include <atomic>
#include <thread>
#include <vector>

#include "host_changes.h"

namespace {

constexpr size_t kRow = 1 << 20, kRows = 3, kPitch = kRow + 4096;
std::atomic<bool> g_done{false};

struct Buffers {
  uint8_t* device;
  cudaArray_t array;
};

void fillWith(std::vector<uint8_t>& bytes, uint32_t round) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t(i * 7 + (i >> 12) + round);
}

// Bytes go there and come back by the same way.
void copy(const Buffers& buffers, cudaStream_t stream, uint32_t round) {
  static constexpr size_t kSizes[] = {64, 40 << 10, 200 << 10, 3 << 20};
  const size_t bytes = kSizes[round / 4 % 4];
  const bool box = round % 4 == 1;
  std::vector<uint8_t> from(box ? kRow * kRows : bytes), to(from.size());
  fillWith(from, round);
  switch (round % 4) {
    case 0:
      RUNTIME_OK(cudaMemcpy(buffers.device, from.data(), bytes, cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaMemcpy(to.data(), buffers.device, bytes, cudaMemcpyDeviceToHost));
      break;
    case 1:
      RUNTIME_OK(cudaMemcpy2D(buffers.device, kPitch, from.data(), kRow, kRow, kRows,
                              cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaMemcpy2D(to.data(), kRow, buffers.device, kPitch, kRow, kRows,
                              cudaMemcpyDeviceToHost));
      break;
    case 2:
      RUNTIME_OK(
          cudaMemcpyAsync(buffers.device, from.data(), bytes, cudaMemcpyHostToDevice, stream));
      RUNTIME_OK(cudaMemcpyAsync(to.data(), buffers.device, bytes, cudaMemcpyDeviceToHost, stream));
      RUNTIME_OK(cudaStreamSynchronize(stream));
      break;
    default:
      if (buffers.array == nullptr) return;
      from.resize(1024 * 256), to.resize(from.size());
      fillWith(from, round);
      RUNTIME_OK(cudaMemcpy2DToArray(buffers.array, 0, 0, from.data(), 1024, 1024, 256,
                                     cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaMemcpy2DFromArray(to.data(), 1024, buffers.array, 0, 0, 1024, 256,
                                       cudaMemcpyDeviceToHost));
  }
  CHECK(to == from, "copy %u brought other bytes", round);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  HostChanges changes(stream);
  Buffers buffers{};
  RUNTIME_OK(cudaMalloc(&buffers.device, kPitch * kRows));
  // In a unified view an array is at one GPU, and so is all that a program with one launches.
  const cudaChannelFormatDesc word = cudaCreateChannelDesc<uint32_t>();
  if (options.seed % 2 == 1) RUNTIME_OK(cudaMallocArray(&buffers.array, &word, 256, 256));
  changes.byKernel(0, 1, 0);
  changes.byTable<0>(0, 1, 0);
  RUNTIME_OK(cudaDeviceSynchronize());

  uint32_t copies = 0;
  std::thread copier([&] {
    for (; !g_done || copies < 32; ++copies) copy(buffers, stream, copies);
  });
  for (uint32_t round = 0; round < 60; ++round) {
    const auto which = uint32_t(random.below(kBuffers)), add = uint32_t(random.below(1 << 20));
    changes.byKernel(which, add | 1, add);
    changes.byHost(which, add, useconds_t(random.below(3) * 500));
    if (round % 3 == 0) changes.byTable<0>(which, 3, round);
    RUNTIME_OK(cudaGetLastError());
    if (round % 8 == 7) RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  g_done = true;
  copier.join();
  changes.check();
  return apps::ok("%u copies beside functions", copies);
}
