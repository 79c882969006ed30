// cudaDeviceReset and start again, three times, with memory, streams and pages parked at each
// reset. A managed variable is used before the first alone: what becomes of it is the driver's
// matter, and nothing to those who go on.
#include "common.h"

__device__ uint32_t g_counter = 7;
__managed__ uint32_t g_shared = 3;

__global__ void count(uint32_t* out) { *out = g_counter++; }
__global__ void countShared() { ++g_shared; }
__global__ void countPinned(uint32_t* pinned) { ++*pinned; }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr size_t kPiece = size_t{2} << 20, kPinned = size_t{4} << 20;
  const size_t n = options.bytes / kPiece;
  for (uint32_t life = 0; life < 3; ++life) {
    std::vector<char*> buffers(n);
    cudaStream_t stream;
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t b = 0; b < n; ++b) {
      RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
      apps::fill(buffers[b], kPiece, seed + life * 100 + uint32_t(b), stream);
    }
    for (size_t b = 0; b < n; ++b) apps::add(buffers[b], kPiece, life, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    for (size_t b = 0; b < n; ++b)
      apps::verify(buffers[b], kPiece, seed + life * 100 + uint32_t(b), life,
                   "buffer of this life");
    uint32_t *out, counted = 0;
    RUNTIME_OK(cudaMalloc(&out, 4));
    count<<<1, 1>>>(out);
    RUNTIME_OK(cudaMemcpy(&counted, out, 4, cudaMemcpyDeviceToHost));
    CHECK(counted == 7, "life %u: the module's variable is %u, expected 7", life, counted);
    // Pinned memory that kernels may find pointers in. The memory goes with the device, and nobody
    // may look there in the next life.
    uint32_t* pinned;
    RUNTIME_OK(cudaMallocHost(&pinned, kPinned));
    std::memset(pinned, 0, kPinned);
    for (size_t b = 0; b < n; ++b) apps::add(buffers[b], kPiece, 1, stream);
    countPinned<<<1, 1, 0, stream>>>(pinned);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(pinned[0] == 1, "the word in pinned memory is %u", pinned[0]);
    if (life == 0) {
      ++g_shared;
      countShared<<<1, 1>>>();
      RUNTIME_OK(cudaDeviceSynchronize());
      CHECK(g_shared == 5, "the managed variable is %u", g_shared);
    }
    size_t free_bytes = 0, total = 0;
    RUNTIME_OK(cudaMemGetInfo(&free_bytes, &total));
    RUNTIME_OK(cudaDeviceReset());
    cudaPointerAttributes attributes{};
    RUNTIME_OK(cudaPointerGetAttributes(&attributes, buffers[0]));
    CHECK(attributes.type == cudaMemoryTypeUnregistered,
          "life %u: memory outlived the reset (type %d)", life, int(attributes.type));
    size_t free_after = 0;
    RUNTIME_OK(cudaMemGetInfo(&free_after, &total));
    // Memory that other programs of the machine take meanwhile is not ours to judge.
    const size_t slack = (size_t{4} << 20) + total / 50;
    CHECK(free_after + slack >= free_bytes + n * kPiece,
          "life %u: %zu bytes free after the reset, %zu before", life, free_after, free_bytes);
  }
  return apps::ok("device_reset with %zu buffers", n);
}
