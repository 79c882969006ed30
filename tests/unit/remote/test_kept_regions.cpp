// Memory that stays registered between transfers, over a card that counts and can refuse.
#include <sys/mman.h>

#include <thread>
#include <utility>

#include "coherence/transport/core/region_entry.h"
#include "memserver/tier/kept_regions.h"
#include "tests/unit/remote/rig.h"

namespace olpager::pager::test {
namespace {

using memserver::KeptRegions;

class FakeRegistration final : public transport::Registration {
 public:
  FakeRegistration(transport::ProtectionDomain& domain, uint64_t bytes)
      : domain_(domain), bytes_(bytes) {
    domain_.registrations.fetch_add(1);
    domain_.pinned_bytes.fetch_add(bytes_);
  }
  ~FakeRegistration() override { end(); }
  bool end() override {
    domain_.pinned_bytes.fetch_sub(std::exchange(bytes_, 0));
    return true;
  }

 private:
  transport::ProtectionDomain& domain_;
  uint64_t bytes_;
};

// Pins as much as `most`.
class FakeCard final : public transport::ProtectionDomain {
 public:
  Result<std::unique_ptr<transport::Registration>> make(
      const transport::RegionEntry& entry) override {
    if (pinned_bytes.load() + entry.length > most) return Error{"the card has had enough"};
    return std::unique_ptr<transport::Registration>(
        std::make_unique<FakeRegistration>(*this, entry.base != nullptr ? entry.length : 0));
  }
  uint64_t most = UINT64_MAX;
};

constexpr uint64_t kChunk = 2 * kMiB;

struct Kept {
  transport::DomainPtr domain = transport::makeDomain();
  std::shared_ptr<FakeCard> card = std::make_shared<FakeCard>();
  KeptRegions regions;
  std::vector<std::unique_ptr<Bytes>> chunks;

  explicit Kept(uint64_t most = UINT64_MAX) : regions(domain, most) {
    const auto on = domain->on(
        this, [&]() -> Result<std::shared_ptr<transport::ProtectionDomain>> { return {card}; });
    REQUIRE(on.ok());
    for (int i = 0; i < 8; ++i) chunks.push_back(std::make_unique<Bytes>(kChunk));
  }
  /// One transfer, by the card if that has the memory; whether it had.
  bool transfer(size_t chunk) {
    auto region = regions.use(chunks[chunk]->base, kChunk);
    REQUIRE(region.ok());
    CHECK(region.value()->base() == chunks[chunk]->base);
    REQUIRE(region.value()->entry()->pin());
    const bool had = region.value()->entry()->registered(card) != nullptr;
    region.value()->entry()->unpin();
    regions.done(std::move(region).value());
    return had;
  }
  transport::CardMemory memory() const { return transport::cardMemory(domain); }
};

}  // namespace

TEST_CASE("a chunk is registered by its first transfer, and until it is let go of", "[kept]") {
  Kept kept;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kept.chunks.size(); ++i) CHECK(kept.transfer(i));
    CHECK(kept.memory().registrations == 8);
    CHECK(kept.memory().bytes == 8 * kChunk);
  }
  kept.regions.letGo(kept.chunks[0]->base);
  CHECK(kept.memory().bytes == 7 * kChunk);
  kept.regions.letGo(kept.chunks[0]->base);
  kept.regions.letGo(&kept);  // nothing of the kind
  CHECK(kept.memory().bytes == 7 * kChunk);
  CHECK(kept.transfer(0));
  CHECK(kept.memory().registrations == 9);
  kept.regions.clear();
  CHECK(kept.memory().bytes == 0);
}

TEST_CASE("memory of another length is not taken for what was there", "[kept]") {
  Kept kept;
  CHECK(kept.transfer(0));
  const auto half = kept.regions.use(kept.chunks[0]->base, kChunk / 2);
  REQUIRE(half.ok());
  CHECK(half.value()->length() == kChunk / 2);
  CHECK(kept.memory().bytes == 0);
}

TEST_CASE("letting go waits for what is under way", "[kept]") {
  Kept kept;
  CHECK(kept.transfer(0));
  auto region = kept.regions.use(kept.chunks[0]->base, kChunk);
  REQUIRE(region.ok());
  const auto entry = region.value()->entry();
  REQUIRE(entry->pin());
  kept.regions.done(std::move(region).value());
  std::atomic<bool> gone{false};
  std::thread goes([&] {
    kept.regions.letGo(kept.chunks[0]->base);
    gone = true;
  });
  std::this_thread::sleep_for(50ms);
  CHECK_FALSE(gone);
  CHECK(kept.memory().bytes == kChunk);
  entry->unpin();
  goes.join();
  CHECK(kept.memory().bytes == 0);
}

// A refused region is tried again by its next transfer, for which there is room then.
TEST_CASE("once a card can't have more, less stays registered", "[kept]") {
  Kept kept;
  kept.card->most = 4 * kChunk;
  for (size_t i = 0; i < 4; ++i) CHECK(kept.transfer(i));
  CHECK_FALSE(kept.transfer(4));
  CHECK(kept.memory().bytes == 2 * kChunk);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kept.chunks.size(); ++i) CHECK(kept.transfer(i));
  }
  CHECK(kept.memory().bytes == 2 * kChunk);
  kept.card->most = 0;
  kept.regions.clear();
  CHECK_FALSE(kept.transfer(0));
  CHECK(kept.memory().bytes == 0);
}

// As of a device: nothing of it counts, and what is refused stays nowhere.
TEST_CASE("memory of a device is registered at once, and stays whatever is bounded", "[kept]") {
  Kept kept(4 * kChunk);
  const base::UniqueFd memory(memfd_create("device", MFD_CLOEXEC));
  int names[6] = {};
  for (int& name : names) CHECK(kept.regions.keep(&name, kChunk, memory.get()).ok());
  CHECK(kept.memory().registrations == 6);
  auto region = kept.regions.use(&names[2], kChunk);
  REQUIRE(region.ok());
  CHECK(region.value()->base() == nullptr);
  kept.regions.done(std::move(region).value());
  CHECK(kept.memory().registrations == 6);
  kept.card->most = 0;
  CHECK_FALSE(kept.regions.keep(&kept, kChunk, memory.get()).ok());
  CHECK_FALSE(kept.transfer(0));  // of host memory: less of that stays, and all of the device's
  for (int& name : names) CHECK(kept.regions.use(&name, kChunk).value()->base() == nullptr);
  CHECK(kept.memory().registrations == 6);
  kept.regions.letGo(&names[0]);
  kept.card->most = UINT64_MAX;
  CHECK(kept.regions.keep(&names[0], kChunk, memory.get()).ok());
  CHECK(kept.memory().registrations == 7);
}

TEST_CASE("what stays is bounded, and the rest is registered for each transfer", "[kept]") {
  Kept kept(4 * kChunk);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < kept.chunks.size(); ++i) CHECK(kept.transfer(i));
  }
  CHECK(kept.memory().bytes == 4 * kChunk);
  CHECK(kept.memory().registrations == 4 + 2 * 4);
}

}  // namespace olpager::pager::test
