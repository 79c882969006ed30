// Holds memory as its standard input says, a line at a time, and answers each line: for tests of
// what sessions may have.
//   take N      allocates N MiB and fills it
//   work N      N rounds of launches that add 1 to every word of all that was taken, then all of it
//               is compared
//   pin N       allocates N MiB of pinned host memory
//   unpin       frees all of it
//   devices     "ok COUNT UUID..."
//   memory      "ok FREE TOTAL SIZE" in MiB, of the current device; SIZE is what its properties say
// "ok ...", or "error NAME" when a CUDA call failed, or "FAILED ..." and status 1. Ends with its
// input.
#include "common.h"

#include <string>
#include <vector>

__global__ void fill(uint32_t* words, uint64_t count, uint32_t seed) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += uint64_t(gridDim.x) * blockDim.x)
    words[i * 1024] = uint32_t(i) * 2654435761u + seed;
}
__global__ void add(uint32_t* words, uint64_t count) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += uint64_t(gridDim.x) * blockDim.x)
    words[i * 1024] += 1;
}
// How many words are not as they should be.
__global__ void compare(const uint32_t* words, uint64_t count, uint32_t seed, uint32_t added,
                        uint32_t* wrong) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += uint64_t(gridDim.x) * blockDim.x)
    if (words[i * 1024] != uint32_t(i) * 2654435761u + seed + added) atomicAdd(wrong, 1u);
}

// Makes the program's image larger than what is sent without asking, and hard to compress.
struct Noise {
  uint32_t words[32768];
};
constexpr Noise noise() {
  Noise made{};
  uint32_t value = 12345;
  for (uint32_t& word : made.words) word = value = value * 1664525u + 1013904223u;
  return made;
}
__device__ Noise g_noise = noise();

static cudaError_t g_error = cudaSuccess;
static bool good(cudaError_t result) {
  if (result != cudaSuccess) g_error = result;
  return result == cudaSuccess;
}

// A word of each page of 4 KiB is looked at.
struct Block {
  uint32_t* words;
  uint64_t count;
  uint32_t added;
};

static std::string uuidOf(int device) {
  cudaDeviceProp properties{};
  if (!good(cudaGetDeviceProperties(&properties, device))) return "";
  std::string text;
  char part[3];
  for (const char byte : properties.uuid.bytes) {
    std::snprintf(part, sizeof part, "%02x", static_cast<unsigned char>(byte));
    text += part;
  }
  return text;
}

int main(int argc, char** argv) {
  (void)argc, (void)argv;
  constexpr uint64_t kMiB = 1 << 20, kBlock = 8;  // MiB of an allocation
  std::vector<Block> blocks;
  std::vector<void*> pinned;
  uint32_t* wrong = nullptr;
  good(cudaMalloc(&wrong, sizeof *wrong));
  std::printf(g_error == cudaSuccess ? "ready\n" : "error %s\n", cudaGetErrorName(g_error));
  std::fflush(stdout);
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::string said(line);
    const uint64_t number = std::strtoull(said.c_str() + said.find(' ') + 1, nullptr, 10);
    g_error = cudaSuccess;
    std::string answer = "ok";
    if (said.rfind("take", 0) == 0) {
      for (uint64_t had = 0; g_error == cudaSuccess && had < number; had += kBlock) {
        Block block{nullptr, kBlock * kMiB / 4096, 0};
        if (!good(cudaMalloc(&block.words, kBlock * kMiB))) break;
        fill<<<8, 64>>>(block.words, block.count, uint32_t(blocks.size()));
        good(cudaGetLastError());
        blocks.push_back(block);
      }
      good(cudaDeviceSynchronize());
    } else if (said.rfind("work", 0) == 0) {
      for (uint64_t round = 0; round < number; ++round) {
        for (auto& block : blocks) {
          add<<<8, 64>>>(block.words, block.count);
          good(cudaGetLastError());
          ++block.added;
        }
      }
      uint32_t found = 0;
      good(cudaMemset(wrong, 0, sizeof *wrong));
      for (size_t i = 0; i < blocks.size(); ++i)
        compare<<<8, 64>>>(blocks[i].words, blocks[i].count, uint32_t(i), blocks[i].added, wrong);
      if (good(cudaMemcpy(&found, wrong, sizeof found, cudaMemcpyDeviceToHost)))
        CHECK(found == 0, "%u words are not what they should be", found);
    } else if (said.rfind("pin", 0) == 0) {
      void* memory = nullptr;
      if (good(cudaMallocHost(&memory, number * kMiB))) pinned.push_back(memory);
    } else if (said.rfind("unpin", 0) == 0) {
      for (void* memory : pinned) good(cudaFreeHost(memory));
      pinned.clear();
    } else if (said.rfind("devices", 0) == 0) {
      int count = 0;
      good(cudaGetDeviceCount(&count));
      answer += " " + std::to_string(count);
      for (int i = 0; i < count; ++i) answer += " " + uuidOf(i);
    } else if (said.rfind("memory", 0) == 0) {
      size_t free_bytes = 0, total_bytes = 0;
      good(cudaMemGetInfo(&free_bytes, &total_bytes));
      int device = 0;
      cudaDeviceProp about{};
      good(cudaGetDevice(&device));
      good(cudaGetDeviceProperties(&about, device));
      answer += " " + std::to_string(free_bytes / kMiB) + " " + std::to_string(total_bytes / kMiB) +
                " " + std::to_string(about.totalGlobalMem / kMiB);
    }
    std::printf("%s\n", g_error == cudaSuccess
                            ? answer.c_str()
                            : (std::string("error ") + cudaGetErrorName(g_error)).c_str());
    std::fflush(stdout);
  }
  return apps::ok("holder: %zu blocks", blocks.size());
}
