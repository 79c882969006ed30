// CUDA arrays against the budget: buffers take three quarters of all that is reported, then arrays
// are made. Arrays are the driver's own VRAM; a pager has to make room for them, and may have the
// room back when they are gone.
#include <algorithm>

#include "driver_program.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBuffer = 4 * kMiB;
constexpr unsigned kSide = 1024;  // of an array of 32-bit elements: 4 MiB

void check(const std::vector<uint32_t>& words, uint32_t seed, const char* what, size_t which) {
  for (uint32_t i = 0; i < words.size(); ++i)
    CHECK(words[i] == apps::word(i, seed), "%s %zu: word %u is %#x, expected %#x", what, which, i,
          words[i], apps::word(i, seed));
}

std::vector<uint32_t> contents(size_t words, uint32_t seed) {
  std::vector<uint32_t> out(words);
  for (uint32_t i = 0; i < words; ++i) out[i] = apps::word(i, seed);
  return out;
}

CUDA_MEMCPY2D between(CUarray array, const std::vector<uint32_t>& host, bool into) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = into ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
  copy.dstMemoryType = into ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
  copy.srcArray = copy.dstArray = array;
  copy.srcHost = copy.dstHost = const_cast<uint32_t*>(host.data());
  copy.srcPitch = copy.dstPitch = kSide * 4;
  copy.WidthInBytes = kSide * 4;
  copy.Height = kSide;
  return copy;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const CUdevice device = apps::usePrimaryContext();
  size_t free = 0, total = 0;
  DRIVER_OK(cuMemGetInfo(&free, &total));
  std::vector<CUdeviceptr> buffers(
      std::max<size_t>(std::min(free, 8 * options.bytes) * 3 / 4 / kBuffer, 1));
  for (size_t b = 0; b < buffers.size(); ++b) {
    DRIVER_OK(cuMemAlloc(&buffers[b], kBuffer));
    const std::vector<uint32_t> words = contents(kBuffer / 4, seed + uint32_t(b));
    DRIVER_OK(cuMemcpyHtoD(buffers[b], words.data(), kBuffer));
  }
  CUDA_ARRAY_DESCRIPTOR flat{};
  flat.Width = flat.Height = kSide;
  flat.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  flat.NumChannels = 1;
  std::vector<uint32_t> got(size_t{kSide} * kSide);
  for (int round = 0; round < 2; ++round) {
    std::vector<CUarray> arrays(2);
    for (size_t a = 0; a < arrays.size(); ++a) {
      DRIVER_OK(cuArrayCreate(&arrays[a], &flat));
      const std::vector<uint32_t> words = contents(got.size(), seed + 1000 + uint32_t(a));
      const CUDA_MEMCPY2D copy = between(arrays[a], words, true);
      DRIVER_OK(cuMemcpy2D(&copy));
    }
    // Buffers come and go beside them.
    for (size_t b = 0; b < buffers.size(); ++b) {
      DRIVER_OK(cuMemcpyDtoH(got.data(), buffers[b], kBuffer));
      check(got, seed + uint32_t(b), "buffer", b);
    }
    for (size_t a = 0; a < arrays.size(); ++a) {
      const CUDA_MEMCPY2D copy = between(arrays[a], got, false);
      DRIVER_OK(cuMemcpy2D(&copy));
      check(got, seed + 1000 + uint32_t(a), "array", a);
      DRIVER_OK(cuArrayDestroy(arrays[a]));
    }
  }
  // More than there is at all is refused, and costs nobody anything.
  CUDA_ARRAY3D_DESCRIPTOR huge{};
  huge.Width = huge.Height = 1 << 14;
  huge.Depth = 1 << 10;
  huge.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  huge.NumChannels = 4;
  CUarray none = nullptr;
  CHECK(cuArray3DCreate(&none, &huge) != CUDA_SUCCESS, "an array of 4 TiB was made");
  for (size_t b = 0; b < buffers.size(); ++b) {
    DRIVER_OK(cuMemcpyDtoH(got.data(), buffers[b], kBuffer));
    check(got, seed + uint32_t(b), "buffer at the end", b);
    DRIVER_OK(cuMemFree(buffers[b]));
  }
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("arrays beside %zu buffers of %zu MiB", buffers.size(), kBuffer / kMiB);
}
