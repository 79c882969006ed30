// The learned order: accuracy on the orders that programs have, bytes moved against the optimum,
// and its edges.
#include <chrono>
#include <map>
#include <set>

#include "pager/predict/predict.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/cache_simulation.h"
#include "tests/unit/pager_parts/seed.h"

using olpager::predict::Predictor;
using olpager::predict::Unit;
using Kind = Predictor::NextUse::Kind;

namespace {

constexpr uint32_t kWeights = 280;
constexpr uint32_t kWorkspace = 1000;
constexpr uint32_t kActivations = 1001;

// A token of a decoder: each weight once, activations and workspace between all of them.
void decodeToken(Trace& trace, uint32_t signature = 1) {
  for (uint32_t weight = 0; weight < kWeights; ++weight) {
    trace.push_back({kActivations, signature});
    trace.push_back({weight, signature});
    trace.push_back({kWorkspace, signature});
  }
}

Trace decode(unsigned tokens) {
  Trace trace;
  for (unsigned i = 0; i < tokens; ++i) decodeToken(trace);
  return trace;
}

Trace phases() {
  Trace trace;
  for (unsigned prompt = 0; prompt < 6; ++prompt) {
    for (uint32_t weight = 0; weight < kWeights;
         ++weight) {  // prefill: other kernels, scratch of its own
      trace.push_back({kActivations + 1, 7});
      trace.push_back({weight, 7});
      if (weight % 7 == 0) trace.push_back({400 + weight / 7, 7});
    }
    for (unsigned token = 0; token < 12; ++token) {
      for (uint32_t weight = 0; weight < kWeights; ++weight) {
        trace.push_back({kActivations, 1});
        trace.push_back({weight, 1});
        if (weight % 7 == 0) trace.push_back({500 + weight / 7, 1});
      }
    }
  }
  return trace;
}

Trace growingCache() {
  Trace trace;
  for (uint32_t token = 0; token < 40; ++token) {
    for (uint32_t weight = 0; weight < kWeights; ++weight) {
      trace.push_back({kActivations, 1});
      trace.push_back({weight, 1});
    }
    for (uint32_t block = 0; block <= token; ++block) trace.push_back({2000 + block, 2});
  }
  return trace;
}

Trace training() {
  Trace trace;
  constexpr uint32_t kLayers = 120;
  for (unsigned step = 0; step < 12; ++step) {
    for (unsigned micro = 0; micro < 3; ++micro) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        trace.push_back({layer, 1});
        trace.push_back({200 + layer, 1});  // activations kept for the way back
        trace.push_back({kWorkspace, 1});
      }
      for (uint32_t layer = kLayers; layer-- > 0;) {
        trace.push_back({200 + layer, 2});
        trace.push_back({layer, 2});
        trace.push_back({kWorkspace, 2});
        trace.push_back({400 + layer, 2});  // gradient
      }
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      trace.push_back({400 + layer, 3});
      trace.push_back({600 + layer, 3});  // moments
      trace.push_back({layer, 3});
    }
  }
  return trace;
}

void feed(Predictor& predictor, const Trace& trace) {
  for (const Touch& touch : trace) predictor.touch(touch.unit, touch.signature);
}

}  // namespace

TEST_CASE("cyclic decode is foretold after one pass and moves what the optimum moves",
          "[predict]") {
  const Misses misses = simulate("decode", decode(20), 100, decode(1).size() + 10);
  CHECK(misses.right > 0.999);
  CHECK(static_cast<double>(misses.predicted) < 1.05 * static_cast<double>(misses.optimum));
  CHECK(misses.lru > misses.optimum);
}

TEST_CASE("two phases that alternate", "[predict]") {
  const Misses misses = simulate("prefill and decode", phases(), 120, size_t{2} * kWeights);
  CHECK(misses.right > 0.98);
  CHECK(static_cast<double>(misses.predicted) < 1.05 * static_cast<double>(misses.optimum));
}

TEST_CASE("a cache that grows by one unit each round", "[predict]") {
  const Misses misses = simulate("growing cache", growingCache(), 150, size_t{2} * kWeights);
  CHECK(misses.right > 0.98);
  CHECK(static_cast<double>(misses.predicted) < 1.05 * static_cast<double>(misses.optimum));
}

