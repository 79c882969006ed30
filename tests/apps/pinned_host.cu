// Pinned host memory: mapped into kernels, registered, and bounced between buffers on one stream
// (device to host into h, then host to device from h, again and again), as offloading optimisers
// do.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "common.h"

__global__ void square(const uint32_t* in, uint32_t* out, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * in[i];
}

// Waits for the program, which goes on only when copies to the GPU in another stream are over.
struct Held {
  std::atomic<bool> released{false}, in_time{false};
};
static void CUDART_CB hold(void* data) {
  auto* const held = static_cast<Held*>(data);
  for (int turn = 0; turn < 20000 && !held->released; ++turn) usleep(1000);
  held->in_time = held->released.load();
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20;
  constexpr uint32_t kMapped = 1 << 15;
  // Mapped memory on both sides of a kernel.
  uint32_t *in, *out, *device_in;
  RUNTIME_OK(cudaHostAlloc(&in, kMapped * 4, cudaHostAllocMapped));
  RUNTIME_OK(cudaMallocHost(&out, kMapped * 4));
  RUNTIME_OK(cudaHostGetDevicePointer(&device_in, in, 0));
  for (uint32_t i = 0; i < kMapped; ++i) in[i] = apps::word(i, seed);
  square<<<apps::blocks(kMapped), 256>>>(device_in, out, kMapped);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (uint32_t i = 0; i < kMapped; ++i)
    CHECK(out[i] == in[i] * in[i], "mapped word %u is %#x", i, out[i]);
  // Registered memory.
  char* registered = static_cast<char*>(
      mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  RUNTIME_OK(cudaHostRegister(registered, kPiece, cudaHostRegisterMapped));
  // Ping-pong: one small pinned buffer, many device buffers, one stream. A copy that is out of its
  // turn shows.
  const size_t buffers = options.bytes / kPiece > 4 ? options.bytes / kPiece : 4;
  std::vector<char*> device(buffers);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (size_t b = 0; b < buffers; ++b) {
    RUNTIME_OK(cudaMalloc(&device[b], kPiece));
    apps::fill(device[b], kPiece, seed + uint32_t(b), stream);
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t b = 0; b + 1 < buffers;
         b += 2) {  // swaps b and b + 1 by way of `registered` and a scratch buffer
      char* pinned = registered;
      RUNTIME_OK(cudaMemcpyAsync(pinned, device[b], kPiece, cudaMemcpyDeviceToHost, stream));
      RUNTIME_OK(
          cudaMemcpyAsync(device[b], device[b + 1], kPiece, cudaMemcpyDeviceToDevice, stream));
      RUNTIME_OK(cudaMemcpyAsync(device[b + 1], pinned, kPiece, cudaMemcpyHostToDevice, stream));
      apps::add(device[b + 1], kPiece, 1, stream);
    }
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  for (size_t b = 0; b + 1 < buffers; b += 2) {
    // Two swaps: back in place; each was once in the place that is incremented.
    apps::verify(device[b], kPiece, seed + uint32_t(b), 1, "even buffer");
    apps::verify(device[b + 1], kPiece, seed + uint32_t(b) + 1, 1, "odd buffer");
  }
  // The other way round: host to device from h, then device to host into h.
  uint32_t* h = reinterpret_cast<uint32_t*>(registered);
  for (uint32_t i = 0; i < kPiece / 4; ++i) h[i] = apps::word(i / 4, seed + 500) + i % 4;
  for (size_t b = 0; b < buffers; ++b) {
    RUNTIME_OK(cudaMemcpyAsync(device[b], registered, kPiece, cudaMemcpyHostToDevice, stream));
    apps::add(device[b], kPiece, 1, stream);
    RUNTIME_OK(cudaMemcpyAsync(registered, device[b], kPiece, cudaMemcpyDeviceToHost, stream));
  }
  RUNTIME_OK(cudaStreamSynchronize(stream));
  apps::verifyHost(h, kPiece, seed + 500, uint32_t(buffers), "after all the bounces");
  // Beside a host function that is held in another stream. No kernel reaches pinned memory any
  // more.
  RUNTIME_OK(cudaFreeHost(in));
  RUNTIME_OK(cudaFreeHost(out));
  Held held;
  cudaStream_t other;
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  RUNTIME_OK(cudaLaunchHostFunc(other, hold, &held));
  for (uint32_t i = 0; i < kPiece / 4; ++i) h[i] = apps::word(i / 4, seed + 600) + i % 4;
  RUNTIME_OK(cudaMemcpyAsync(device[0], registered, kPiece, cudaMemcpyHostToDevice, stream));
  apps::add(device[0], kPiece, 1, stream);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(!held.in_time, "the host function ended by itself");
  held.released = true;
  RUNTIME_OK(cudaStreamSynchronize(other));
  CHECK(held.in_time, "a copy to the GPU waited for a host function in another stream");
  apps::verify(device[0], kPiece, seed + 600, 1, "beside a host function");
  RUNTIME_OK(cudaStreamDestroy(other));
  RUNTIME_OK(cudaHostUnregister(registered));
  return apps::ok("pinned_host with %zu buffers", buffers);
}
