// Pages that other executors' workers have offered, and those that the pager has asked for: either
// comes first. An offer is its giver's alone: it answers what was asked of that one, by that
// number, and touches nothing of another's. A giver has one offer for each extent, its last, and so
// many in all: more is nothing that an executor does.
//
//   nothing -> offered (offer) -> nothing: want() takes it, or its link is lost (forget)
//   nothing -> wanted (want) -> nothing: offer() answers it
//
// Pages that were offered over a lost link are offered again by the giver over the next.
//
// Pure. Thread-safety: none; under Agent::mutex_.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "coherence/pages/blocks.h"
#include "gpunode/worker/peer_wire.h"

namespace olpager::gpunode {

class PageOffers {
 public:
  /// Offers of one giver that nobody has asked for: 128 GiB of pages.
  static constexpr size_t kMost = size_t{1} << 16;
  using Key = std::pair<uint32_t, uint64_t>;  // extent, number
  struct Offer {
    PeerMessage page;
    std::optional<pages::BlockHashes> blocks;
    uint64_t link = 0;  // Peer::number() of that which it came over
  };
  enum class Is : uint8_t {
    kKept,     // until it is wanted
    kWanted,   // already: it is the caller's
    kLate,     // there is a newer one of that extent
    kTooMany,  // the giver is not to be trusted
  };

  Is offer(unsigned giver, const Key& key, const Offer& offer) {
    if (wanted_.erase({giver, key}) != 0) return Is::kWanted;
    std::map<uint32_t, Of>& all = offers_[giver];
    const auto found = all.find(key.first);
    if (found == all.end() && all.size() >= kMost) return Is::kTooMany;
    if (found != all.end() && found->second.number > key.second) return Is::kLate;
    all.insert_or_assign(key.first, Of{key.second, offer});
    return Is::kKept;
  }
  /// Takes what that giver has offered by that number; nullopt: offer() will say that it is wanted.
  std::optional<Offer> want(unsigned giver, const Key& key) {
    std::map<uint32_t, Of>& all = offers_[giver];
    const auto found = all.find(key.first);
    if (found == all.end() || found->second.number > key.second) {
      wanted_.insert({giver, key});
      return std::nullopt;
    }
    std::optional<Offer> offer;
    if (found->second.number == key.second) {
      offer = found->second.offer;
    } else {  // nobody asks for an earlier one any more
      wanted_.insert({giver, key});
    }
    all.erase(found);
    return offer;
  }
  /// The giver's offers over this link, or one before it, can't be had any more.
  void forget(unsigned giver, uint64_t link) {
    std::erase_if(offers_[giver], [&](const auto& one) { return one.second.offer.link <= link; });
  }

 private:
  struct Of {
    uint64_t number = 0;
    Offer offer;
  };
  std::map<unsigned, std::map<uint32_t, Of>> offers_;  // by giver and extent
  std::set<std::pair<unsigned, Key>> wanted_;
};

}  // namespace olpager::gpunode
