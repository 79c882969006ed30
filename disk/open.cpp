#include "disk/open.h"

#include <mutex>
#include <utility>

#include "disk/tier.h"

namespace olpager::disk {
namespace {

// Tiers that a disk holds up, until the process ends.
void leave(std::unique_ptr<DiskTier> tier) {
  static std::mutex mutex;
  static auto& left = *new std::vector<std::unique_ptr<DiskTier>>;
  std::lock_guard lock(mutex);
  left.push_back(std::move(tier));
}

// The tier as its caller has it: the tier outlives it where a disk hangs.
class OpenTier final : public pager::LowerTier {
 public:
  explicit OpenTier(std::unique_ptr<DiskTier> tier) : tier_(std::move(tier)) {}
  ~OpenTier() override {
    if (!tier_->close()) leave(std::move(tier_));
  }

  void setWake(std::function<void()> wake) override { tier_->setWake(std::move(wake)); }
  void send(uint64_t address, const void* memory, uint64_t bytes,
            const pager::ContentHash* hash) override {
    tier_->send(address, memory, bytes, hash);
  }
  void receive(uint64_t address, void* memory, uint64_t bytes, bool urgent) override {
    tier_->receive(address, memory, bytes, urgent);
  }
  void raise(uint64_t address) override { tier_->raise(address); }
  void giveUp(uint64_t address) override { tier_->giveUp(address); }
  bool holds(uint64_t address, const pager::ContentHash& hash) const override {
    return tier_->holds(address, hash);
  }
  std::vector<uint64_t> heldAddresses() const override { return tier_->heldAddresses(); }
  bool drop(uint64_t address) override { return tier_->drop(address); }
  void letGo(const void*) override {}
  std::vector<Finished> take() override { return tier_->take(); }
  pager::TierFigures figures() const override { return tier_->figures(); }

 private:
  std::unique_ptr<DiskTier> tier_;
};

}  // namespace

Result<std::unique_ptr<pager::LowerTier>> openTier(const TierOptions& options) {
  auto tier = std::make_unique<DiskTier>(options);
  if (const Status opened = tier->open(); !opened.ok()) return opened.error();
  return std::unique_ptr<pager::LowerTier>(std::make_unique<OpenTier>(std::move(tier)));
}

}  // namespace olpager::disk
