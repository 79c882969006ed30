// Slabs that are lent: quotas, leases, and their registration with a session's link (service.h).
#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "base/size.h"
#include "coherence/transport/region_end.h"
#include "memserver/server/service_parts.h"

namespace olpager::memserver {

// ---- leases

uint64_t Service::quotaLeft(const Session& session) const {
  const uint64_t has = session.bytes.load();
  uint64_t left = UINT64_MAX;
  if (options_.session_quota != 0)
    left = options_.session_quota - std::min(options_.session_quota, has);
  if (const auto quota = options_.key_quotas.find(session.peer.key_name);
      quota != options_.key_quotas.end()) {
    std::lock_guard lock(mutex_);
    const auto used = used_.find(session.peer.key_name);
    const uint64_t uses = used == used_.end() ? 0 : used->second;
    left = std::min(left, quota->second - std::min(quota->second, uses));
  }
  return left;
}

bool Service::reserve(Session& session, uint64_t bytes) {
  if (quotaLeft(session) < bytes) return false;
  std::lock_guard lock(mutex_);
  session.bytes.fetch_add(bytes);
  session.noteMost();
  uint64_t& used = used_[session.peer.key_name];
  used += bytes;
  const auto quota = options_.key_quotas.find(session.peer.key_name);
  if (quota == options_.key_quotas.end() || used <= quota->second) return true;
  used -= bytes;  // another session of the key was faster
  session.bytes.fetch_sub(bytes);
  return false;
}

void Service::unreserve(Session& session, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  session.bytes.fetch_sub(bytes);
  const auto used = used_.find(session.peer.key_name);
  if (used != used_.end() && (used->second -= bytes) == 0) used_.erase(used);
}

protocol::Capacity Service::capacity(Session& session) const {
  const auto store = store_.figures();
  protocol::Capacity all;
  all.total = store.donated();
  all.free = store.free;
  all.available = lending_.load() ? std::min(store.free, quotaLeft(session)) / store_.slabBytes() *
                                        store_.slabBytes()
                                  : 0;
  std::lock_guard lock(session.mutex);
  all.recalled = session.recalled;
  if (session.recalled != 0) {
    all.deadline_ms = static_cast<uint32_t>(std::max<int64_t>(0, session.recall_by_ms - bootMs()));
    all.available = 0;
  }
  return all;
}

protocol::LeaseReply Service::grant(const SessionPtr& session, uint64_t bytes) {
  protocol::LeaseReply reply;
  const uint64_t slab_bytes = store_.slabBytes();
  const SlabKind kind =
      session->peer.kind == transport::LinkKind::kShm ? SlabKind::kShared : SlabKind::kPrivate;
  uint64_t have = 0;
  while (have < bytes && reply.slabs.size() < protocol::kMaxLeases) {
    if (!lending_.load()) {
      reply.why = "it is ending and lends nothing more";
      break;
    }
    {
      std::lock_guard lock(session->mutex);
      if (session->recalled != 0) reply.why = "it wants memory back and lends nothing more";
    }
    if (!reply.why.empty()) break;
    if (!reserve(*session, slab_bytes)) {
      reply.why =
          base::format("the quota is used up (slabs are of {})", base::formatSize(slab_bytes));
      break;
    }
    auto lease = std::make_shared<Lease>();
    lease->slab = store_.take(kind);
    if (!lease->slab) {
      unreserve(*session, slab_bytes);
      reply.why = "all memory is lent";
      break;
    }
    auto region = transport::lendMemory(session->link->domain(), lease->slab->region(), 0,
                                        lease->slab->bytes(), transport::kRemoteReadWrite);
    if (!region.ok()) {
      base::logError("a slab can't be registered: %s", region.error().message.c_str());
      unreserve(*session, slab_bytes);
      store_.giveBack(std::move(lease->slab), false);
      reply.why = "its memory can't be registered";
      break;
    }
    lease->id = randomId();
    lease->key_name = session->peer.key_name;
    lease->region = std::move(region.value());
    lease->session = session;
    reply.slabs.push_back({lease->id, slab_bytes, lease->region->key().key});
    {
      std::lock_guard lock(session->mutex);
      session->leases.insert(lease->id);
    }
    leases_.insert({lease->id, lease});
    have += slab_bytes;
  }
  if (!reply.slabs.empty()) {
    const About about(*session);
    base::logDebug("%zu slabs are lent to it; it has %s", reply.slabs.size(),
                   base::formatSize(session->bytes.load()).c_str());
  }
  reply.capacity = capacity(*session);
  std::lock_guard lock(mutex_);
  figures_.leases_granted += reply.slabs.size();
  if (reply.slabs.empty()) ++figures_.refused;
  return reply;
}

Service::LeasePtr Service::find(const LeaseId& id) const {
  decltype(leases_)::const_accessor place;
  return leases_.find(place, id) ? place->second : nullptr;
}

// Ends the registration; under Lease::mutex. True: nothing touches the memory any more. Else
// regionEnded() comes, on a thread of the arena.
bool Service::endRegion(const LeasePtr& lease) {
  if (!lease->region) return true;
  if (lease->ending) return false;
  uint64_t ending = 0;
  {
    std::lock_guard lock(mutex_);
    ending = next_ending_++;
    endings_[ending] = {bootMs(), lease->session->link};
  }
  working_.fetch_add(1);
  lease->ending = !transport::revoke(*lease->region, [this, lease, ending] {
    arena_.enqueue([this, lease, ending] {
      regionEnded(lease, ending);
      working_.fetch_sub(1);
    });
  });
  if (lease->ending) return false;
  const bool handed_out = transport::Region::end(std::move(lease->region));
  lease->handed_out = lease->handed_out || handed_out;
  {
    std::lock_guard lock(mutex_);
    endings_.erase(ending);
  }
  working_.fetch_sub(1);
  return true;
}

void Service::regionEnded(const LeasePtr& lease, uint64_t ending) {
  bool over = false;
  {
    std::lock_guard lock(lease->mutex);
    const bool handed_out = transport::Region::end(std::move(lease->region));
    lease->handed_out = lease->handed_out || handed_out;
    lease->ending = false;
    over = lease->over.has_value();
  }
  {
    std::lock_guard lock(mutex_);
    endings_.erase(ending);
  }
  if (over) freed(lease);
}

// Nothing: not now. The lease goes on.
std::optional<protocol::LeasedSlab> Service::attach(const SessionPtr& session, const LeaseId& id) {
  const protocol::LeasedSlab gone{id, 0, 0};
  const LeasePtr lease = find(id);
  if (!lease || lease->key_name != session->peer.key_name) return gone;
  std::lock_guard lock(lease->mutex);
  if (!lease->slab || lease->over) return gone;
  const SessionPtr old = lease->session;
  const uint64_t bytes = lease->slab->bytes();
  if (!endRegion(lease)) return std::nullopt;
  auto region = transport::lendMemory(session->link->domain(), lease->slab->region(), 0,
                                      lease->slab->bytes(), transport::kRemoteReadWrite);
  if (!region.ok()) {
    base::logError("a slab can't be registered: %s", region.error().message.c_str());
    return std::nullopt;
  }
  lease->region = std::move(region.value());
  if (old != session) {
    lease->session = session;
    // A recall goes with the leases and is said again.
    uint64_t recalled = 0;
    int64_t recall_by_ms = 0;
    std::string recall_why;
    {
      std::lock_guard old_lock(old->mutex);
      old->leases.erase(id);
      recalled = std::exchange(old->recalled, 0);
      recall_by_ms = old->recall_by_ms;
      recall_why = old->recall_why;
    }
    {
      std::lock_guard new_lock(session->mutex);
      session->leases.insert(id);
      if (recalled != 0) {
        session->recalled += recalled;
        session->recall_by_ms = recall_by_ms;
        session->recall_why = std::move(recall_why);
        ++session->recall_number;
      }
    }
    old->bytes.fetch_sub(bytes);  // the key's use stays the same
    session->bytes.fetch_add(bytes);
    session->noteMost();
  }
  std::lock_guard figures_lock(mutex_);
  ++figures_.leases_moved;
  return protocol::LeasedSlab{id, bytes, lease->region->key().key};
}

uint64_t Service::lentBytes() const {
  uint64_t lent = 0;
  for (const auto& session : allSessions()) lent += session->bytes.load();
  return lent;
}

}  // namespace olpager::memserver
