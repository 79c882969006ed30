// Ways to be slow under a pager, one at a time: for tests of what is said of them. The first
// argument says which:
//   stream   rounds over blocks of 4 MiB that together are --bytes, one launch for each block
//   pauses   the same, and the program sleeps before each launch
//   shares   the same, and from the second round on other threads copy from pinned memory all the
//            time
//   busy     stream, and each kernel takes long, since it reads its words again and again
//   whole    launches that each use all of one allocation of --bytes
//   graph    the blocks in one graph, launched once a round
//   memory   the same, and the graph has memory of its own
//   pinned   stream, and each launch gets a block of pinned memory that is too large to be looked
//            through
//   sparse   stream through twice --bytes, and each launch looks one word up in a table as large
//   dense    the same, and the launches read all of the table
//   managed  CPU and GPU in turns at each block of managed memory
//   sides    the same, but the CPU has a block of its own
//   mapped   kernels add to pinned memory of --bytes, which the CPU changes between
//   copied   the same, but the kernels have memory of their own, and copies go between
// Then --rounds N, --bytes N, as common.h has them. Every word is compared at the end. Kernels
// touch few words but for whole, dense, mapped and copied: what is slow is not to depend on how
// fast a GPU is simulated.
#include "common.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

constexpr size_t kBlockBytes = size_t{4} << 20;
constexpr uint32_t kBlockWords = kBlockBytes / 4;
constexpr uint32_t kStep = 16 << 10;  // words from one that kernels touch to the next

__global__ void addFew(uint32_t* words, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[size_t{i} * kStep] += 1;
}

__global__ void addFewBeside(uint32_t* words, uint32_t count, const uint32_t* beside) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[size_t{i} * kStep] += 1 + beside[0];
}

__global__ void addSlowly(volatile uint32_t* words, uint32_t count, uint32_t times) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t word = 0;
  for (uint32_t n = 0; n < times; ++n) word |= words[size_t{i} * kStep];
  words[size_t{i} * kStep] = word + 1;
}

// Writes what can't be, where there is something in the table: it is all zeros.
__global__ void readAll(const uint4* table, uint32_t count, uint32_t* words) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint4 v = table[i];
  if ((v.x | v.y | v.z | v.w) != 0) words[0] = 0xdeadbeef;
}

static void addFewTo(uint32_t* words, size_t bytes, cudaStream_t stream = nullptr) {
  const auto count = uint32_t(bytes / 4 / kStep);
  addFew<<<apps::blocks(count), 256, 0, stream>>>(words, count);
  RUNTIME_OK(cudaGetLastError());
}

struct Blocks {
  std::vector<uint32_t*> blocks;
  explicit Blocks(size_t bytes) {
    for (size_t at = 0; at < bytes; at += kBlockBytes) {
      blocks.push_back(nullptr);
      RUNTIME_OK(cudaMalloc(&blocks.back(), kBlockBytes));
      RUNTIME_OK(cudaMemset(blocks.back(), 0, kBlockBytes));
    }
  }
  void check(uint32_t expected) const {
    std::vector<uint32_t> host(kBlockWords);
    for (const uint32_t* block : blocks) {
      RUNTIME_OK(cudaMemcpy(host.data(), block, kBlockBytes, cudaMemcpyDeviceToHost));
      for (uint32_t i = 0; i < kBlockWords; ++i) {
        const uint32_t right = i % kStep == 0 ? expected : 0;
        CHECK(host[i] == right, "word %u is %u, not %u", i, host[i], right);
      }
    }
  }
};

