// Managed memory that an object of static storage looks at when the program ends: made before CUDA
// is used, so that it is destroyed after whatever CUDA does at the end.
#include "common.h"

namespace {

struct Last {
  const uint32_t* data = nullptr;
  size_t bytes = 0;
  uint32_t seed = 0;
  ~Last() {
    if (data == nullptr) return;
    // Without exit(), which can't be called again.
    for (size_t i = 0; i < bytes / 4; ++i) {
      const uint32_t expected = apps::word(uint32_t(i / 4), seed) + uint32_t(i % 4) + 5;
      if (data[i] == expected) continue;
      std::printf("FAILED at the end word %zu is %#x, expected %#x\n", i, data[i], expected);
      std::fflush(stdout);
      _Exit(1);
    }
    std::printf("OK managed memory at the end\n");
    std::fflush(stdout);
  }
};
Last g_last;

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t bytes = options.bytes / 2 & ~size_t{4095};
  uint32_t* data;
  RUNTIME_OK(cudaMallocManaged(&data, bytes));
  apps::fill(data, bytes, seed);
  apps::add(data, bytes, 5);
  RUNTIME_OK(cudaDeviceSynchronize());
  // Page after page, so that the next ones are asked for ahead of touches that come at the end.
  constexpr size_t kPage = 2 << 20;
  apps::verifyHost(data, std::min(bytes, 2 * kPage), seed, 5, "read page after page");
  g_last.bytes = bytes;
  g_last.seed = seed;
  g_last.data = data;
  return 0;
}
