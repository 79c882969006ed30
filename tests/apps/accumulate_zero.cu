// Gradients: accumulated in place while parked or resident, zeroed, evicted, used again; with the
// same contents as before at some of the evictions, so that a stale lower copy with an equal hash
// would be taken for the truth.
#include <algorithm>

#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  const size_t n = options.bytes / 2 / kPiece > 2 ? options.bytes / 2 / kPiece : 2;
  std::vector<uint32_t*> gradients(n);
  for (uint32_t*& p : gradients) {
    RUNTIME_OK(cudaMalloc(&p, kPiece));
    RUNTIME_OK(cudaMemset(p, 0, kPiece));
  }
  apps::Pressure pressure(options.bytes / 2);
  std::vector<uint32_t> host(kPiece / 4);
  apps::Random random(options.seed);
  std::vector<uint32_t> expected(n, 0);
  for (int step = 0; step < 10; ++step) {
    for (size_t g = 0; g < n; ++g) {
      const uint32_t value = uint32_t(random.below(3));  // sometimes nothing changes
      apps::add(gradients[g], kPiece, value);
      expected[g] += value;
    }
    if (random.below(2) == 0) pressure.apply();
    for (size_t g = 0; g < n; ++g) {
      switch (random.below(5)) {
        case 0:
          RUNTIME_OK(cudaMemset(gradients[g], 0, kPiece));
          expected[g] = 0;
          break;
        case 1: {  // an upload with the contents that it already has
          std::fill(host.begin(), host.end(), expected[g]);
          RUNTIME_OK(cudaMemcpy(gradients[g], host.data(), kPiece, cudaMemcpyHostToDevice));
          break;
        }
        case 2:  // added to and taken back
          apps::add(gradients[g], kPiece, 1000);
          apps::add(gradients[g], kPiece, uint32_t(-1000));
          break;
        default:
          break;
      }
    }
    if (random.below(2) == 0) pressure.apply();
    const size_t g = random.below(n);
    RUNTIME_OK(cudaMemcpy(host.data(), gradients[g], kPiece, cudaMemcpyDeviceToHost));
    for (uint32_t v : host)
      CHECK(v == expected[g], "step %d: gradient %zu has %u, expected %u", step, g, v, expected[g]);
  }
  pressure.apply();
  for (size_t g = 0; g < n; ++g) {
    RUNTIME_OK(cudaMemcpy(host.data(), gradients[g], kPiece, cudaMemcpyDeviceToHost));
    for (uint32_t v : host)
      CHECK(v == expected[g], "at the end: gradient %zu has %u, expected %u", g, v, expected[g]);
  }
  pressure.check();
  return apps::ok("accumulate_zero with %zu gradients", n);
}