// Copies pinned memory to memory of its own until it is told to end.
static void copyOnAndOn(const std::atomic<bool>& ends) {
  uint32_t *from = nullptr, *to = nullptr;
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaMallocHost(&from, kBlockBytes));
  RUNTIME_OK(cudaMalloc(&to, kBlockBytes));
  while (!ends) {
    for (int i = 0; i < 4; ++i)
      RUNTIME_OK(cudaMemcpyAsync(to, from, kBlockBytes, cudaMemcpyHostToDevice, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
  }
  RUNTIME_OK(cudaFree(to));
  RUNTIME_OK(cudaFreeHost(from));
  RUNTIME_OK(cudaStreamDestroy(stream));
}

static void streams(size_t bytes, unsigned rounds, unsigned pause_ms, const uint32_t* beside) {
  const Blocks all(bytes);
  for (unsigned round = 0; round < rounds; ++round) {
    for (uint32_t* block : all.blocks) {
      if (pause_ms != 0) {
        RUNTIME_OK(cudaDeviceSynchronize());
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
      }
      if (beside != nullptr)
        addFewBeside<<<1, kBlockWords / kStep>>>(block, kBlockWords / kStep, beside);
      else
        addFewTo(block, kBlockBytes);
    }
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  all.check(rounds);
}

static void busy(size_t bytes, unsigned rounds) {
  constexpr uint32_t kTimes = 600000;
  const Blocks all(bytes);
  for (unsigned round = 0; round < rounds; ++round)
    for (uint32_t* block : all.blocks)
      addSlowly<<<1, kBlockWords / kStep>>>(block, kBlockWords / kStep, kTimes);
  RUNTIME_OK(cudaGetLastError());
  RUNTIME_OK(cudaDeviceSynchronize());
  all.check(rounds);
}

static void shares(size_t bytes, unsigned rounds) {
  constexpr unsigned kOthers = 3;
  const Blocks all(bytes);
  std::atomic<bool> ends{false};
  std::vector<std::thread> others;
  for (unsigned round = 0; round < rounds; ++round) {
    for (uint32_t* block : all.blocks) addFewTo(block, kBlockBytes);
    RUNTIME_OK(cudaDeviceSynchronize());
    while (others.size() < kOthers) others.emplace_back([&ends] { copyOnAndOn(ends); });
  }
  ends = true;
  for (std::thread& other : others) other.join();
  all.check(rounds);
}

static void table(size_t bytes, unsigned rounds, bool dense) {
  const Blocks all(dense ? bytes : 2 * bytes);
  uint32_t* looked_up = nullptr;
  RUNTIME_OK(cudaMalloc(&looked_up, 2 * bytes));
  RUNTIME_OK(cudaMemset(looked_up, 0, 2 * bytes));
  const auto count = uint32_t(2 * bytes / 16);
  for (unsigned round = 0; round < rounds; ++round) {
    for (uint32_t* block : all.blocks) {
      if (dense) {
        readAll<<<apps::blocks(count), 256>>>(reinterpret_cast<uint4*>(looked_up), count, block);
        addFewTo(block, kBlockBytes);
      } else {
        addFewBeside<<<1, kBlockWords / kStep>>>(block, kBlockWords / kStep, looked_up);
      }
      RUNTIME_OK(cudaGetLastError());
      RUNTIME_OK(cudaDeviceSynchronize());
    }
  }
  all.check(rounds);
}

static void mapped(size_t bytes, unsigned rounds, bool copied) {
  constexpr uint32_t kEveryByte = 0x01010101;
  uint32_t *words = nullptr, *own = nullptr;
  RUNTIME_OK(cudaMallocHost(&words, bytes));
  RUNTIME_OK(cudaMalloc(&own, bytes));
  std::memset(words, 0, bytes);
  const auto count = uint32_t(bytes / 4);
  for (unsigned round = 0; round < rounds; ++round) {
    for (uint32_t i = 0; i < count; ++i) words[i] += kEveryByte;
    if (copied) RUNTIME_OK(cudaMemcpyAsync(own, words, bytes, cudaMemcpyHostToDevice, nullptr));
    apps::add(copied ? own : words, bytes, kEveryByte);
    if (copied) RUNTIME_OK(cudaMemcpyAsync(words, own, bytes, cudaMemcpyDeviceToHost, nullptr));
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  for (uint32_t i = 0; i < count; ++i)
    CHECK(words[i] == 2 * rounds * kEveryByte, "word %u is %u", i, words[i]);
}

static void whole(size_t bytes, unsigned rounds) {
  uint32_t* words = nullptr;
  const auto count = uint32_t(bytes / 4);
  RUNTIME_OK(cudaMalloc(&words, bytes));
  RUNTIME_OK(cudaMemset(words, 0, bytes));
  for (unsigned round = 0; round < rounds; ++round) apps::add(words, bytes, 1);
  std::vector<uint32_t> host(count);
  RUNTIME_OK(cudaMemcpy(host.data(), words, bytes, cudaMemcpyDeviceToHost));
  for (const uint32_t word : host) CHECK(word == rounds, "a word is %u, not %u", word, rounds);
}

static void graph(size_t bytes, unsigned rounds, bool has_memory) {
  const Blocks all(bytes);
  cudaStream_t stream = nullptr;
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t made = nullptr;
  RUNTIME_OK(cudaStreamCreate(&stream));
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (uint32_t* block : all.blocks) addFewTo(block, kBlockBytes, stream);
  RUNTIME_OK(cudaStreamEndCapture(stream, &captured));
  if (has_memory) {
    cudaMemAllocNodeParams memory{};
    memory.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.poolProps.location.type = cudaMemLocationTypeDevice;
    memory.bytesize = kBlockBytes;
    cudaGraphNode_t made_there = nullptr, freed = nullptr;
    RUNTIME_OK(cudaGraphAddMemAllocNode(&made_there, captured, nullptr, 0, &memory));
    RUNTIME_OK(cudaGraphAddMemFreeNode(&freed, captured, &made_there, 1, memory.dptr));
  }
  RUNTIME_OK(cudaGraphInstantiate(&made, captured, 0));
  for (unsigned round = 0; round < rounds; ++round) RUNTIME_OK(cudaGraphLaunch(made, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  all.check(rounds);
}

static void managed(size_t bytes, unsigned rounds, bool apart) {
  uint32_t* words = nullptr;
  std::vector<uint32_t> own(kBlockWords);
  RUNTIME_OK(cudaMallocManaged(&words, bytes));
  std::memset(words, 0, bytes);
  const size_t count = bytes / 4;
  for (unsigned round = 0; round < rounds; ++round) {
    addFewTo(words, bytes);
    RUNTIME_OK(cudaDeviceSynchronize());
    for (size_t i = 0; i < count; i += kBlockWords) {
      if (apart)
        ++own[i % kBlockWords];
      else
        ++words[i];
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const uint32_t expected =
        rounds * ((i % kStep == 0 ? 1 : 0) + (!apart && i % kBlockWords == 0 ? 1 : 0));
    CHECK(words[i] == expected, "word %zu is %u, not %u", i, words[i], expected);
  }
}

int main(int argc, char** argv) {
  if (argc < 2) apps::fail("which way?");
  const std::string way = argv[1];
  const apps::Options options = apps::parse(argc - 1, argv + 1);
  unsigned rounds = 4;
  for (int i = 2; i + 1 < argc; i += 2)
    if (std::strcmp(argv[i], "--rounds") == 0)
      rounds = unsigned(std::strtoul(argv[i + 1], nullptr, 0));
  if (way == "stream") {
    streams(options.bytes, rounds, 0, nullptr);
  } else if (way == "pauses") {
    streams(options.bytes, rounds, 250, nullptr);
  } else if (way == "pinned") {
    constexpr size_t kPinned = size_t{32} << 20;
    uint32_t* beside = nullptr;
    RUNTIME_OK(cudaMallocHost(&beside, kPinned));
    std::memset(beside, 0, kPinned);
    streams(options.bytes, rounds, 0, beside);
  } else if (way == "busy") {
    busy(options.bytes, rounds);
  } else if (way == "shares") {
    shares(options.bytes, rounds);
  } else if (way == "sparse" || way == "dense") {
    table(options.bytes, rounds, way == "dense");
  } else if (way == "mapped" || way == "copied") {
    mapped(options.bytes, rounds, way == "copied");
  } else if (way == "whole") {
    whole(options.bytes, rounds);
  } else if (way == "graph" || way == "memory") {
    graph(options.bytes, rounds, way == "memory");
  } else if (way == "managed" || way == "sides") {
    managed(options.bytes, rounds, way == "sides");
  } else {
    apps::fail("no such way: %s", way.c_str());
  }
  return apps::ok("slow_ways %s: %zu MiB, %u rounds", way.c_str(), options.bytes >> 20, rounds);
}
