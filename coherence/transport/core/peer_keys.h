// Caches the details of a peer's keys that a card needs beyond the key: each key is asked for once,
// whatever waits for it, and the answer is kept until the owner takes the key back. Any slice that
// finds no way by the card goes another one.
//
// Thread-safety: any thread; its lock is a leaf.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace olpager::transport {

template <typename Slice, typename Reach>
class PeerKeys {
 public:
  enum class Found : uint8_t {
    kReach,      // by the card
    kOtherwise,  // the owner has said that the card does not reach it
    kWaits,      // for an answer that was asked for: the slice is kept
    kAsk,        // the same, and the caller has to ask
  };
  Found find(uint64_t key, const Slice& slice, Reach& into) {
    std::lock_guard lock(mutex_);
    auto [place, fresh] = known_.try_emplace(key);
    Known& known = place->second;
    if (known.asked) known.waiting.push_back(slice);
    if (known.reach) into = *known.reach;
    if (fresh) return Found::kAsk;
    if (known.asked) return Found::kWaits;
    return known.reach ? Found::kReach : Found::kOtherwise;
  }

  /// An answer has come; false: to nothing. `waited`: the slices that can go on. Without `reach`
  /// the key is kept as one that is not reached, unless it was `taken_back`: then there is nothing
  /// to keep.
  bool answer(uint64_t key, std::optional<Reach> reach, bool taken_back,
              std::vector<Slice>& waited) {
    std::lock_guard lock(mutex_);
    const auto place = known_.find(key);
    if (place == known_.end() || !place->second.asked) return false;
    waited = std::exchange(place->second.waiting, {});
    place->second.asked = false;
    place->second.reach = std::move(reach);
    if (taken_back) known_.erase(place);
    return true;
  }

  /// The owner has taken it back. One that is asked for will be answered so.
  void takenBack(uint64_t key) {
    std::lock_guard lock(mutex_);
    const auto place = known_.find(key);
    if (place != known_.end() && !place->second.asked) known_.erase(place);
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return known_.size();
  }

 private:
  struct Known {
    bool asked = true;
    std::optional<Reach> reach;
    std::vector<Slice> waiting;
  };
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Known> known_;
};

}  // namespace olpager::transport
