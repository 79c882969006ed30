// A remote tier over memservers in the same process, and a caller of it that knows what it has
// sent.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "memserver/tier/connect.h"
#include "pager/tiers/lower_tier.h"
#include "tests/unit/memserver/rig.h"

namespace olpager::pager::test {

using memserver::ServiceOptions;
using memserver::test::eventually;
using memserver::test::kMiB;
using memserver::test::kSlab;
using memserver::test::seededRandom;
using memserver::test::Server;
using memserver::test::Shm;
using memserver::test::Tcp;
using namespace std::chrono_literals;
using transport::Choice;

/// Memory of its own, with a pattern by seed.
class Bytes {
 public:
  explicit Bytes(uint64_t length);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  void fill(uint64_t seed);
  bool holds(uint64_t seed) const;
  void clear();

  const uint64_t length;
  std::byte* base = nullptr;
};

/// The tier and its caller. Calls for different ids may come from different threads. Memory is let
/// go of when its transfer's end was awaited: who has it may unmap it.
class Caller {
 public:
  Caller(const std::vector<const Server*>& servers, unsigned replicas,
         const memserver::EndpointMaker& make = {});
  explicit Caller(memserver::TierOptions options, const memserver::EndpointMaker& make = {});
  ~Caller() { tier.reset(); }

  void send(uint64_t id, const Bytes& bytes, const ContentHash* hash = nullptr);
  void receive(uint64_t id, Bytes& bytes, bool urgent = false);
  /// The end of the transfer of this id; fails the test when none comes.
  LowerTier::Finished await(uint64_t id);
  LowerTier::Outcome sent(uint64_t id, const Bytes& bytes);
  LowerTier::Outcome received(uint64_t id, Bytes& bytes);

  std::unique_ptr<LowerTier> tier;
  std::atomic<uint64_t> wakes{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, LowerTier::Finished> finished_;
  std::map<uint64_t, const void*> memory_;  // of transfers whose end was not awaited
};

}  // namespace olpager::pager::test
