#include "pager/tiers/two_tiers.h"

#include <utility>

#include "pager/clock.h"

namespace olpager::pager {
namespace {
constexpr uint64_t kFullNs = 1'000'000'000;
}

void TwoTiers::setWake(std::function<void()> wake) {
  first_->setWake(wake);
  second_->setWake(std::move(wake));
}

void TwoTiers::send(uint64_t address, const void* memory, uint64_t bytes, const ContentHash* hash) {
  std::lock_guard lock(mutex_);
  at_.erase(address);
  Moving& moving = moving_[address];
  moving = {.tier = first_.get(), .memory = memory, .bytes = bytes};
  if (hash != nullptr) moving.hash = *hash;
  if (nowNs() < full_until_ns_) return toSecond(address, moving);
  second_->drop(address);
  first_->send(address, memory, bytes, hash);
}

void TwoTiers::toSecond(uint64_t address, Moving& moving) {
  first_->drop(address);
  moving.tier = second_.get();
  second_->send(address, moving.memory, moving.bytes, moving.hash ? &*moving.hash : nullptr);
}

void TwoTiers::receive(uint64_t address, void* memory, uint64_t bytes, bool urgent) {
  std::lock_guard lock(mutex_);
  const auto found = at_.find(address);
  LowerTier* const tier = found == at_.end() ? first_.get() : found->second;
  moving_[address] = {.tier = tier};
  tier->receive(address, memory, bytes, urgent);
}

void TwoTiers::raise(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = moving_.find(address);
  if (found == moving_.end()) return;
  found->second.raised = true;
  found->second.tier->raise(address);
}

void TwoTiers::giveUp(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto found = moving_.find(address);
  if (found != moving_.end()) found->second.tier->giveUp(address);
}

bool TwoTiers::holds(uint64_t address, const ContentHash& hash) const {
  return first_->holds(address, hash) || second_->holds(address, hash);
}

std::vector<uint64_t> TwoTiers::heldAddresses() const {
  std::vector<uint64_t> held = first_->heldAddresses();
  const std::vector<uint64_t> more = second_->heldAddresses();
  held.insert(held.end(), more.begin(), more.end());
  return held;
}

bool TwoTiers::drop(uint64_t address) {
  std::lock_guard lock(mutex_);
  at_.erase(address);
  const bool first = first_->drop(address), second = second_->drop(address);
  return first || second;
}

void TwoTiers::letGo(const void* memory) {
  first_->letGo(memory);
  second_->letGo(memory);
}

std::vector<LowerTier::Finished> TwoTiers::take() {
  std::lock_guard lock(mutex_);
  std::vector<Finished> all;
  for (LowerTier* const tier : {first_.get(), second_.get()}) {
    for (const Finished& one : tier->take()) {
      const auto found = moving_.find(one.address);
      if (found == moving_.end()) continue;  // nobody began it
      const bool no_room = one.outcome == Outcome::kNoRoom;
      if (no_room && tier == first_.get() && !found->second.raised) {
        full_until_ns_ = nowNs() + kFullNs;
        toSecond(one.address, found->second);
        continue;
      }
      moving_.erase(found);
      if (one.sent && one.outcome == Outcome::kDone) at_[one.address] = tier;
      if (no_room || one.outcome == Outcome::kLost) at_.erase(one.address);
      all.push_back(one);
    }
  }
  return all;
}

TierFigures TwoTiers::figures() const {
  TierFigures all = first_->figures();
  const TierFigures more = second_->figures();
  all.capacity_bytes += more.capacity_bytes;
  all.held_bytes += more.held_bytes;
  all.lost_bytes += more.lost_bytes;
  all.disk_bytes += more.disk_bytes;
  all.sent_bytes += more.sent_bytes;
  all.received_bytes += more.received_bytes;
  all.rebuilt_bytes += more.rebuilt_bytes;
  all.hedged_bytes += more.hedged_bytes;
  all.card_registrations += more.card_registrations;
  all.card_bytes += more.card_bytes;
  all.memservers += more.memservers;
  all.connected += more.connected;
  all.degraded = all.degraded || more.degraded;
  return all;
}

}  // namespace olpager::pager
