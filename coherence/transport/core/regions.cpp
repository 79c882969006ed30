#include "coherence/transport/regions.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/core/region_entry.h"
#include "coherence/transport/region_end.h"

namespace olpager::transport {

Outcome Domain::pin(uint64_t key, uint64_t offset, uint64_t length, uint32_t access, Pin& into) {
  std::shared_ptr<RegionEntry> entry;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end())
      return revoked_.count(key) != 0 ? Outcome::kRevoked : Outcome::kBadRange;
    entry = found->second;
  }
  if ((entry->access & access) != access || length > entry->length ||
      offset > entry->length - length) {
    return Outcome::kBadRange;
  }
  if (!entry->pin()) return Outcome::kRevoked;
  into = Pin(std::move(entry));
  return Outcome::kOk;
}

void Domain::add(const std::shared_ptr<RegionEntry>& entry) {
  std::lock_guard lock(mutex_);
  entries_.emplace(entry->key, entry);
}

void Domain::remove(const RegionEntry& entry) {
  std::vector<std::shared_ptr<KeyWatcher>> watching;
  {
    std::lock_guard lock(mutex_);
    if (entries_.erase(entry.key) == 0) return;  // it was revoked before
    if ((entry.access & kRemoteReadWrite) == 0) return;
    revoked_.insert(entry.key);
    revoked_order_.push_back(entry.key);
    if (revoked_order_.size() > kRevokedKeys) {
      revoked_.erase(revoked_order_.front());
      revoked_order_.pop_front();
    }
    if (!entry.handed_out.load() && !entry.reachable.load()) return;
    watching = watchers();
  }
  for (auto& watcher : watching) watcher->keyRevoked(entry.key);
}

std::vector<std::shared_ptr<KeyWatcher>> Domain::watchers() {
  std::vector<std::shared_ptr<KeyWatcher>> all;
  for (auto& weak : watchers_) {
    if (auto watcher = weak.lock()) all.push_back(std::move(watcher));
  }
  return all;
}

void Domain::cutOff(const std::string& why) {
  std::vector<std::shared_ptr<KeyWatcher>> watching;
  {
    std::lock_guard lock(mutex_);
    watching = watchers();
  }
  for (auto& watcher : watching) watcher->cutOff(why);
}

Result<std::shared_ptr<ProtectionDomain>> Domain::on(
    const void* card, const std::function<Result<std::shared_ptr<ProtectionDomain>>()>& make) {
  std::lock_guard lock(mutex_);
  auto& place = cards_[card];
  if (place) return place;
  auto made = make();
  if (made.ok()) place = made.value();
  return made;
}

std::vector<std::shared_ptr<ProtectionDomain>> Domain::cards() {
  std::vector<std::shared_ptr<ProtectionDomain>> all;
  std::lock_guard lock(mutex_);
  for (const auto& [card, domain] : cards_) {
    if (domain) all.push_back(domain);
  }
  return all;
}

CardMemory Domain::cardMemory() {
  CardMemory all;
  std::lock_guard lock(mutex_);
  for (const auto& [card, domain] : cards_) {
    if (!domain) continue;  // the card had none
    all.registrations += domain->registrations.load();
    all.bytes += domain->pinned_bytes.load();
  }
  return all;
}

Registration* RegionEntry::registered(const std::shared_ptr<ProtectionDomain>& with) {
  std::lock_guard lock(registering);
  for (const Known& each : known) {
    if (each.with == with) return each.as.get();
  }
  auto made = with->make(*this);
  if (!made.ok()) {
    refused.store(true);
    base::logWarn("%s", made.error().message.c_str());
  }
  known.push_back({with, made.ok() ? std::move(made.value()) : nullptr});
  return known.back().as.get();
}

bool RegionEntry::unregister() {
  std::lock_guard lock(registering);
  std::erase_if(known, [](Known& each) { return !each.as || each.as->end(); });
  return known.empty();
}

void Domain::watch(std::weak_ptr<KeyWatcher> watcher) {
  std::lock_guard lock(mutex_);
  std::erase_if(watchers_, [](auto& weak) { return weak.expired(); });
  watchers_.push_back(std::move(watcher));
}

Region::Region(DomainPtr domain, std::shared_ptr<RegionEntry> entry)
    : domain_(std::move(domain)), entry_(std::move(entry)) {}

Region::~Region() {
  domain_->remove(*entry_);
  entry_->revokeAndWait();
  if (entry_->unregister()) return;
  domain_->cutOff("memory that was taken back could still be reached");
  if (!entry_->unregister())
    base::logError("a network card does not let go of %llu bytes of memory",
                   static_cast<unsigned long long>(entry_->length));
}

bool revoke(const Region& region, std::function<void()> idle) {
  region.domain()->remove(*region.entry());
  return region.entry()->revoke(std::move(idle));
}

bool Region::end(std::unique_ptr<Region> region) {
  const auto entry = region->entry_;
  region.reset();
  return entry->handed_out.load();
}

