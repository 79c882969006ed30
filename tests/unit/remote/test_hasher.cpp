#include "memserver/tier/hasher.h"

#include "tests/unit/remote/rig.h"

namespace olpager::pager::test {

TEST_CASE("helpers find the hash that one thread finds", "[hasher]") {
  Bytes bytes(24 * kMiB);
  bytes.fill(11);
  for (const unsigned helpers : {0u, 1u, 3u}) {
    memserver::Hasher hasher(helpers);
    auto random = seededRandom("hasher");
    for (int i = 0; i < 60; ++i) {
      const uint64_t first = random() % 12 * 2 * kMiB;
      const uint64_t length = (1 + random() % ((bytes.length - first) / (2 * kMiB))) * 2 * kMiB;
      CHECK(hasher.hash(bytes.base + first, length) ==
            kernels::hashMemory(bytes.base + first, length));
      if (i % 20 == 0) bytes.fill(random());
    }
  }
}

TEST_CASE("a hasher that was never asked ends", "[hasher]") {
  for (int i = 0; i < 20; ++i) memserver::Hasher hasher(2);
}

}  // namespace olpager::pager::test
