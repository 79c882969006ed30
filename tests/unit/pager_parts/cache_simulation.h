// A cache of equal units under three ways to choose the victim: least recently used, the
// predictor's, and the optimum (farthest next use, known from the whole trace). Demand fetches
// only; counts misses.
#pragma once

#include <cstdint>
#include <vector>

#include "pager/predict/predict.h"

struct Touch {
  uint32_t unit;
  uint32_t signature;
};
using Trace = std::vector<Touch>;

struct Misses {
  uint64_t lru = 0;
  uint64_t predicted = 0;
  uint64_t optimum = 0;
  double right = 0;  // share of chain touches after the first `learn` that were foretold
};

uint64_t missesLru(const Trace& trace, size_t capacity);
uint64_t missesOptimum(const Trace& trace, size_t capacity);
uint64_t missesPredicted(const Trace& trace, size_t capacity,
                         olpager::predict::Predictor& predictor, size_t learn = 0,
                         double* right = nullptr);
Misses simulate(const char* name, const Trace& trace, size_t capacity, size_t learn);
