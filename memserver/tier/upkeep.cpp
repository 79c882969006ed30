// Memservers that come, go, stall and want memory back; replicas made anew.
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "memserver/tier/tier.h"

namespace olpager::memserver {
namespace {

using transport::Class;

constexpr size_t kMoves = 2;           // at a time: they are in nobody's way
constexpr int64_t kUpkeepMs = 500;     // until what could not be done is tried again
constexpr int64_t kLossLogMs = 300;    // a memserver's slabs are lost one by one: one line for all
constexpr unsigned kTriesAtOnce = 64;  // copies looked at, where none can be moved
constexpr uint64_t kLargestSlab = 16ull << 30;
constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kDryMs = 1000;  // a memserver without room is not asked again so soon
constexpr int64_t kStuckMs =
    1500;  // nothing of what is wanted back could be moved for so long: it is said

}  // namespace

MemserverTier::Staging::Staging(const transport::DomainPtr& domain) {
  void* got =
      mmap(nullptr, kStagingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return;
  auto registered = transport::registerMemory(domain, {got, kStagingBytes}, transport::kLocalOnly);
  if (!registered.ok()) {
    munmap(got, kStagingBytes);
    return;
  }
  memory = got;
  region = std::move(registered.value());
}

MemserverTier::Staging::~Staging() {
  region.reset();
  if (memory != nullptr) munmap(memory, kStagingBytes);
}

// ---- what memservers tell

void MemserverTier::happened(Server& server, const Event& event) {
  base::logDebug("remote memory: memserver %s: %s", server.address.c_str(), event.text.c_str());
  switch (event.kind) {
    case Event::Kind::kUp:
      server.up = true;
      server.stalled = false;
      server.dry_until_ms = 0;
      device_refused_.store(false);  // it may be by RDMA again
      recall(server, 0);             // what is still wanted back is said again
      reconsider();
      break;
    case Event::Kind::kDown:
      server.up = server.stalled = false;
      if (!std::exchange(server.cut, false)) {
        server.believed_until_ms = 0;
        base::logWarn("remote memory: %s", event.text.c_str());
      }
      trouble(server);
      break;
    case Event::Kind::kStalled:
      server.stalled = true;
      server.stalled_at_ms = monotonicMs();
      server.believed_until_ms = server.stalled_at_ms + kStallBelievedMs;
      trouble(server);
      break;
    case Event::Kind::kResumed:
      server.stalled = server.cut = false;
      reconsider();
      break;
    case Event::Kind::kSlabLost:
      slabLost(server, event.slab);
      break;
    case Event::Kind::kRecall:
      recall(server, event.bytes, event.text);
      break;
    case Event::Kind::kCapacity:
      server.dry_until_ms = 0;
      break;
  }
  look_at_ms_ = std::min(look_at_ms_, monotonicMs());
  upkeep_at_ms_ = std::min(upkeep_at_ms_, monotonicMs());
}

void MemserverTier::leased(Server& server, const std::vector<Slab>& slabs, bool late) {
  server.leasing = false;
  // A slow memserver has room all the same: sends wait on, and it is asked again with more time
  // (wantLease).
  if (!slabs.empty()) server.late_leases = 0;
  if (late && server.late_leases < kMostLateLeases) {
    ++server.late_leases;
  } else if (slabs.empty()) {
    server.dry_until_ms = monotonicMs() + kDryMs;
  }
  for (const Slab& slab : slabs) {
    if (slab.bytes > kLargestSlab) {  // a memserver that is wrong may say anything
      base::logError("remote memory: memserver %s lends a slab of %llu MiB: not used",
                     server.address.c_str(), static_cast<unsigned long long>(slab.bytes >> 20));
      server.dry_until_ms = monotonicMs() + kDryMs;
      server.client->release(slab.id);
      continue;
    }
    if (server.lost_early.count(slab.id) != 0 || !server.pool.add(slab)) continue;
    server.slabs[slab.id] = slab.bytes;
  }
  server.lost_early.clear();
  server.seen = server.client->figures();
  for (const uint64_t id : std::vector<uint64_t>(parked_.begin(), parked_.end())) continueSend(id);
  upkeep_at_ms_ = std::min(upkeep_at_ms_, monotonicMs());
}

void MemserverTier::slabLost(Server& server, SlabId slab) {
  if (!server.pool.remove(slab)) {
    server.lost_early.insert(slab);
    return;
  }
  noteReleased(server, server.slabs[slab]);
  server.slabs.erase(slab);
  server.closed.erase(slab);
  for (auto& [number, move] : moves_) {
    const auto in = [&](const auto& frame) { return frame.slab == slab; };
    if (move.to == server.index && std::any_of(move.target.begin(), move.target.end(), in))
      move.lost = true;
  }
  const auto users = server.users.find(slab);
  if (users == server.users.end()) return;
  const std::unordered_set<uint64_t> ids = std::move(users->second);
  server.users.erase(users);
  for (const uint64_t id : ids) {
    const auto found = copies_.find(id);
    if (found == copies_.end()) continue;
    Copy& copy = found->second;
    Replica* replica = replicaAt(copy, server.index);
    if (replica == nullptr) continue;
    if (copy.state == CopyState::kSending) {
      if (replica->writing) {
        replica->lost = true;  // its pass ends soon
      } else {
        removeReplica(id, copy, server.index);
        continueSend(id);
      }
      continue;
    }
    removeReplica(id, copy, server.index);
    if (!copy.replicas.empty()) {
      under_.insert(id);
      continue;
    }
    if (copy.state == CopyState::kReceiving)
      continue;  // what is read of it may be all there: its pass knows
    noteLoss(server, copy.bytes);
    now_.lost_bytes += copy.bytes;
    now_.held_bytes -= copy.bytes;
    forget(id);
    must_wake_ = true;
  }
}

// Transfers with a memserver that does not answer are ended, if one of them can be had elsewhere.
void MemserverTier::trouble(Server& server) {
  // All of them may be silent for the same reason, of which they have not been found out yet.
  const bool sure =
      server.up && monotonicMs() - server.stalled_at_ms < kStallSureMs
          ? std::any_of(servers_.begin(), servers_.end(),
                        [&](const auto& other) {
                          return other->usable() && other->alive_at_ms > server.stalled_at_ms;
                        })
          : true;
  if (!sure) return;
  const bool elsewhere = std::any_of(servers_.begin(), servers_.end(),
                                     [&](const auto& other) { return other->usable(); });
  for (const auto& [number, pass] : passes_) {
    if (pass.server != server.index) continue;
    bool better = elsewhere;
    const auto copy = copies_.find(pass.id);
    if (pass.kind == Pass::Kind::kSend) {
      better |= copy != copies_.end() && copy->second.urgent;  // or given up
    } else if (pass.kind == Pass::Kind::kReceive) {
      better =
          copy != copies_.end() &&
          (copy->second.unwanted ||
           std::any_of(copy->second.replicas.begin(), copy->second.replicas.end(),
                       [&](const Replica& replica) { return servers_[replica.server]->usable(); }));
    }
    if (!better) continue;
    cut(server);
    return;
  }
}

// Ends what is under way at a memserver, now.
void MemserverTier::cut(Server& server) {
  // Without a connection to give up, the next that is lost is lost for another reason.
  if (!server.client->interrupt() || !server.up) return;
  server.cut = true;
  server.believed_until_ms = std::max(server.believed_until_ms, monotonicMs() + kStallBelievedMs);
}

// Transfers that have waited for memservers that do not answer, since there was no other, may have
// another now.
void MemserverTier::reconsider() {
  for (auto& server : servers_) {
    if (!server->usable()) trouble(*server);
  }
}

// Slabs are closed, the emptiest first, until what they have is what is wanted. Those that can't be
// emptied stay closed and lent as long as it is wanted.
void MemserverTier::recall(Server& server, uint64_t bytes, const std::string& text) {
  if (bytes > server.recalled) {
    base::logInfo("remote memory: %s", text.c_str());
    server.recall_text = text;
    server.recalled_at_ms = monotonicMs();
  }
  server.recalled = bytes;
  server.leaving = bytes != 0 && bytes >= server.pool.totalBytes();
  if (bytes == 0) {
    for (const SlabId slab : server.closed) server.pool.close(slab, false);
    server.closed.clear();
    return;
  }
  uint64_t closing = 0;
  for (const SlabId slab : server.closed) closing += server.slabs[slab];
  while (closing < bytes) {
    const auto slab = server.pool.emptiest();
    if (!slab) break;
    server.pool.close(*slab);
    server.closed.insert(*slab);
    closing += server.slabs[*slab];
  }
  releaseEmpty(server);
}

// ---- moves

void MemserverTier::upkeep() {
  upkeep_at_ms_ = kNever;
  bool waiting = false;
  for (auto& server : servers_) {
    while (moves_.size() < kMoves && evacuate(*server)) {
    }
    releaseEmpty(*server);
    tellStuck(*server);
    waiting |= server->recalled != 0;
  }
  // Round and round, so that one that can't be moved is in no other's way.
  unsigned tries = 0;
  while (moves_.size() < kMoves && !under_.empty() &&
         tries++ < std::min<size_t>(under_.size(), kTriesAtOnce)) {
    auto next = under_.lower_bound(next_rebuild_);
    if (next == under_.end()) next = under_.begin();
    next_rebuild_ = *next + 1;
    startMove(*next, std::nullopt);
  }
  if (waiting || !under_.empty()) upkeep_at_ms_ = monotonicMs() + kUpkeepMs;
}

// The memserver has these again.
void MemserverTier::noteReleased(Server& server, uint64_t bytes) {
  server.recalled -= std::min(server.recalled, bytes);
}

// Begins with one copy that has frames in slabs that are wanted back. False: none can be moved now.
// Round and round, so that those that can't be are in no other's way.
bool MemserverTier::evacuate(Server& server) {
  unsigned tries = 0;
  size_t passed = 0;
  const size_t from = server.evacuated;
  for (const auto& [slab, users] : server.users) {
    if (!server.leaving && server.closed.count(slab) == 0) continue;
    for (const uint64_t id : users) {
      if (passed++ < server.evacuated) continue;
      if (tries++ >= kTriesAtOnce) return false;
      if (startMove(id, server.index)) return true;
      ++server.evacuated;
    }
  }
  server.evacuated = 0;
  return from != 0 && evacuate(server);
}

bool MemserverTier::startMove(uint64_t id, std::optional<unsigned> replaced) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state != CopyState::kHeld) return false;
  Copy& copy = found->second;
  if (!replaced && copy.replicas.size() >= options_.replicas) {
    under_.erase(id);
    return false;
  }
  for (const auto& [number, move] : moves_) {
    if (move.id == id) return false;
  }
  const auto from =
      std::find_if(copy.replicas.begin(), copy.replicas.end(),
                   [&](const Replica& replica) { return servers_[replica.server]->usable(); });
  if (from == copy.replicas.end() || copy.bytes > kStagingBytes) return false;
  auto place_for = place(copy, replaced, true);
  if (!place_for) return false;
  auto staging = std::make_unique<Staging>(domain_);
  if (staging->memory == nullptr) {
    freeFrames(*servers_[place_for->server], place_for->frames);
    return false;
  }
  const uint64_t number = next_move_++;
  Move& move = moves_[number];
  move.id = id;
  move.version = copy.version;
  move.bytes = copy.bytes;
  move.to = place_for->server;
  move.replaced = replaced;
  move.target = std::move(place_for->frames);
  move.staging = std::move(staging);
  post(Pass::Kind::kMoveRead, number, from->server, *move.staging->region, from->frames,
       Class::kPrefetch);
  return true;
}

