// A network card, as a domain uses it: a protection domain, and the memory regions that it knows
// there. Cards are told apart by their contexts, of which librdmacm opens one for each card and
// keeps it.
#pragma once

#include "coherence/transport/core/address.h"
#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/verbs/api.h"

namespace olpager::transport::verbs {

class CardRegion final : public Registration {
 public:
  /// Counts in `domain`, which outlives it; `bytes`: of host memory.
  CardRegion(const Api& api, ProtectionDomain& domain, ibv_mr* region, uint64_t address,
             uint64_t bytes);
  ~CardRegion() override { end(); }
  bool end() override;
  uint64_t address() const { return address_; }  // of the region's first byte, for the card
  ibv_mr* get() const { return region_; }
  uint32_t lkey() const { return region_->lkey; }
  uint32_t rkey() const { return region_->rkey; }

 private:
  const uint64_t address_, bytes_;
  const Api& api_;
  ProtectionDomain& domain_;
  ibv_mr* region_;
};

class CardDomain final : public ProtectionDomain {
 public:
  /// `windows`: the card has memory windows that one queue pair alone can use.
  CardDomain(const Api& api, ibv_pd* domain, bool windows)
      : api_(api), domain_(domain), windows_(windows) {}
  ~CardDomain() override { api_.ibv_dealloc_pd(domain_); }
  Result<std::unique_ptr<Registration>> make(const RegionEntry& entry) override;
  std::string whyNoDmaBufs() const override;
  ibv_pd* get() const { return domain_; }
  bool windows() const { return windows_; }
  /// As make() and RegionEntry::registered() have it; null where the card can't have the region.
  static const CardRegion* known(RegionEntry& entry, const std::shared_ptr<CardDomain>& domain) {
    return static_cast<const CardRegion*>(entry.registered(domain));
  }

 private:
  const Api& api_;
  ibv_pd* const domain_;
  const bool windows_;
};

/// The domain's part of the card; of one that is within another, where windows say who reaches
/// what, the other's.
Result<std::shared_ptr<CardDomain>> domainOn(const Api& api, Domain& domain, ibv_context* card);
/// Empty if a card of this host has this address (the port in it does not count), else why not.
std::string whyNoCardAt(const SocketAddress& local);

}  // namespace olpager::transport::verbs
