// How VRAM is divided among sessions.
#include <cstdio>
#include <numeric>
#include <random>

#include "gpunode/supervisor/shares.h"
#include "tests/catch.h"
#include "tests/seed.h"

using olpager::gpunode::Claim;
using olpager::gpunode::shares;
using Budgets = std::vector<uint64_t>;

TEST_CASE("all that is there goes to who is alone", "[shares]") {
  CHECK(shares(100, {}).empty());
  CHECK(shares(100, std::vector<Claim>{{10}}) == Budgets{100});
  CHECK(shares(100, std::vector<Claim>{{1000}}) == Budgets{100});
  CHECK(shares(100, std::vector<Claim>{{1000, 40}}) == Budgets{40});
}

TEST_CASE("those who want more than there is have equal parts", "[shares]") {
  CHECK(shares(100, std::vector<Claim>{{80}, {90}}) == Budgets{50, 50});
  CHECK(shares(90, std::vector<Claim>{{80}, {90}, {1000}}) == Budgets{30, 30, 30});
}

TEST_CASE("what one does not want others have, and it may still grow to its part", "[shares]") {
  CHECK(shares(100, std::vector<Claim>{{10}, {500}}) == Budgets{50, 90});
  CHECK(shares(120, std::vector<Claim>{{10}, {500}, {20}}) == Budgets{40, 90, 40});
  CHECK(shares(100, std::vector<Claim>{{500, 20}, {500}}) == Budgets{20, 80});
}

TEST_CASE("what is wanted fits, and nobody has less than an equal part", "[shares]") {
  const uint64_t seed = olpager::test::seed();
  std::printf("OL_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Claim> claims(1 + random() % 8);
    const uint64_t total = random() % 100000;
    for (Claim& claim : claims) {
      claim.wanted = random() % (total + 1);
      if (random() % 4 == 0) claim.most = random() % (total + 1);
    }
    const auto budgets = shares(total, claims);
    REQUIRE(budgets.size() == claims.size());
    uint64_t used = 0;
    for (size_t i = 0; i < claims.size(); ++i) {
      used += std::min(claims[i].wanted, budgets[i]);
      CHECK(budgets[i] <= claims[i].most);
      CHECK(budgets[i] >= std::min(total / claims.size(), claims[i].most));
    }
    CHECK(used <= total);
  }
}
