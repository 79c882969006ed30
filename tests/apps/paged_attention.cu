// Attention over a cache of blocks as servers of language models keep it: one huge allocation cut
// into blocks, a table of block numbers for each sequence in device memory, sequences that grow by
// a token a step, end, and give their blocks to others. A launch names the cache, and which blocks
// it reads stands in the tables. Prefill reads all of a sequence, decode of many sequences a little
// of each.
#include "common.h"

constexpr uint32_t kTokens = 16;   // of a block
constexpr uint32_t kWidth = 1024;  // words of a token: 64 KiB a block
constexpr uint32_t kSequences = 6;

APPS_BOTH inline uint32_t tokenWord(uint32_t sequence, uint32_t token, uint32_t i) {
  return apps::word(token * kWidth + i, sequence * 7919 + 13);
}

/// Writes tokens [first, first + count) of a sequence into its blocks.
__global__ void store(uint32_t* cache, const uint32_t* table, uint32_t sequence, uint32_t first,
                      uint32_t count) {
  for (uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    const uint32_t token = first + t;
    uint32_t* at = cache + (size_t(table[token / kTokens]) * kTokens + token % kTokens) * kWidth;
    for (uint32_t i = threadIdx.x; i < kWidth; i += blockDim.x)
      at[i] = tokenWord(sequence, token, i);
  }
}

/// One block of threads for each sequence: a checksum over some words of each of its tokens.
__global__ void attend(const uint32_t* cache, const uint32_t* tables, uint32_t table_length,
                       const uint32_t* lengths, uint32_t* out) {
  const uint32_t sequence = blockIdx.x;
  uint32_t sum = 0;
  for (uint32_t token = threadIdx.x; token < lengths[sequence]; token += blockDim.x) {
    const uint32_t block = tables[sequence * table_length + token / kTokens];
    const uint32_t* at = cache + (size_t(block) * kTokens + token % kTokens) * kWidth;
    for (uint32_t i = 0; i < kWidth; i += 256) sum += at[i] * (token + 1);
  }
  atomicAdd(&out[sequence], sum);
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  const uint32_t blocks = uint32_t(options.bytes / (size_t{kTokens} * kWidth * 4));
  CHECK(blocks >= 64, "--bytes is too small");
  const uint32_t table_length = blocks / 3;
  uint32_t *cache, *tables, *lengths, *out;
  RUNTIME_OK(cudaMalloc(&cache, size_t(blocks) * kTokens * kWidth * 4));
  RUNTIME_OK(cudaMalloc(&tables, size_t(kSequences) * table_length * 4));
  RUNTIME_OK(cudaMalloc(&lengths, kSequences * 4));
  RUNTIME_OK(cudaMalloc(&out, kSequences * 4));
  std::vector<uint32_t> free_blocks;
  for (uint32_t b = 0; b < blocks; ++b) free_blocks.push_back(b);
  struct Sequence {
    uint32_t name = 0, length = 0;
    std::vector<uint32_t> table;
  };
  std::vector<Sequence> sequences(kSequences);
  uint32_t names = uint32_t(options.seed) * 1000;
  // Room for `count` more tokens; blocks come from anywhere in the cache.
  const auto grow = [&](Sequence& sequence, uint32_t count) {
    while (sequence.table.size() * kTokens < sequence.length + count) {
      if (free_blocks.empty() || sequence.table.size() == table_length) return false;
      const size_t pick = size_t(random.below(free_blocks.size()));
      sequence.table.push_back(free_blocks[pick]);
      free_blocks[pick] = free_blocks.back();
      free_blocks.pop_back();
    }
    return true;
  };
  const auto append = [&](uint32_t s, uint32_t count) {
    Sequence& sequence = sequences[s];
    uint32_t* const table = tables + size_t(s) * table_length;
    RUNTIME_OK(cudaMemcpyAsync(table, sequence.table.data(), sequence.table.size() * 4,
                               cudaMemcpyHostToDevice, nullptr));
    store<<<16, 128>>>(cache, table, sequence.name, sequence.length, count);
    sequence.length += count;
  };
  std::vector<uint32_t> got(kSequences), now(kSequences);
  for (uint32_t step = 0; step < 24; ++step) {
    for (uint32_t s = 0; s < kSequences; ++s) {
      Sequence& sequence = sequences[s];
      // Some end, and their blocks are others' at once; a new one begins with a prompt.
      const bool ends = sequence.length != 0 && random.below(6) == 0;
      if (ends || sequence.length == 0 || !grow(sequence, 1)) {
        free_blocks.insert(free_blocks.end(), sequence.table.begin(), sequence.table.end());
        sequence = {++names, 0, {}};
        uint32_t prompt = 1 + uint32_t(random.below(blocks * kTokens / 8));
        while (!grow(sequence, prompt)) prompt = prompt / 2 + 1;
        append(s, prompt);
      } else {
        append(s, 1);
      }
      now[s] = sequence.length;
    }
    RUNTIME_OK(
        cudaMemcpyAsync(lengths, now.data(), kSequences * 4, cudaMemcpyHostToDevice, nullptr));
    RUNTIME_OK(cudaMemsetAsync(out, 0, kSequences * 4, nullptr));
    attend<<<kSequences, 64>>>(cache, tables, table_length, lengths, out);
    RUNTIME_OK(cudaMemcpy(got.data(), out, kSequences * 4, cudaMemcpyDeviceToHost));
    for (uint32_t s = 0; s < kSequences; ++s) {
      uint32_t sum = 0;
      for (uint32_t token = 0; token < now[s]; ++token)
        for (uint32_t i = 0; i < kWidth; i += 256)
          sum += tokenWord(sequences[s].name, token, i) * (token + 1);
      CHECK(got[s] == sum, "step %u: sequence %u of %u tokens is %#x, expected %#x", step, s,
            now[s], got[s], sum);
    }
  }
  return apps::ok("paged_attention over %u blocks, %u sequences", blocks,
                  names - uint32_t(options.seed) * 1000);
}