void MemserverTier::moveRead(const Pass& pass) {
  Move& move = moves_.at(pass.id);
  const auto found = copies_.find(move.id);
  if (pass.result != TransferResult::kOk || move.lost || found == copies_.end() ||
      found->second.version != move.version) {
    endMove(pass.id, false);
    return;
  }
  Copy& copy = found->second;
  if (hasher_.hash(move.staging->memory, move.bytes) != copy.hash) {
    // The copy's frames may be a newer replica's by now; else they are wrong. The receiver finds
    // out.
    base::logError(
        "remote memory: memserver %s gave wrong bytes for %llu MiB that were to be copied",
        servers_[pass.server]->address.c_str(), static_cast<unsigned long long>(move.bytes >> 20));
    if (copy.replicas.size() > 1 && copy.state == CopyState::kHeld) {
      removeReplica(move.id, copy, pass.server);
      under_.insert(move.id);
    }
    endMove(pass.id, false);
    return;
  }
  post(Pass::Kind::kMoveWrite, pass.id, move.to, *move.staging->region, move.target,
       Class::kWriteBack);
}

void MemserverTier::moveWritten(const Pass& pass) {
  const Move& move = moves_.at(pass.id);
  const auto found = copies_.find(move.id);
  bool keep = pass.result == TransferResult::kOk && !move.lost && found != copies_.end() &&
              found->second.version == move.version && found->second.state != CopyState::kSending;
  if (keep) {
    // A replica that is being read stays.
    const Copy& copy = found->second;
    const auto reader = passes_.find(copy.reading);
    if (move.replaced && reader != passes_.end() && reader->second.server == *move.replaced)
      keep = false;
    const size_t others = copy.replicas.size() -
                          (move.replaced && replicaAt(found->second, *move.replaced) != nullptr);
    if (others >= options_.replicas) keep = false;
    if (move.replaced != move.to && replicaAt(found->second, move.to) != nullptr) keep = false;
  }
  endMove(pass.id, keep);
}

