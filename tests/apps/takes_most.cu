// Three quarters of the memory that is said to be free, in one allocation when the program starts,
// as JAX takes it; and tensors of the program's own choice in it, as far apart as they can be,
// worked on in turns for some steps. The taken memory is there: no step runs out of memory.
#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kTensor = size_t{2} << 20;
  constexpr uint32_t kSteps = 3;
  size_t is_free = 0, total = 0;
  RUNTIME_OK(cudaMemGetInfo(&is_free, &total));
  const size_t taken = is_free / 4 * 3 / kTensor * kTensor;
  const size_t count = options.bytes / kTensor;
  CHECK(is_free <= total && taken / kTensor >= count, "%zu of %zu bytes are free", is_free, total);
  char* arena = nullptr;
  RUNTIME_OK(cudaMalloc(&arena, taken));
  const auto tensor = [&](size_t i) { return arena + taken / kTensor * i / count * kTensor; };
  const auto seed = [&](size_t i) { return uint32_t(options.seed + i); };
  for (size_t i = 0; i < count; ++i) apps::fill(tensor(i), kTensor, seed(i));
  for (uint32_t step = 0; step < kSteps; ++step)
    for (size_t i = 0; i < count; ++i) apps::add(tensor((i + step * 5) % count), kTensor, 3);
  RUNTIME_OK(cudaDeviceSynchronize());
  for (size_t i = 0; i < count; ++i)
    apps::verify(tensor(i), kTensor, seed(i), kSteps * 3, "a tensor in the arena");
  size_t left = 0;
  RUNTIME_OK(cudaMemGetInfo(&left, &total));
  CHECK(left <= is_free - taken, "%zu bytes are free beside %zu of %zu", left, taken, is_free);
  RUNTIME_OK(cudaFree(arena));
  return apps::ok("takes_most: %zu tensors in three quarters of what is free", count);
}
