#include "tests/unit/pager_parts/cache_simulation.h"

#include <algorithm>
#include <iostream>
#include <list>
#include <set>
#include <unordered_map>
#include <unordered_set>

using olpager::predict::Predictor;

uint64_t missesLru(const Trace& trace, size_t capacity) {
  std::list<uint32_t> order;
  std::unordered_map<uint32_t, std::list<uint32_t>::iterator> in;
  uint64_t misses = 0;
  for (const Touch& touch : trace) {
    const auto found = in.find(touch.unit);
    if (found != in.end()) {
      order.splice(order.end(), order, found->second);
      continue;
    }
    ++misses;
    if (in.size() == capacity) {
      in.erase(order.front());
      order.pop_front();
    }
    in[touch.unit] = order.insert(order.end(), touch.unit);
  }
  return misses;
}

uint64_t missesOptimum(const Trace& trace, size_t capacity) {
  std::vector<uint64_t> next(trace.size());
  std::unordered_map<uint32_t, uint64_t> seen;
  for (size_t i = trace.size(); i-- > 0;) {
    const auto found = seen.find(trace[i].unit);
    next[i] = found == seen.end() ? UINT64_MAX : found->second;
    seen[trace[i].unit] = i;
  }
  std::set<std::pair<uint64_t, uint32_t>> by_next;
  std::unordered_map<uint32_t, uint64_t> in;
  uint64_t misses = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    const uint32_t unit = trace[i].unit;
    const auto found = in.find(unit);
    if (found != in.end()) {
      by_next.erase({found->second, unit});
    } else {
      ++misses;
      if (in.size() == capacity) {
        in.erase(by_next.rbegin()->second);
        by_next.erase(std::prev(by_next.end()));
      }
    }
    in[unit] = next[i];
    by_next.insert({next[i], unit});
  }
  return misses;
}

uint64_t missesPredicted(const Trace& trace, size_t capacity, Predictor& predictor, size_t learn,
                         double* right) {
  std::unordered_set<uint32_t> in;
  std::unordered_map<uint32_t, size_t>
      used;  // when, of those that are in: the engine's order where nothing is foretold
  uint64_t misses = 0;
  Predictor::Statistics before;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (i == learn) before = predictor.statistics();
    const uint32_t unit = trace[i].unit;
    predictor.touch(unit, trace[i].signature);
    if (in.contains(unit)) {
      used[unit] = i;
      continue;
    }
    ++misses;
    if (in.size() == capacity) {
      uint32_t victim = UINT32_MAX;
      bool never = false;
      uint64_t farthest = 0;
      for (const uint32_t candidate : in) {
        if (predictor.isHot(candidate)) continue;
        const Predictor::NextUse use = predictor.nextUse(candidate);
        if (use.kind == Predictor::NextUse::Kind::kNever) {
          never = true;
        } else if (use.kind == Predictor::NextUse::Kind::kPredicted &&
                   (victim == UINT32_MAX || use.distance > farthest)) {
          farthest = use.distance;
          victim = candidate;
        }
      }
      const auto recency = [&](auto&& allowed) {
        uint32_t oldest = UINT32_MAX;
        for (const uint32_t candidate : in)
          if (allowed(candidate) && (oldest == UINT32_MAX || used[candidate] < used[oldest]))
            oldest = candidate;
        return oldest;
      };
      if (never) {
        victim = recency([&](uint32_t candidate) {
          return !predictor.isHot(candidate) &&
                 predictor.nextUse(candidate).kind == Predictor::NextUse::Kind::kNever;
        });
      }
      if (victim == UINT32_MAX)
        victim = recency([&](uint32_t candidate) { return !predictor.isHot(candidate); });
      if (victim == UINT32_MAX) victim = recency([](uint32_t) { return true; });
      in.erase(victim);
    }
    in.insert(unit);
    used[unit] = i;
  }
  if (right != nullptr) {
    const Predictor::Statistics& after = predictor.statistics();
    const double good = static_cast<double>(after.predicted_right - before.predicted_right);
    const double bad = static_cast<double>(after.predicted_wrong - before.predicted_wrong);
    *right = good + bad == 0 ? 0 : good / (good + bad);
  }
  return misses;
}

Misses simulate(const char* name, const Trace& trace, size_t capacity, size_t learn) {
  Misses misses;
  Predictor predictor;
  misses.lru = missesLru(trace, capacity);
  misses.predicted = missesPredicted(trace, capacity, predictor, learn, &misses.right);
  misses.optimum = missesOptimum(trace, capacity);
  std::cout << name << ": " << trace.size() << " touches, room for " << capacity
            << " units; misses: LRU " << misses.lru << ", predicted " << misses.predicted
            << ", optimum " << misses.optimum << "; foretold " << 100 * misses.right
            << " %, placed anew " << predictor.statistics().found_anew << " times\n";
  return misses;
}
