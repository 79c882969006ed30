// The seed of a randomised test: OL_TEST_SEED, or one that nobody chose. The test prints it, so
// that a failure can be repeated.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace olpager::test {

inline uint64_t seed() {
  const char* const given = std::getenv("OL_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
}

}  // namespace olpager::test