RemoteKey Region::key() const { return {entry_->key, entry_->length, entry_->access, 0}; }
std::byte* Region::base() const { return entry_->base; }
uint64_t Region::length() const { return entry_->length; }
bool Region::waitIdle(std::chrono::milliseconds timeout) const { return entry_->waitIdle(timeout); }
bool Region::handedOut() const { return entry_->handed_out.load(); }
bool Region::refusedByCard() const { return entry_->refused.load(); }

DomainPtr makeDomain(DomainPtr within) { return std::make_shared<Domain>(std::move(within)); }
CardMemory cardMemory(const DomainPtr& domain) { return domain->cardMemory(); }

std::string whyNoDmaBufs(const DomainPtr& domain) {
  const auto cards = domain->cards();
  for (const auto& card : cards) {
    if (std::string why = card->whyNoDmaBufs(); !why.empty()) return why;
  }
  return cards.empty() ? "no link goes over an RDMA card" : "";
}

Status makeKnown(const Region& region) {
  for (const auto& card : region.domain()->cards()) {
    if (region.entry()->registered(card) == nullptr)
      return Error{base::format("an RDMA card can't have {} bytes of it", region.length())};
  }
  // Registrations hold the memory. A process has few descriptors, and a forked child would keep
  // them; parts are lent by it.
  if (region.entry()->access != kLends) region.entry()->dma_buf.reset();
  return {};
}

namespace {

Result<std::shared_ptr<RegionEntry>> makeEntry(const Memory& memory, uint32_t access) {
  if ((memory.base == nullptr && memory.dma_buf < 0) || memory.length == 0 ||
      ((access & ~uint32_t{kRemoteReadWrite}) != 0 && access != kLends)) {
    return Error{"a region needs an address or a dma-buf, a length above 0 and known rights"};
  }
  if (memory.base == nullptr && memory.fd >= 0)
    return Error{"a region without an address has no memfd"};
  auto entry = std::make_shared<RegionEntry>();
  entry->base = static_cast<std::byte*>(memory.base);
  entry->length = memory.length;
  entry->access = access;
  if (memory.fd >= 0) {
    const int seals = fcntl(memory.fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
      return Error{"a region's memfd has to be sealed against shrinking (F_SEAL_SHRINK)"};
    }
    struct stat status {};
    if (fstat(memory.fd, &status) != 0)
      return Error{base::format("a region's memfd: {}", std::strerror(errno))};
    const auto size = static_cast<uint64_t>(status.st_size);
    if (memory.length > size || memory.fd_offset > size - memory.length) {
      return Error{base::format("a region of {} bytes at {} ends beyond its memfd of {}",
                                memory.length, memory.fd_offset, size)};
    }
    entry->fd = base::UniqueFd(fcntl(memory.fd, F_DUPFD_CLOEXEC, 3));
    if (!entry->fd) return Error{base::format("a region's memfd: {}", std::strerror(errno))};
    entry->fd_offset = memory.fd_offset;
    entry->fd_size = size;
  }
  if (memory.dma_buf >= 0) {
    entry->dma_buf = base::UniqueFd(fcntl(memory.dma_buf, F_DUPFD_CLOEXEC, 3));
    if (!entry->dma_buf) return Error{base::format("a region's dma-buf: {}", std::strerror(errno))};
    entry->dma_buf_offset = memory.dma_buf_offset;
  }
  while (entry->key == 0) {
    if (getrandom(&entry->key, sizeof entry->key, 0) != sizeof entry->key) entry->key = 0;
  }
  return entry;
}

}  // namespace

Result<RegionPtr> registerMemory(const DomainPtr& domain, const Memory& memory, uint32_t access) {
  auto entry = makeEntry(memory, access);
  if (!entry.ok()) return entry.error();
  domain->add(entry.value());
  return RegionPtr(new Region(domain, std::move(entry.value())));
}

Result<RegionPtr> lendMemory(const DomainPtr& domain, const Region& whole, uint64_t offset,
                             uint64_t length, uint32_t access) {
  const auto& of = whole.entry();
  if (of->access != kLends || length > of->length || offset > of->length - length ||
      access == kLends) {
    return Error{"what is lent is a part of memory that was registered for that"};
  }
  Memory memory;
  memory.base = of->base == nullptr ? nullptr : of->base + offset;
  memory.length = length;
  memory.fd = of->fd ? of->fd.get() : -1;
  memory.fd_offset = of->fd_offset + offset;
  memory.dma_buf = of->dma_buf ? of->dma_buf.get() : -1;
  memory.dma_buf_offset = of->dma_buf_offset + offset;
  auto entry = makeEntry(memory, access);
  if (!entry.ok()) return entry.error();
  entry.value()->whole = of;
  domain->add(entry.value());
  return RegionPtr(new Region(domain, std::move(entry.value())));
}

}  // namespace olpager::transport
