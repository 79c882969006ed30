// Managed memory that two devices and the CPU use in turns: whole, by parts of one page, after
// prefetches to either device, and by pointers that lie in managed memory. A device uses what the
// other has written behind an event, with no CPU between.
#include "common.h"

namespace {

constexpr int kDevices = 2;

// Each device adds to words of its own, which lie beside the other's.
__global__ void addTo(uint32_t* words, uint32_t count, uint32_t device, uint32_t value) {
  const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * kDevices + device;
  if (i < count) words[i] += value;
}

// Adds to the memory to which the pointers in `table` lead.
__global__ void addThrough(uint32_t* const* table, uint32_t pieces, uint32_t count,
                           uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t p = 0; p < pieces; ++p)
    if (i < count) table[p][i] += value;
}

void synchronizeBoth() {
  for (int d = 0; d < kDevices; ++d) {
    RUNTIME_OK(cudaSetDevice(d));
    RUNTIME_OK(cudaDeviceSynchronize());
  }
}

void prefetch(const void* memory, size_t bytes, int device) {
#if CUDART_VERSION >= 13000
  const cudaMemLocation place{cudaMemLocationTypeDevice, device};
  RUNTIME_OK(cudaMemPrefetchAsync(memory, bytes, place, 0, nullptr));
#else
  RUNTIME_OK(cudaMemPrefetchAsync(memory, bytes, device, nullptr));
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::needTwoDevices();
  const uint32_t seed = uint32_t(options.seed);
  const size_t bytes = options.bytes / 8 & ~((size_t{1} << 20) - 1);
  const uint32_t words = uint32_t(bytes / 4);
  uint32_t* shared;
  RUNTIME_OK(cudaMallocManaged(&shared, bytes));
  for (uint32_t i = 0; i < words; ++i) shared[i] = apps::word(i / 4, seed) + i % 4;
  cudaEvent_t done[kDevices];
  cudaStream_t streams[kDevices];
  for (int d = 0; d < kDevices; ++d) {
    RUNTIME_OK(cudaSetDevice(d));
    RUNTIME_OK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
    RUNTIME_OK(cudaEventCreateWithFlags(&done[d], cudaEventDisableTiming));
    RUNTIME_OK(cudaEventRecord(done[d], streams[d]));
  }

  // One device after the other, all of the memory each time, the CPU every third time.
  uint32_t added = 0;
  for (uint32_t turn = 0; turn < 6; ++turn) {
    const int d = int(turn) % kDevices;
    RUNTIME_OK(cudaSetDevice(d));
    if (turn % 3 == 1) prefetch(shared, bytes, d);
    RUNTIME_OK(cudaDeviceSynchronize());
    RUNTIME_OK(cudaStreamWaitEvent(streams[d], done[1 - d], 0));
    apps::add(shared, bytes, 1, streams[d]);
    RUNTIME_OK(cudaEventRecord(done[d], streams[d]));
    ++added;
    if (turn % 3 != 2) continue;
    synchronizeBoth();
    apps::verifyHost(shared, bytes, seed, added, "after devices in turns");
    for (uint32_t i = 0; i < words; ++i) ++shared[i];
    ++added;
  }
  synchronizeBoth();
  apps::verifyHost(shared, bytes, seed, added, "after the turns");

  // Both at once, at words of the same pages.
  for (uint32_t round = 0; round < 3; ++round) {
    for (int d = 0; d < kDevices; ++d) {
      RUNTIME_OK(cudaSetDevice(d));
      addTo<<<apps::blocks(words / kDevices), 256, 0, streams[d]>>>(shared, words, uint32_t(d), 1);
      RUNTIME_OK(cudaGetLastError());
    }
    ++added;
  }
  synchronizeBoth();
  apps::verifyHost(shared, bytes, seed, added, "after both devices at once");

  // Pointers to managed memory in managed memory; the CPU makes them anew for the other device.
  constexpr uint32_t kPieces = 6;
  uint32_t** table;
  RUNTIME_OK(cudaMallocManaged(&table, size_t{1} << 20));
  uint32_t* pieces[kPieces];
  for (uint32_t*& piece : pieces) {
    RUNTIME_OK(cudaMallocManaged(&piece, bytes / 2));
    std::memset(piece, 0, bytes / 2);
  }
  const uint32_t part = words / 2;
  for (uint32_t round = 0; round < 4; ++round) {
    for (uint32_t p = 0; p < kPieces; ++p) table[p] = pieces[(p + round) % kPieces];
    RUNTIME_OK(cudaSetDevice(int(round) % kDevices));
    addThrough<<<apps::blocks(part), 256>>>(table, kPieces, part, round + 1);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  for (uint32_t p = 0; p < kPieces; ++p)
    for (uint32_t i = 0; i < part; ++i)
      CHECK(pieces[p][i] == 1 + 2 + 3 + 4, "piece %u: word %u is %u", p, i, pieces[p][i]);

  for (uint32_t* piece : pieces) RUNTIME_OK(cudaFree(piece));
  RUNTIME_OK(cudaFree(table));
  RUNTIME_OK(cudaFree(shared));
  for (int d = 0; d < kDevices; ++d) {
    RUNTIME_OK(cudaEventDestroy(done[d]));
    RUNTIME_OK(cudaStreamDestroy(streams[d]));
  }
  return apps::ok("managed memory of %zu KiB on two devices", bytes >> 10);
}
