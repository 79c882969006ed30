#include "coherence/transport/verbs/card.h"

#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/core/own_descriptors.h"

namespace olpager::transport::verbs {

CardRegion::CardRegion(const Api& api, ProtectionDomain& domain, ibv_mr* region, uint64_t address,
                       uint64_t bytes)
    : address_(address), bytes_(bytes), api_(api), domain_(domain), region_(region) {
  domain_.registrations.fetch_add(1);
  domain_.pinned_bytes.fetch_add(bytes_);
}

bool CardRegion::end() {
  if (region_ == nullptr) return true;
  if (api_.ibv_dereg_mr(region_) != 0) return false;
  region_ = nullptr;
  domain_.pinned_bytes.fetch_sub(bytes_);
  return true;
}

Result<std::unique_ptr<Registration>> CardDomain::make(const RegionEntry& entry) {
  int rights = IBV_ACCESS_LOCAL_WRITE;
  if ((entry.access & kRemoteRead) != 0) rights |= IBV_ACCESS_REMOTE_READ;
  if ((entry.access & kRemoteWrite) != 0) rights |= IBV_ACCESS_REMOTE_WRITE;
  if (entry.access == kLends) rights |= IBV_ACCESS_MW_BIND;
  ibv_mr* region = nullptr;
  uint64_t address = 0;
  errno = ENOSYS;
  if (entry.base != nullptr) {
    address = reinterpret_cast<uint64_t>(entry.base);
    region = (api_.ibv_reg_mr)(domain_, entry.base, entry.length,
                               rights);  // its name is a macro as well
  } else if (api_.ibv_reg_dmabuf_mr != nullptr) {
    region = api_.ibv_reg_dmabuf_mr(domain_, entry.dma_buf_offset, entry.length, 0,
                                    entry.dma_buf.get(), rights);
  }
  if (region == nullptr) {
    const int error = errno;
    const char* const card = domain_->context->device->name;
    if (entry.base == nullptr)
      return Error{base::format("card {}: {} bytes of a device's memory can't be registered: {}",
                                card, entry.length, std::strerror(error))};
    return Error{base::format("card {}: {} bytes can't be registered, so they go by TCP: {}{}",
                              card, entry.length, std::strerror(error),
                              error == ENOMEM ? " (ulimit -l limits what may be pinned)" : "")};
  }
  return std::unique_ptr<Registration>(std::make_unique<CardRegion>(
      api_, *this, region, address, entry.base != nullptr ? entry.length : 0));
}

// A card's driver, and the kernel's, look at whether they have dma-bufs at all before they look at
// the descriptor.
std::string CardDomain::whyNoDmaBufs() const {
  const char* const card = domain_->context->device->name;
  if (api_.ibv_reg_dmabuf_mr == nullptr)
    return base::format("card {}: libibverbs has no ibv_reg_dmabuf_mr; rdma-core 34 or newer has",
                        card);
  errno = 0;
  ibv_mr* const made = api_.ibv_reg_dmabuf_mr(domain_, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (made != nullptr) {
    api_.ibv_dereg_mr(made);
    return "";
  }
  if (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS && errno != ENOTTY)
    return "";
  return base::format("card {}: its driver, or the kernel's, registers no dma-bufs ({})", card,
                      std::strerror(errno));
}

Result<std::shared_ptr<CardDomain>> domainOn(const Api& api, Domain& domain, ibv_context* card) {
  ibv_device_attr about{};
  if (api.ibv_query_device(card, &about) != 0)
    return Error{base::format("card {}: it says nothing of itself", card->device->name)};
  const bool windows = (about.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  if (windows && domain.within()) return domainOn(api, *domain.within(), card);
  auto on = domain.on(card, [&]() -> Result<std::shared_ptr<ProtectionDomain>> {
    ibv_pd* const made = api.ibv_alloc_pd(card);
    if (made == nullptr)
      return Error{base::format("card {}: no protection domain", card->device->name)};
    // Kept by a forked child, they would keep the queue pairs.
    noteOwnDescriptor(card->cmd_fd);
    noteOwnDescriptor(card->async_fd);
    return std::shared_ptr<ProtectionDomain>(std::make_shared<CardDomain>(api, made, windows));
  });
  if (!on.ok()) return on.error();
  return std::static_pointer_cast<CardDomain>(on.value());
}

std::string whyNoCardAt(const SocketAddress& local) {
  if (local.family() != AF_INET && local.family() != AF_INET6) return "not an address of a card";
  if (local.loopback())
    return "no RDMA card is on loopback; name the daemon by a card's address, or take transport = "
           "auto";  // and the libraries stay closed
  const Api* const all = api();
  if (all == nullptr) return whyNot();
  SocketAddress any_port = withPort(local, 0);
  rdma_cm_id* id = nullptr;
  if (all->rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) {
    return base::format("no RDMA here: {}", std::strerror(errno));
  }
  const bool bound = all->rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&any_port.storage)) == 0 &&
                     id->verbs != nullptr;
  all->rdma_destroy_id(id);
  return bound ? "" : base::format("no RDMA card has the address {}", any_port.text());
}

}  // namespace olpager::transport::verbs
