// Launches that reach all of the working set at once, by their parameters and by a table of
// pointers: each works, or is refused at once as out of memory, as where the GPU can't have so much
// mapped. Launches that fit go on, and nothing that was refused was done in part. The last line
// says how many were refused.
#include <chrono>

#include "common.h"

constexpr int kPieces = 48;
constexpr uint32_t kThreads = 64;

struct Pieces {
  uint32_t* at[kPieces];
};

__global__ void addByTable(uint32_t* const* table, uint32_t value) {
  for (int k = 0; k < kPieces; ++k) table[k][threadIdx.x] += value;
}
__global__ void addByParameters(Pieces pieces, uint32_t value) {
  for (int k = 0; k < kPieces; ++k) pieces.at[k][threadIdx.x] += value;
}
__global__ void addToOne(uint32_t* piece, uint32_t value) { piece[threadIdx.x] += value; }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t bytes = (options.bytes + kPieces - 1) / kPieces;
  Pieces pieces;
  uint32_t expected[kPieces] = {};
  for (uint32_t*& piece : pieces.at) {
    RUNTIME_OK(cudaMalloc(&piece, bytes));
    RUNTIME_OK(cudaMemset(piece, 0, bytes));
  }
  uint32_t** table;
  RUNTIME_OK(cudaMalloc(&table, sizeof pieces));
  RUNTIME_OK(cudaMemcpy(table, &pieces, sizeof pieces, cudaMemcpyHostToDevice));
  constexpr double kAtOnce = 5;  // seconds, on a busy machine
  int refused = 0;
  for (uint32_t round = 0; round < 6; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    if (round % 2 == 0)
      addByParameters<<<1, kThreads>>>(pieces, round + 1);
    else
      addByTable<<<1, kThreads>>>(table, round + 1);
    const cudaError_t told = cudaGetLastError();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    CHECK(told == cudaSuccess || told == cudaErrorMemoryAllocation, "a launch: %d", int(told));
    CHECK(told == cudaSuccess || took.count() < kAtOnce, "refused after %.1f s", took.count());
    refused += told != cudaSuccess;
    for (uint32_t& words : expected) words += told == cudaSuccess ? round + 1 : 0;
    const uint32_t one = round % kPieces;
    addToOne<<<1, kThreads>>>(pieces.at[one], 100);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaDeviceSynchronize());
    expected[one] += 100;
  }
  for (int k = 0; k < kPieces; ++k) {
    uint32_t got[kThreads + 1];
    RUNTIME_OK(cudaMemcpy(got, pieces.at[k], sizeof got, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < kThreads; ++i)
      CHECK(got[i] == expected[k], "piece %d word %u is %u, not %u", k, i, got[i], expected[k]);
    CHECK(got[kThreads] == 0, "piece %d is %u behind what was written", k, got[kThreads]);
  }
  return apps::ok("never_fits with %zu KiB, %d launches refused", options.bytes >> 10, refused);
}
