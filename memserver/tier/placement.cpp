// Places copies: which memserver gets which, in which frames; how much can be held.
//
// A replica need not lie in one piece: where no run of its size is free it is cut into smaller
// ones, down to pages, so that what is free can be used whatever came and went before, and whatever
// size the slabs have.
#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "memserver/tier/tier.h"

namespace olpager::memserver {
namespace {

constexpr uint64_t kPage = FramePool::kPageBytes;
constexpr uint64_t kLargest = FramePool::kPageBytes * FramePool::kBlockPages;
constexpr uint64_t kLease = 256ull << 20;  // asked for at a time, at most;
constexpr uint64_t kShare = 4;             // and of what there is this part: others may want some
constexpr uint64_t kAhead = 128ull << 20;  // free here, or more is asked for
constexpr uint64_t kKeepFree = 512ull << 20;  // more than that is given back
constexpr uint64_t kQueueUnit = 64ull << 20;  // so much under way halves a memserver's attraction
constexpr uint64_t kTurningRoom = kLargest;   // see isTurningRoom()

}  // namespace

// As many as there are memservers to be had, one at least.
unsigned MemserverTier::wantedReplicas() const {
  const int64_t now = monotonicMs();
  const auto usable = std::count_if(servers_.begin(), servers_.end(), [now](const auto& server) {
    return server->usable() || now < server->believed_until_ms;
  });
  return std::clamp(static_cast<unsigned>(usable), 1u, options_.replicas);
}

unsigned MemserverTier::usableServers() const {
  return static_cast<unsigned>(std::count_if(servers_.begin(), servers_.end(),
                                             [](const auto& server) { return server->usable(); }));
}

uint64_t MemserverTier::canLease(const Server& server) const {
  if (!server.usable() || server.recalled != 0 || monotonicMs() < server.dry_until_ms) return 0;
  return server.seen.available_bytes;
}

void MemserverTier::wantLease(Server& server, uint64_t bytes) {
  const uint64_t most = canLease(server);
  if (server.leasing || most == 0) return;
  server.leasing = true;
  {
    std::lock_guard lock(mutex_);
    demands_.push_back({server.index,
                        std::min(std::max(bytes, std::min(kLease, most / kShare)), most),
                        kLeaseWaitMs << server.late_leases});
  }
  demanded_.notify_one();
}

bool MemserverTier::leaseMayHelp(const Copy& copy, uint64_t bytes) {
  bool helps = false;
  for (auto& server : servers_) {
    const bool has =
        std::any_of(copy.replicas.begin(), copy.replicas.end(),
                    [&](const Replica& replica) { return replica.server == server->index; });
    if (has || !server->usable() || server->pool.freeBytes() + server->seen.available_bytes < bytes)
      continue;
    wantLease(*server, bytes);
    helps |= server->leasing;
  }
  return helps;
}

// A memserver with half of all that is free, or more, is taken whenever it can be: else its room
// could not be used when two replicas need two memservers. Otherwise: much room, little under way,
// fast.
std::optional<MemserverTier::Replica> MemserverTier::place(const Copy& copy,
                                                           std::optional<unsigned> also,
                                                           bool to_stay) {
  struct Candidate {
    Server* server;
    double score;
  };
  std::vector<Candidate> candidates;
  uint64_t all = 0, fastest = 1;
  for (auto& server : servers_) {
    if (!server->usable()) continue;
    all += server->pool.freeBytes() + canLease(*server);
    fastest = std::max(fastest, server->seen.write_bytes_per_s);
  }
  for (auto& server : servers_) {
    const bool has =
        std::any_of(copy.replicas.begin(), copy.replicas.end(),
                    [&](const Replica& replica) { return replica.server == server->index; });
    if (!server->usable() || (has && also != server->index) || (to_stay && server->leaving))
      continue;
    const uint64_t room = server->pool.freeBytes() + canLease(*server);
    if (room < copy.bytes) continue;
    const auto speed = static_cast<double>(server->seen.write_bytes_per_s);
    double score = static_cast<double>(room) *
                   (speed == 0 ? 1 : std::max(0.25, speed / static_cast<double>(fastest)));
    score /= 1 + static_cast<double>(server->writing) / static_cast<double>(kQueueUnit);
    if (options_.replicas > 1 && room >= all - room && !server->leaving) score *= 1e6;
    if (also == server->index || server->leaving) score *= 1e-6;  // rather another one
    candidates.push_back({server.get(), score});
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.score > b.score; });
  for (const Candidate& candidate : candidates) {
    Server& server = *candidate.server;
    Replica replica;
    replica.server = server.index;
    const bool placed = allocate(server, copy.bytes, replica.frames);
    if (server.pool.freeBytes() < (placed ? kAhead : copy.bytes)) wantLease(server, copy.bytes);
    if (placed) return replica;
    if (candidate.score >= 1e6 && server.leasing && options_.replicas > 1 && copy.replicas.empty())
      break;  // wait for it
  }
  return std::nullopt;
}

bool MemserverTier::allocate(Server& server, uint64_t bytes, Frames& frames) {
  if (server.pool.freeBytes() < bytes) return false;
  uint64_t left = bytes;
  uint64_t size = std::min(std::bit_floor(left), kLargest);
  while (left != 0) {
    size = std::min(size, std::bit_floor(left));
    if (const auto frame = server.pool.allocate(size)) {
      frames.push_back(*frame);
      left -= size;
    } else if (size == kPage) {
      freeFrames(server, frames);
      frames.clear();
      return false;
    } else {
      size /= 2;
    }
  }
  return true;
}