TEST_CASE("training: forward, backward in reverse, optimiser", "[predict]") {
  const Trace trace = training();
  const Misses misses = simulate("training", trace, 200, 2 * trace.size() / 12);
  CHECK(misses.right > 0.98);
  CHECK(static_cast<double>(misses.predicted) < 1.05 * static_cast<double>(misses.optimum));
}

TEST_CASE("a random order is not made worse than recency makes it", "[predict]") {
  auto random = seededRandom("random order");
  Trace trace;
  for (unsigned i = 0; i < 40000; ++i) trace.push_back({static_cast<uint32_t>(random() % 300), 1});
  const Misses misses = simulate("random", trace, 120, 1000);
  CHECK(static_cast<double>(misses.predicted) < 1.05 * static_cast<double>(misses.lru));
}

TEST_CASE("small deviations do not lose the place", "[predict]") {
  auto random = seededRandom("deviations");
  Trace trace;
  for (unsigned token = 0; token < 30; ++token) {
    for (uint32_t weight = 0; weight < kWeights; ++weight) {
      if (random() % 50 == 0) continue;  // left out
      trace.push_back({weight, 1});
      if (random() % 50 == 0)
        trace.push_back({static_cast<uint32_t>(random() % kWeights), 1});  // one too many
    }
  }
  const Misses misses = simulate("deviations", trace, 120, 600);
  CHECK(misses.right > 0.94);
  CHECK(static_cast<double>(misses.predicted) < 1.10 * static_cast<double>(misses.optimum));
}

TEST_CASE("hot units are reported, kept out of the chain, and cool down", "[predict]") {
  Predictor predictor;
  feed(predictor, decode(2));  // what is used once says nothing: known in the second round
  CHECK(predictor.isHot(kWorkspace));
  CHECK(predictor.isHot(kActivations));
  for (uint32_t weight = 0; weight < kWeights; ++weight) CHECK_FALSE(predictor.isHot(weight));
  feed(predictor, decode(1));
  predictor.upcoming(1000, [](Unit unit, uint64_t) {
    CHECK(unit < kWeights);
    return true;
  });
  // The same weights without workspace: it is not hot for ever.
  for (unsigned round = 0; round < 2; ++round) {
    for (uint32_t weight = 0; weight < kWeights; ++weight) predictor.touch(weight, 1);
  }
  CHECK_FALSE(predictor.isHot(kWorkspace));
}

TEST_CASE("a small loop after a large load is not all hot", "[predict]") {
  Predictor predictor;
  for (uint32_t unit = 0; unit < 2000; ++unit) predictor.touch(unit, 9);
  for (unsigned round = 0; round < 60; ++round) {
    for (uint32_t unit = 0; unit < 24; ++unit) predictor.touch(unit * 10, 1);
  }
  for (uint32_t unit = 0; unit < 24; ++unit) CHECK_FALSE(predictor.isHot(unit * 10));
  REQUIRE(predictor.confident());
  CHECK(predictor.nextUse(0).kind == Kind::kPredicted);
  CHECK(predictor.nextUse(0).distance == 0);
  CHECK(predictor.nextUse(230).distance == 23);
  CHECK(predictor.nextUse(5).kind == Kind::kNever);
}

TEST_CASE("next use and upcoming agree with a cyclic order", "[predict]") {
  Predictor predictor;
  CHECK(predictor.nextUse(3).kind == Kind::kUnpredicted);
  for (unsigned round = 0; round < 3; ++round) {
    for (uint32_t unit = 0; unit < 50; ++unit) predictor.touch(unit, 1);
  }
  for (uint32_t unit = 0; unit <= 20; ++unit) predictor.touch(unit, 1);
  for (uint32_t unit = 0; unit < 50; ++unit) {
    const auto use = predictor.nextUse(unit);
    REQUIRE(use.kind == Kind::kPredicted);
    CHECK(use.distance == (unit + 50 - 21) % 50);
  }
  CHECK(predictor.nextUse(77).kind == Kind::kUnpredicted);
  std::vector<Unit> ahead;
  predictor.upcoming(10, [&](Unit unit, uint64_t distance) {
    CHECK(distance == ahead.size());
    ahead.push_back(unit);
    return true;
  });
  CHECK(ahead == std::vector<Unit>{21, 22, 23, 24, 25, 26, 27, 28, 29, 30});
  unsigned calls = 0;
  predictor.upcoming(10, [&](Unit, uint64_t) { return ++calls < 3; });
  CHECK(calls == 3);
}