void MemserverTier::endMove(uint64_t number, bool keep) {
  const auto found = moves_.find(number);
  const Move move = std::move(found->second);
  moves_.erase(found);
  if (keep) {
    Copy& copy = copies_.at(move.id);
    if (move.replaced) {
      removeReplica(move.id, copy, *move.replaced);
    } else {
      now_.rebuilt_bytes += move.bytes;
    }
    Replica replica;
    replica.server = move.to;
    replica.frames = move.target;
    replica.written = true;
    addReplica(move.id, copy, std::move(replica));
    if (copy.replicas.size() >= options_.replicas) under_.erase(move.id);
    if (copy.state == CopyState::kReceiving) {
      late_look_at_ms_ = std::min(late_look_at_ms_, copy.late_at_ms);
      reconsider();
    }
  } else {
    freeFrames(*servers_[move.to], move.target);
  }
  upkeep_at_ms_ = std::min(upkeep_at_ms_, monotonicMs() + (keep ? 0 : 50));
}

// ---- what the user is told

void MemserverTier::noteLoss(Server& server, uint64_t bytes) {
  if (server.lost_bytes == 0) server.log_at_ms = monotonicMs() + kLossLogMs;
  server.lost_bytes += bytes;
}

void MemserverTier::tellLosses(bool all) {
  for (auto& server : servers_) {
    if (server->lost_bytes == 0 || (!all && monotonicMs() < server->log_at_ms)) continue;
    base::logError(
        "memserver %s lost. Of the %.1f MiB of this program that no other memserver had, what is "
        "not in VRAM or host "
        "RAM as well is gone: launches that need it are refused (OL_REPLICAS=2 keeps two copies)",
        server->address.c_str(), static_cast<double>(server->lost_bytes) / (1 << 20));
    server->lost_bytes = 0;
  }
}