// Slabs that are being emptied go as soon as they are empty; others when there is plenty.
void MemserverTier::freeFrames(Server& server, const Frames& frames) {
  for (const FrameRange& frame : frames) {
    if (!server.pool.release(frame) || server.pool.used(frame.slab) != 0) continue;
    const bool wanted = server.leaving || server.closed.count(frame.slab) != 0;
    if (wanted ? !isTurningRoom(server, frame.slab) : server.pool.freeBytes() > kKeepFree)
      releaseSlab(server, frame.slab);
  }
  if (server.leaving && server.pool.usedBytes() == 0) releaseEmpty(server);
}

// If a memserver wants everything back (it ends), its copies move to others as far as these have
// room. With the rest the program goes on where they are, until they are gone. For that some of it
// has to be free: without, nothing can change place any more. True if the slab is part of that.
bool MemserverTier::isTurningRoom(const Server& server, SlabId slab) {
  const uint64_t used = server.pool.usedBytes();
  return server.leaving && used != 0 &&
         server.pool.totalBytes() - used - server.slabs.at(slab) < kTurningRoom;
}

// Slabs that are wanted back and that nothing is in.
void MemserverTier::releaseEmpty(Server& server) {
  std::vector<SlabId> empty;
  for (const auto& [slab, bytes] : server.slabs) {
    if ((server.leaving || server.closed.count(slab) != 0) && server.pool.used(slab) == 0)
      empty.push_back(slab);
  }
  for (const SlabId slab : empty) {
    if (!isTurningRoom(server, slab)) releaseSlab(server, slab);
  }
}

// Nobody has room for the copy: closed slabs of a memserver that wants everything back are opened
// again, the freest first. False: that would not help.
bool MemserverTier::turn(Copy& copy) {
  for (auto& server : servers_) {
    if (!server->leaving || !server->usable() || replicaAt(copy, server->index) != nullptr)
      continue;
    if (server->pool.freeBytes() >= copy.bytes) continue;  // that was not it
    const auto freeOf = [&](SlabId slab) {
      return server->slabs.at(slab) - server->pool.used(slab);
    };
    uint64_t room = server->pool.freeBytes();
    for (const SlabId slab : server->closed) room += freeOf(slab);
    if (room < copy.bytes) continue;
    while (server->pool.freeBytes() < copy.bytes) {
      const auto freest =
          std::max_element(server->closed.begin(), server->closed.end(),
                           [&](SlabId a, SlabId b) { return freeOf(a) < freeOf(b); });
      server->pool.close(*freest, false);
      server->closed.erase(freest);
    }
    return true;
  }
  return false;
}

void MemserverTier::releaseSlab(Server& server, SlabId slab) {
  const auto found = server.slabs.find(slab);
  if (found == server.slabs.end() || !server.pool.remove(slab)) return;
  const uint64_t bytes = found->second;
  server.closed.erase(slab);
  noteReleased(server, bytes);
  server.slabs.erase(found);
  server.users.erase(slab);
  server.client->release(slab);
  look_at_ms_ = std::min(look_at_ms_, monotonicMs() + 20);
}

MemserverTier::Replica* MemserverTier::replicaAt(Copy& copy, unsigned server) {
  for (Replica& replica : copy.replicas) {
    if (replica.server == server) return &replica;
  }
  return nullptr;
}

void MemserverTier::addReplica(uint64_t id, Copy& copy, Replica replica) {
  Server& server = *servers_[replica.server];
  for (const FrameRange& frame : replica.frames) server.users[frame.slab].insert(id);
  copy.replicas.push_back(std::move(replica));
}

void MemserverTier::removeReplica(uint64_t id, Copy& copy, unsigned index) {
  const auto found = std::find_if(copy.replicas.begin(), copy.replicas.end(),
                                  [&](const Replica& replica) { return replica.server == index; });
  if (found == copy.replicas.end()) return;
  Server& server = *servers_[index];
  const Frames frames = std::move(found->frames);
  copy.replicas.erase(found);
  for (const FrameRange& frame : frames) {
    const auto users = server.users.find(frame.slab);
    if (users != server.users.end()) users->second.erase(id);
  }
  freeFrames(server, frames);
}

void MemserverTier::look() {
  for (auto& server : servers_) server->seen = server->client->figures();
  publishRails();
}

// Two replicas need two memservers: of one that is larger than all others together only as much can
// be used as these have. With a single memserver left there is one replica.
uint64_t MemserverTier::capacity() const {
  uint64_t all = 0, largest = 0;
  for (const auto& server : servers_) {
    uint64_t here = server->pool.usedBytes();
    if (server->usable()) {
      here += server->pool.freeBytes() + (server->recalled == 0 ? server->seen.available_bytes : 0);
    }
    // A replica is at one memserver as a whole: what is left at each may be too little for a large
    // one.
    const uint64_t spare = servers_.size() == 1 ? here / 32 : here / 4;
    here -= std::min(kLargest, spare / kPage * kPage);
    all += here;
    largest = std::max(largest, here);
  }
  if (wantedReplicas() == 1) return all;
  return std::min(all / 2, all - largest) / kPage * kPage;
}

}  // namespace olpager::memserver
