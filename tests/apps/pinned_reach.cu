// Pinned memory that a kernel reaches otherwise than by one parameter: through tables in device
// memory, through pinned memory itself, more blocks than a launch names, and memory that a host
// function writes before what is behind it in the stream.
#include <unistd.h>

#include "common.h"

static constexpr int kMany = 40;

__global__ void sum(uint32_t** table, uint32_t count, uint32_t* out) {
  uint32_t total = 0;
  for (uint32_t i = 0; i < count; ++i) total += *table[i];
  *out = total;
}
__global__ void store(uint32_t** table, uint32_t count, uint32_t value) {
  for (uint32_t i = 0; i < count; ++i) *table[i] = value + i;
}
struct Blocks {
  uint32_t* of[kMany];
};
__global__ void storeAll(Blocks blocks, uint32_t value) {
  for (int i = 0; i < kMany; ++i) *blocks.of[i] = value + i;
}
__global__ void read(const uint32_t* from, uint32_t* out) { *out = *from; }

static uint32_t* g_written = nullptr;
static void write(void* value) {
  usleep(20000);  // what does not wait for it would read too early
  *g_written = static_cast<uint32_t>(reinterpret_cast<size_t>(value));
}
static uint32_t wordOf(const uint32_t* device) {
  uint32_t word = 0;
  RUNTIME_OK(cudaMemcpy(&word, device, 4, cudaMemcpyDeviceToHost));
  return word;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  Blocks blocks;
  uint32_t expected = 0;
  for (int i = 0; i < kMany; ++i) {
    RUNTIME_OK(cudaMallocHost(&blocks.of[i], 4096));
    *blocks.of[i] = apps::word(uint32_t(i), seed);
    expected += *blocks.of[i];
  }
  uint32_t **table, **pinned_table, *out;
  RUNTIME_OK(cudaMalloc(&table, sizeof blocks));
  RUNTIME_OK(cudaMalloc(&out, 4));
  // A table in device memory.
  RUNTIME_OK(cudaMemcpy(table, blocks.of, sizeof blocks, cudaMemcpyHostToDevice));
  sum<<<1, 1>>>(table, kMany, out);
  CHECK(wordOf(out) == expected, "through a table: %#x, expected %#x", wordOf(out), expected);
  store<<<1, 1>>>(table, kMany, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int i = 0; i < kMany; ++i)
    CHECK(*blocks.of[i] == seed + uint32_t(i), "block %d is %#x", i, *blocks.of[i]);
  // All in the parameters.
  storeAll<<<1, 1>>>(blocks, seed + 1000);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int i = 0; i < kMany; ++i)
    CHECK(*blocks.of[i] == seed + 1000 + uint32_t(i), "block %d is %#x", i, *blocks.of[i]);
  // A table in pinned memory, of blocks that were never named before.
  RUNTIME_OK(cudaMallocHost(&pinned_table, sizeof blocks));
  uint32_t* fresh[4];
  for (int i = 0; i < 4; ++i) {
    RUNTIME_OK(cudaMallocHost(&fresh[i], 4096));
    *fresh[i] = 7 + uint32_t(i);
    pinned_table[i] = fresh[i];
  }
  sum<<<1, 1>>>(pinned_table, 4, out);
  CHECK(wordOf(out) == 7 + 8 + 9 + 10, "through a pinned table: %u", wordOf(out));
  store<<<1, 1>>>(pinned_table, 4, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 4; ++i)
    CHECK(*fresh[i] == seed + uint32_t(i), "fresh block %d is %#x", i, *fresh[i]);
  // Behind a host function.
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  RUNTIME_OK(cudaMallocHost(&g_written, 4096));
  *g_written = 1;
  RUNTIME_OK(cudaLaunchHostFunc(stream, write, reinterpret_cast<void*>(size_t{42})));
  RUNTIME_OK(cudaMemcpyAsync(out, g_written, 4, cudaMemcpyHostToDevice, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(wordOf(out) == 42, "a copy behind a host function took %u", wordOf(out));
  RUNTIME_OK(cudaLaunchHostFunc(stream, write, reinterpret_cast<void*>(size_t{43})));
  read<<<1, 1, 0, stream>>>(g_written, out);
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(wordOf(out) == 43, "a kernel behind a host function read %u", wordOf(out));
  // Behind one in a graph.
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  RUNTIME_OK(cudaLaunchHostFunc(stream, write, reinterpret_cast<void*>(size_t{44})));
  RUNTIME_OK(cudaMemcpyAsync(out, g_written, 4, cudaMemcpyHostToDevice, stream));
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 2; ++round) {
    *g_written = 1;
    RUNTIME_OK(cudaGraphLaunch(executable, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    CHECK(wordOf(out) == 44, "a copy behind a host function of a graph took %u", wordOf(out));
  }
  // Freed and made anew.
  for (int i = 0; i < kMany; ++i) RUNTIME_OK(cudaFreeHost(blocks.of[i]));
  storeAll<<<1, 1>>>(
      Blocks{{fresh[0], fresh[1], fresh[2], fresh[3], fresh[0], fresh[0], fresh[0], fresh[0],
              fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0],
              fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0],
              fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0],
              fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0], fresh[0]}},
      500);
  RUNTIME_OK(cudaDeviceSynchronize());
  CHECK(*fresh[0] == 500 + kMany - 1 && *fresh[1] == 501, "after the frees: %u, %u", *fresh[0],
        *fresh[1]);
  return apps::ok("pinned_reach with %d blocks", kMany);
}
