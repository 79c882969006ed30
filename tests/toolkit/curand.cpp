// cuRAND's host API: XORWOW and Philox. The same seed gives the same numbers, another gives others;
// mean and variance are those of the distribution.
#include <curand.h>

#include "toolkit.h"

using toolkit::Device;

namespace {

constexpr size_t kCount = size_t{1} << 20;

struct Moments {
  double mean = 0, variance = 0;
};
Moments momentsOf(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (const float v : values) m.variance += (v - m.mean) * (v - m.mean);
  m.variance /= static_cast<double>(values.size());
  return m;
}

void check(const std::vector<float>& values, double mean, double variance, const char* what) {
  const Moments m = momentsOf(values);
  if (!(std::abs(m.mean - mean) < 0.01) || !(std::abs(m.variance - variance) < 0.02))
    toolkit::wrong("%s: mean %g and variance %g, expected %g and %g", what, m.mean, m.variance,
                   mean, variance);
}

std::vector<float> uniform(curandRngType_t type, unsigned long long seed, cudaStream_t stream,
                           bool normal) {
  curandGenerator_t generator = nullptr;
  MUST(curandCreateGenerator(&generator, type));
  MUST(curandSetStream(generator, stream));
  MUST(curandSetPseudoRandomGeneratorSeed(generator, seed));
  Device<float> there(kCount);
  if (normal) {
    MUST(curandGenerateNormal(generator, there.get(), kCount, 1.5f, 2.0f));
  } else {
    MUST(curandGenerateUniform(generator, there.get(), kCount));
  }
  MUST(cudaStreamSynchronize(stream));
  auto values = there.read();
  MUST(curandDestroyGenerator(generator));
  return values;
}

}  // namespace

int main() {
  toolkit::g_name = "curand";
  cudaStream_t stream = nullptr;
  curandGenerator_t generator = nullptr;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_XORWOW));
  MUST(curandDestroyGenerator(generator));
  toolkit::started();
  toolkit::Hash hash;
  for (const curandRngType_t type : {CURAND_RNG_PSEUDO_XORWOW, CURAND_RNG_PSEUDO_PHILOX4_32_10}) {
    const char* const what = type == CURAND_RNG_PSEUDO_XORWOW ? "XORWOW" : "Philox";
    const auto first = uniform(type, 7, stream, false);
    check(first, 0.5, 1.0 / 12, what);
    if (uniform(type, 7, stream, false) != first)
      toolkit::wrong("%s: the same seed gave other numbers", what);
    if (uniform(type, 8, stream, false) == first)
      toolkit::wrong("%s: another seed gave the same numbers", what);
    const auto normal = uniform(type, 7, stream, true);
    const Moments m = momentsOf(normal);
    if (!(std::abs(m.mean - 1.5) < 0.02) || !(std::abs(m.variance - 4) < 0.08))
      toolkit::wrong("%s, normal: mean %g and variance %g", what, m.mean, m.variance);
    hash.add(first);
    hash.add(normal);
  }
  MUST(cudaStreamDestroy(stream));
  toolkit::ok("XORWOW and Philox, %zu numbers each, %016llx", kCount, hash.value());
}