TEST_CASE("a forgotten unit's id starts anew", "[predict]") {
  Predictor predictor;
  for (unsigned round = 0; round < 3; ++round) {
    for (uint32_t unit = 0; unit < 40; ++unit) predictor.touch(unit, 1);
  }
  predictor.forget(7);
  predictor.forget(12345);
  CHECK(predictor.nextUse(7).kind == Kind::kUnpredicted);
  std::set<Unit> ahead;
  predictor.upcoming(100, [&](Unit unit, uint64_t) { return ahead.insert(unit).second; });
  CHECK_FALSE(ahead.contains(7));
  CHECK(ahead.size() == 39);
  for (unsigned round = 0; round < 2; ++round) {
    for (uint32_t unit = 0; unit < 40; ++unit) {
      if (unit != 7) predictor.touch(unit, 1);
    }
  }
  CHECK(predictor.confident());
  predictor.touch(7, 5);
  CHECK(predictor.nextUse(7).kind != Kind::kNever);
}

TEST_CASE("temporary units that are freed and made anew each round do not disturb the rest",
          "[predict]") {
  auto random = seededRandom("temporaries");
  Predictor predictor;
  uint64_t wrong = 0;
  for (unsigned token = 0; token < 30; ++token) {
    std::vector<Unit> temporaries;
    for (uint32_t weight = 0; weight < kWeights; ++weight) {
      if (weight % 4 == 0) {  // ids are used again in any order
        const Unit unit = 3000 + static_cast<Unit>(random() % 200);
        if (std::find(temporaries.begin(), temporaries.end(), unit) == temporaries.end())
          temporaries.push_back(unit);
        predictor.touch(unit, 5);
      }
      predictor.touch(weight, 1);
      if (token < 3) continue;
      const Unit next = (weight + 1) % kWeights;
      const auto near = predictor.nextUse(next);
      const auto far = predictor.nextUse((weight + kWeights / 2) % kWeights);
      if (near.kind != Kind::kPredicted || far.kind != Kind::kPredicted || near.distance > 4 ||
          far.distance < 130)
        ++wrong;
    }
    for (const Unit unit : temporaries) predictor.forget(unit);
  }
  CHECK(wrong < 27 * kWeights / 50);
}

TEST_CASE("a short history wraps, forgets and never reads outside itself", "[predict]") {
  auto random = seededRandom("short history");
  Predictor predictor({.history = 256});
  for (unsigned i = 0; i < 300000; ++i) {
    const uint64_t what = random() % 100;
    const auto unit = static_cast<Unit>(i / 5000 % 2 == 0 ? i % 90 : random() % 300);
    if (what < 2) {
      predictor.forget(unit);
    } else {
      predictor.touch(unit, static_cast<uint32_t>(random() % 3));
    }
    if (what < 20) {
      const auto use = predictor.nextUse(static_cast<Unit>(random() % 320));
      if (use.kind == Kind::kPredicted) {
        REQUIRE(use.distance < 5000);
      } else {
        REQUIRE(use.distance == UINT64_MAX);
      }
    }
    if (what == 50) {
      std::set<Unit> seen;
      uint64_t last = 0;
      predictor.upcoming(64, [&](Unit ahead, uint64_t distance) {
        REQUIRE(seen.insert(ahead).second);
        REQUIRE(distance >= last);
        last = distance;
        // The answers of upcoming and nextUse are one thing.
        REQUIRE(predictor.nextUse(ahead).distance == distance);
        return true;
      });
    }
  }
}

TEST_CASE("a touch costs little", "[predict]") {
  Predictor predictor;
  const Trace trace = decode(50);
  feed(predictor, trace);
  const auto start = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < 10; ++i) feed(predictor, trace);
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count();
  std::cout << "touch: " << static_cast<double>(ns) / (10.0 * static_cast<double>(trace.size()))
            << " ns\n";
}
