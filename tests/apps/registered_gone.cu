// Memory that the program unmaps, or protects, while it is still registered: nothing uses it any
// more, and the program goes on.
#include <sys/mman.h>

#include "common.h"

namespace {

constexpr size_t kBytes = size_t{4} << 20;

__global__ void put(uint32_t* to, const uint32_t* from) { *to = *from; }

enum class End { kUnmapped, kProtected, kPartly };

void* map() {
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "no memory");
  return memory;
}

void lives(void* memory, End end, uint32_t seed, size_t bytes) {
  apps::Pressure pressure(bytes);
  auto* const words = static_cast<uint32_t*>(memory);
  *words = apps::word(1, seed);
  RUNTIME_OK(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
  uint32_t *there = nullptr, *copy = nullptr;
  RUNTIME_OK(cudaHostGetDevicePointer(&there, memory, 0));
  RUNTIME_OK(cudaMalloc(&copy, size_t{2} << 20));
  put<<<1, 1>>>(copy, there);
  RUNTIME_OK(cudaGetLastError());
  pressure.apply();
  uint32_t got = 0;
  RUNTIME_OK(cudaMemcpy(&got, copy, 4, cudaMemcpyDeviceToHost));
  CHECK(got == apps::word(1, seed), "a kernel read %#x, not %#x", got, apps::word(1, seed));
  put<<<1, 1>>>(copy, there);
  RUNTIME_OK(cudaDeviceSynchronize());
  switch (end) {
    case End::kUnmapped:
      CHECK(munmap(memory, kBytes) == 0, "not unmapped");
      break;
    case End::kProtected:
      CHECK(mprotect(memory, kBytes, PROT_NONE) == 0, "not protected");
      break;
    case End::kPartly:
      CHECK(munmap(static_cast<char*>(memory) + kBytes / 2, kBytes / 2) == 0, "not unmapped");
      break;
  }
  // As far as anybody knows, `copy` may hold the memory's address: who uses it reaches that as
  // well.
  for (int round = 0; round < 3; ++round) {
    pressure.apply();
    put<<<1, 1>>>(copy + 1, copy);
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  RUNTIME_OK(cudaMemcpy(&got, copy + 1, 4, cudaMemcpyDeviceToHost));
  CHECK(got == apps::word(1, seed), "afterwards it is %#x, not %#x", got, apps::word(1, seed));
  pressure.check();
  RUNTIME_OK(cudaFree(copy));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  // Registered memory stays so where it is: none of them may lie where another was.
  void* const blocks[] = {map(), map(), map()};
  lives(blocks[0], End::kUnmapped, seed, options.bytes);
  lives(blocks[1], End::kProtected, seed + 1, options.bytes);
  lives(blocks[2], End::kPartly, seed + 2, options.bytes);
  return apps::ok("registered memory that goes without a word");
}
