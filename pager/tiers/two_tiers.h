// Two tiers as one: what the first one has no room for goes to the second. A copy is in one of them
// alone.
//
// Thread-safety: as LowerTier. Locks: mutex_, over the tables; the two are called under it, and
// call nobody but what setWake() gave them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "pager/tiers/lower_tier.h"

namespace olpager::pager {

/// Memory of a device goes to neither (whyNotDirect()).
class TwoTiers final : public LowerTier {
 public:
  TwoTiers(std::unique_ptr<LowerTier> first, std::unique_ptr<LowerTier> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  void setWake(std::function<void()> wake) override;
  void send(uint64_t address, const void* memory, uint64_t bytes, const ContentHash* hash) override;
  void receive(uint64_t address, void* memory, uint64_t bytes, bool urgent) override;
  void raise(uint64_t address) override;
  void giveUp(uint64_t address) override;
  bool holds(uint64_t address, const ContentHash& hash) const override;
  std::vector<uint64_t> heldAddresses() const override;
  bool drop(uint64_t address) override;
  void letGo(const void* memory) override;
  std::string whyNotDirect() const override {
    return "with disks below host RAM pages go by host memory";
  }
  std::vector<Finished> take() override;
  TierFigures figures() const override;

 private:
  // A transfer that is under way.
  struct Moving {
    LowerTier* tier = nullptr;
    bool raised = false;
    // A send's, for the second tier:
    const void* memory = nullptr;
    uint64_t bytes = 0;
    std::optional<ContentHash> hash;
  };

  void toSecond(uint64_t address, Moving& moving);

  const std::unique_ptr<LowerTier> first_, second_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Moving> moving_;
  std::unordered_map<uint64_t, LowerTier*> at_;  // copies that are held, as far as take() has told
  uint64_t full_until_ns_ = 0;                   // the first one had no room: it is not asked
};

}  // namespace olpager::pager
