// Managed memory where CPU and GPU take turns, as on a device without concurrent managed access: a
// program that is right there. Several allocations, each of a quarter of --bytes: used by copies,
// memsets, kernels and the CPU; parameters and values of variables that lie in managed memory;
// memory that is attached to the host while kernels run, and to streams of two threads.
#include <thread>

#include "common.h"

__device__ uint32_t g_table[16384];

static __global__ void addTable(uint32_t* to, size_t words) {
  const size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (i < words) to[i] += g_table[i % 16384];
}

// Words of a pattern that needs no buffer of its own.
static uint32_t wordAt(size_t i, uint32_t seed) { return uint32_t(i) * 2654435761u + seed; }
static void fillHost(uint32_t* to, size_t words, uint32_t seed) {
  for (size_t i = 0; i < words; ++i) to[i] = wordAt(i, seed);
}
static void check(const uint32_t* at, size_t words, uint32_t seed, uint32_t added,
                  const char* what) {
  for (size_t i = 0; i < words; ++i)
    CHECK(at[i] == wordAt(i, seed) + added, "%s: word %zu is %#x, not %#x", what, i, at[i],
          wordAt(i, seed) + added);
}

static void turns(size_t words, uint32_t seed) {
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t* mine;
  RUNTIME_OK(cudaMallocManaged(&mine, words * 4, cudaMemAttachHost));
  fillHost(mine, words, seed);
  for (uint32_t round = 1; round <= 4; ++round) {
    RUNTIME_OK(cudaStreamAttachMemAsync(stream, mine, 0, cudaMemAttachSingle));
    apps::add(mine, words * 4, 1, stream);
    RUNTIME_OK(cudaStreamSynchronize(stream));
    // The CPU may use it where the stream that it is attached to has nothing to do.
    if (round % 2 == 0) {
      RUNTIME_OK(cudaStreamAttachMemAsync(stream, mine, 0, cudaMemAttachHost));
      RUNTIME_OK(cudaStreamSynchronize(stream));
    }
    check(mine, words, seed, 2 * round - 1, "of a thread, after its kernel");
    for (size_t i = 0; i < words; ++i) ++mine[i];
  }
  check(mine, words, seed, 8, "of a thread, at its end");
  RUNTIME_OK(cudaFree(mine));
  RUNTIME_OK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t bytes = (options.bytes / 4) & ~size_t{65535}, words = bytes / 4;
  constexpr size_t kCount = 5;
  uint32_t* all[kCount];
  for (uint32_t*& one : all) RUNTIME_OK(cudaMallocManaged(&one, bytes));
  cudaPointerAttributes attributes{};
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, all[1] + 5));
  CHECK(attributes.type == cudaMemoryTypeManaged && attributes.hostPointer == all[1] + 5 &&
            attributes.devicePointer == all[1] + 5,
        "attributes of managed memory: type %d, host %p, device %p", int(attributes.type),
        attributes.hostPointer, attributes.devicePointer);
  for (size_t k = 0; k < kCount; ++k) fillHost(all[k], words, seed + uint32_t(k));
  // Kernels, then a little of each from the CPU, then all.
  for (uint32_t* one : all) apps::add(one, bytes, 3);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t k = 0; k < kCount; ++k) {
    CHECK(all[k][words / 2] == wordAt(words / 2, seed + uint32_t(k)) + 3, "a word of %zu", k);
    all[k][words / 2] += 7;
  }
  for (uint32_t* one : all) apps::add(one, bytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t k = 0; k < kCount; ++k) {
    all[k][words / 2] -= 7;
    check(all[k], words, seed + uint32_t(k), 4, "after kernels");
  }
  // Copies: among managed memory, to and from memory of the CPU's own, by each kind of names.
  RUNTIME_OK(cudaMemcpy(all[0], all[1], bytes, cudaMemcpyDefault));
  check(all[0], words, seed + 1, 4, "copied by default");
  std::vector<uint32_t> own(words);
  RUNTIME_OK(cudaMemcpy(own.data(), all[2], bytes, cudaMemcpyDeviceToHost));
  check(own.data(), words, seed + 2, 4, "copied to the CPU's own memory");
  fillHost(own.data(), words, seed + 9);
  RUNTIME_OK(cudaMemcpy(all[2], own.data(), bytes, cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaMemcpy(all[3], all[2], bytes, cudaMemcpyHostToHost));
  check(all[3], words, seed + 9, 0, "copied as host memory");
  RUNTIME_OK(cudaMemset(all[4], 0x11, bytes / 2));
  CHECK(all[4][0] == 0x11111111u && all[4][words - 1] == wordAt(words - 1, seed + 4) + 4,
        "a memset of half: %#x, %#x", all[4][0], all[4][words - 1]);
  // A variable's value, and the parameters of a launch, that lie there.
  fillHost(all[0], 16384, seed);
  RUNTIME_OK(cudaMemcpyToSymbol(g_table, all[0], 16384 * 4));
  fillHost(all[1], words, seed);
  struct Parameters {
    uint32_t* to;
    size_t words;
  };
  auto* const parameters = reinterpret_cast<Parameters*>(all[4]);
  *parameters = {all[1], words};
  void* pointers[] = {&parameters->to, &parameters->words};
  RUNTIME_OK(cudaLaunchKernel(reinterpret_cast<const void*>(addTable),
                              dim3(unsigned((words + 255) / 256)), dim3(256), pointers, 0,
                              nullptr));
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t i = 0; i < words; i += 511)
    CHECK(all[1][i] == wordAt(i, seed) + wordAt(i % 16384, seed), "with a table: word %zu", i);
  // The CPU works on what is attached to it while a kernel runs elsewhere.
  RUNTIME_OK(cudaStreamAttachMemAsync(nullptr, all[3], 0, cudaMemAttachHost));
  RUNTIME_OK(cudaDeviceSynchronize());
  apps::add(all[2], bytes, 1);
  for (size_t i = 0; i < words; ++i) all[3][i] += 2;
  apps::add(all[2], bytes, 1);
  check(all[3], words, seed + 9, 2, "attached to the host");
  RUNTIME_OK(cudaStreamAttachMemAsync(nullptr, all[3], 0, cudaMemAttachGlobal));
  RUNTIME_OK(cudaDeviceSynchronize());
  apps::add(all[3], bytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());
  check(all[3], words, seed + 9, 3, "attached to all again");
  check(all[2], words, seed + 9, 2, "meanwhile");
  std::thread first(turns, words / 2, seed + 20), second(turns, words / 3 & ~size_t{3}, seed + 21);
  first.join();
  second.join();
  for (uint32_t* one : all) RUNTIME_OK(cudaFree(one));
  return apps::ok("managed memory of %zu KiB in turns", kCount * bytes >> 10);
}
