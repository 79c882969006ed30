// CPU and GPU take turns on managed memory: whole pages, single words of one page (false sharing),
// words that straddle two pages, pages that only one of the two wrote since, and pages that the CPU
// reads before it writes a word, or reads alone.
#include "common.h"

// One word in each `stride`: what the other side wrote beside it stays.
__global__ void addEach(uint32_t* words, uint32_t count, uint32_t stride, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[size_t{i} * stride] += value;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  const uint32_t seed = uint32_t(options.seed);
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent == 0) apps::skip("the CPU may not touch managed memory while a kernel runs");
  const size_t bytes = (options.bytes / 2) & ~size_t{4095}, words = bytes / 4;
  apps::Pressure pressure(options.bytes / 2);  // device memory that pages meanwhile
  uint32_t* data;
  RUNTIME_OK(cudaMallocManaged(&data, bytes));
  cudaPointerAttributes attributes{};
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, data));
  CHECK(attributes.type == cudaMemoryTypeManaged, "the memory is of type %d", int(attributes.type));
  CHECK(attributes.hostPointer == data && attributes.devicePointer == data,
        "host pointer %p, device pointer %p of %p", attributes.hostPointer,
        attributes.devicePointer, static_cast<void*>(data));

  // First touched by the GPU, read by the CPU in an order of its own.
  apps::fill(data, bytes, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 4096; ++i) {
    const size_t at = random.below(words);
    const uint32_t expected = apps::word(uint32_t(at / 4), seed) + uint32_t(at % 4);
    CHECK(data[at] == expected, "word %zu is %#x, expected %#x", at, data[at], expected);
  }
  uint32_t added = 0;
  for (uint32_t round = 1; round <= 6; ++round) {
    // Some pages by the CPU, all by the GPU.
    const size_t from = random.below(words / 2), to = from + random.below(words / 2);
    for (size_t i = from; i < to; ++i) data[i] += round;
    apps::add(data, bytes, 5);
    added += 5;
    if (round % 2 == 0) pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    for (size_t i = from; i < to; ++i) data[i] -= round;
    apps::verifyHost(data, bytes, seed, added, "after a round");
  }

  // The CPU reads all of it, then writes a word of one page.
  for (uint32_t round = 1; round <= 8; ++round) {
    apps::add(data, bytes, 2);
    added += 2;
    if (round % 4 == 0) pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    apps::verifyHost(data, bytes, seed, added, "after the GPU alone has written");
    const size_t at = random.below(words);
    data[at] += round;
    apps::add(data, bytes, 1);
    ++added;
    RUNTIME_OK(cudaDeviceSynchronize());
    data[at] -= round;
    apps::verifyHost(data, bytes, seed, added, "after a word");
  }

  // False sharing: even words are the GPU's, odd ones the CPU's, in turns without a pause.
  const uint32_t pairs = 1024;
  for (uint32_t round = 0; round < 20; ++round) {
    addEach<<<apps::blocks(pairs), 256>>>(data, pairs, 2, 3);
    RUNTIME_OK(cudaGetLastError());
    for (uint32_t i = 0; i < pairs; ++i) data[2 * i + 1] += 7;  // waits for the launch
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  for (uint32_t i = 0; i < 2 * pairs; ++i) {
    const uint32_t expected = apps::word(i / 4, seed) + i % 4 + added + 20 * (i % 2 == 0 ? 3u : 7u);
    CHECK(data[i] == expected, "shared word %u is %#x, expected %#x", i, data[i], expected);
  }

  // An access of the CPU's that lies in two pages.
  char* const bytes_of = reinterpret_cast<char*>(data);
  constexpr size_t kPage = size_t{2} << 20;
  for (size_t page = 1; (page + 1) * kPage <= bytes; ++page) {
    uint64_t value = 0x0123456789abcdefull * page, got = 0;
    std::memcpy(bytes_of + page * kPage - 3, &value, sizeof value);
    addEach<<<1, 1>>>(data, 1, 1, 1);
    RUNTIME_OK(cudaDeviceSynchronize());
    std::memcpy(&got, bytes_of + page * kPage - 3, sizeof got);
    CHECK(got == value, "across page %zu: %#llx, expected %#llx", page,
          static_cast<unsigned long long>(got), static_cast<unsigned long long>(value));
  }
  pressure.check();
  RUNTIME_OK(cudaFree(data));
  return apps::ok("CPU and GPU in turns on %zu KiB", bytes >> 10);
}