// Copies that a memserver wants back can go nowhere: their owner should know before they are lost.
void MemserverTier::tellStuck(Server& server) {
  if (server.recalled == 0 || server.recall_text.empty() || !server.usable()) return;
  uint64_t bytes = 0;
  for (const SlabId slab : server.closed) bytes += server.pool.used(slab);
  if (server.leaving) bytes = server.pool.usedBytes();
  const int64_t now = monotonicMs();
  if (bytes == 0 || !moves_.empty()) server.recalled_at_ms = now;
  if (now - server.recalled_at_ms < kStuckMs) return;
  base::logWarn(
      "remote memory: %s, and %.1f MiB that this program has there have nowhere else to go: they "
      "are used where "
      "they are until they are lost",
      server.recall_text.c_str(), static_cast<double>(bytes) / (1 << 20));
  server.recall_text.clear();
}

void MemserverTier::tellDegraded() {
  if (now_.degraded == told_degraded_) return;
  told_degraded_ = now_.degraded;
  if (now_.degraded) {
    base::logWarn("remote memory: not everything has %u replicas (%u of %u memservers connected)",
                  options_.replicas, now_.connected, now_.memservers);
  } else {
    base::logInfo("remote memory: everything has %u replicas again", options_.replicas);
  }
}

}  // namespace olpager::memserver
