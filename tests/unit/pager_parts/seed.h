// The seed of randomised tests: OL_TEST_SEED, or one that is fixed. Printed, so that a failure can
// be repeated.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

inline std::mt19937_64 seededRandom(const char* test) {
  const char* given = std::getenv("OL_TEST_SEED");
  const uint64_t seed =
      given != nullptr && *given != '\0' ? std::strtoull(given, nullptr, 0) : 20240611;
  std::cout << test << ": OL_TEST_SEED=" << seed << "\n";
  return std::mt19937_64(seed);
}
