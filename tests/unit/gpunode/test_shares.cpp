// How VRAM and RAM are divided among sessions.
#include <cstdio>
#include <numeric>
#include <random>

#include "gpunode/supervisor/shares.h"
#include "tests/catch.h"
#include "tests/seed.h"

using olpager::gpunode::Claim;
using olpager::gpunode::HostClaim;
using olpager::gpunode::hostShares;
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

TEST_CASE("RAM is divided in equal parts, and what is held stays", "[shares]") {
  CHECK(hostShares(100, {}).empty());
  CHECK(hostShares(100, std::vector<HostClaim>{{}}) == Budgets{100});
  CHECK(hostShares(100, std::vector<HostClaim>{{}, {}}) == Budgets{50, 50});
  CHECK(hostShares(100, std::vector<HostClaim>{{0, 20}, {}, {}}) == Budgets{20, 40, 40});
  CHECK(hostShares(100, std::vector<HostClaim>{{70}, {}}) == Budgets{30, 30});
  CHECK(hostShares(100, std::vector<HostClaim>{{70}, {}, {}}) == Budgets{15, 15, 15});
  CHECK(hostShares(100, std::vector<HostClaim>{{30}, {}}) == Budgets{50, 50});
  CHECK(hostShares(100, std::vector<HostClaim>{{120}, {}}) == Budgets{0, 0});
  CHECK(hostShares(UINT64_MAX, std::vector<HostClaim>{{}, {}}) ==
        Budgets{UINT64_MAX / 2, UINT64_MAX / 2});
}

TEST_CASE("all host tiers together stay within the RAM that there is", "[shares]") {
  const uint64_t seed = olpager::test::seed();
  std::printf("OL_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<HostClaim> claims(1 + random() % 8);
    const uint64_t total = random() % 100000;
    for (HostClaim& claim : claims) {
      if (random() % 4 == 0) claim.held = random() % (total / claims.size() + 1);
      if (random() % 4 == 0) claim.most = random() % (total + 1);
    }
    const auto limits = hostShares(total, claims);
    REQUIRE(limits.size() == claims.size());
    uint64_t all = 0;
    for (size_t i = 0; i < claims.size(); ++i) {
      all += std::max(limits[i], claims[i].held);
      CHECK(limits[i] <= claims[i].most);
      // Held memory is at most an equal part here: nobody is kept from his own.
      CHECK(limits[i] >= std::min(total / claims.size(), claims[i].most));
    }
    CHECK(all <= total);
  }
}
