// Long: sends, receives and what is rebuilt share one table of copies.
// Threads, sends, receives.
#include "memserver/tier/tier.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/held_signals.h"
#include "base/log.h"
#include "pager/counters/counters.h"

namespace olpager::memserver {
namespace {

using transport::Class;

constexpr int64_t kLookMs = 250;        // between looks at what memservers have
constexpr unsigned kMostAttempts = 16;  // of one send that fails each time
constexpr std::chrono::milliseconds kRefusedPause{100};

}  // namespace

int64_t monotonicMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

MemserverTier::MemserverTier(const TierOptions& options)
    : options_(options), domain_(transport::makeDomain()) {}

Status MemserverTier::open(const EndpointMaker& make) {
  auto endpoint = make(memserver::sessionTransport(options_.transport));
  if (!endpoint.ok()) return endpoint.error();
  endpoint_ = std::move(endpoint.value());
  bool any = false;
  std::string why;
  for (const std::string& address : options_.memservers) {
    auto server = std::make_unique<Server>(*this, static_cast<unsigned>(servers_.size()));
    server->address = address;
    ClientOptions client;
    client.endpoint = endpoint_.get();
    client.domain = domain_;
    client.address = address;
    client.label = options_.label;
    if (options_.stall_ms != 0) client.stall_ms = options_.stall_ms;
    client.may_be_away = options_.replicas > 1;
    Server& kept = *server;
    servers_.push_back(std::move(server));
    auto connected = Client::connect(client, kept);
    if (!connected.ok()) return connected.error();
    kept.client = std::move(connected.value());
    const std::lock_guard lock(mutex_);
    const std::string away = kept.client->figures().away;
    kept.up = away.empty();
    any |= kept.up;
    if (kept.up) continue;
    why = away;
    base::logWarn("%s; until it is there, the others have its part", away.c_str());
  }
  if (!any) return Error{why};
  look();
  publish();
  worker_ = base::ownThread([this] { work(); });
  lender_ = base::ownThread([this] { lend(); });
  return {};
}

MemserverTier::~MemserverTier() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  demanded_.notify_all();
  if (lender_.joinable()) lender_.join();
  if (worker_.joinable()) {
    worker_.join();
    look();  // for readers of the counters at the end
  }
  tellLosses(true);
  // Each may take a second to say goodbye.
  std::vector<std::thread> goodbyes;
  for (auto& server : servers_) {
    if (server->client) goodbyes.emplace_back([&server] { server->client.reset(); });
  }
  for (std::thread& goodbye : goodbyes) goodbye.join();
  copies_.clear();  // their registrations
  moves_.clear();
  hedges_.clear();
  kept_.clear();
  endpoint_.reset();
}

// ---- what callers do

void MemserverTier::setWake(std::function<void()> wake) {
  std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
  if (wake_) wake_();  // what ended before
}

void MemserverTier::put(Note note, bool first) {
  {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    (first ? first_ : notes_).push_back(std::move(note));
  }
  changed_.notify_one();
}

void MemserverTier::send(uint64_t id, const void* memory, uint64_t bytes,
                         const pager::ContentHash* hash) {
  Note note;
  note.kind = Note::Kind::kSend;
  note.id = id;
  note.memory = const_cast<void*>(memory);  // of a write to the memserver: read only
  note.bytes = bytes;
  if (hash != nullptr) note.hash = *hash;
  {
    std::lock_guard lock(mutex_);
    held_.erase(id);
    raised_.erase(id);  // who asked about the one before was late
  }
  put(std::move(note), false);
}

void MemserverTier::receive(uint64_t id, void* memory, uint64_t bytes, bool urgent) {
  Note note;
  note.kind = Note::Kind::kReceive;
  note.id = id;
  note.memory = memory;
  note.bytes = bytes;
  note.urgent = urgent;
  {
    std::lock_guard lock(mutex_);
    raised_.erase(id);
    given_up_.erase(id);
    if (urgent) raised_.insert(id);
  }
  put(std::move(note), urgent);
}

// A transfer that the worker has not begun goes before those that are not urgent. Callers that wait
// ask again and again: it is noted once.
void MemserverTier::raise(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    if (!raised_.insert(id).second) return;
    const auto found = std::find_if(notes_.begin(), notes_.end(), [&](const Note& note) {
      return (note.kind == Note::Kind::kReceive || note.kind == Note::Kind::kSend) && note.id == id;
    });
    if (found != notes_.end()) {
      found->urgent = true;
      first_.push_back(std::move(*found));
      notes_.erase(found);
      return;
    }
  }
  Note note;
  note.kind = Note::Kind::kRaise;
  note.id = id;
  put(std::move(note), true);
}

// As raise(); the one is no hint about the other.
void MemserverTier::giveUp(uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    if (!given_up_.insert(id).second) return;
    // Not begun yet: it won't be.
    const auto begins = [&](const Note& note) {
      return note.kind == Note::Kind::kReceive && note.id == id;
    };
    if (const auto next = std::find_if(first_.begin(), first_.end(), begins);
        next != first_.end()) {
      next->unwanted = true;
      return;
    }
    if (const auto later = std::find_if(notes_.begin(), notes_.end(), begins);
        later != notes_.end()) {
      later->unwanted = true;
      first_.push_back(std::move(*later));
      notes_.erase(later);
      return;
    }
  }
  Note note;
  note.kind = Note::Kind::kGiveUp;
  note.id = id;
  put(std::move(note), true);
}

bool MemserverTier::holds(uint64_t id, const pager::ContentHash& hash) const {
  std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  return found != held_.end() && found->second == hash;
}

std::vector<uint64_t> MemserverTier::heldAddresses() const {
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> ids;
  ids.reserve(held_.size());
  for (const auto& [id, hash] : held_) ids.push_back(id);
  return ids;
}

bool MemserverTier::drop(uint64_t id) {
  bool held = false;
  {
    std::lock_guard lock(mutex_);
    held = held_.erase(id) != 0;
    raised_.erase(id);
  }
  Note note;
  note.kind = Note::Kind::kDrop;
  note.id = id;
  put(std::move(note), true);  // no urgent receive may overtake it
  return held;
}

// As they are connected now. One that is not by RDMA would have no way to what another one has.
std::string MemserverTier::whyNotDirect() const {
  if (device_refused_.load()) return "an RDMA card has refused to move memory of the GPU";
  for (const auto& server : servers_) {
    const transport::LinkKind kind = server->client->figures().transport;
    if (kind != transport::LinkKind::kVerbs)
      return "memserver " + server->address + " is connected by " + transport::linkKindName(kind) +
             ", not by RDMA";
  }
  return transport::whyNoDmaBufs(domain_);
}

void MemserverTier::checked(uint64_t id, bool right) {
  Note note;
  note.kind = Note::Kind::kChecked;
  note.id = id;
  note.right = right;
  put(std::move(note), true);
}

std::vector<pager::LowerTier::Finished> MemserverTier::take() {
  std::vector<Finished> all;
  std::lock_guard lock(mutex_);
  all.swap(finished_);
  return all;
}

pager::TierFigures MemserverTier::figures() const {
  std::lock_guard lock(mutex_);
  return figures_;
}

void MemserverTier::Server::transferDone(uint64_t context, TransferResult result) {
  Note note;
  note.kind = Note::Kind::kTransfer;
  note.id = context;
  note.server = index;
  note.result = result;
  tier.put(std::move(note), true);
}

void MemserverTier::Server::happened(const Event& event) {
  Note note;
  note.kind = Note::Kind::kEvent;
  note.server = index;
  note.event = event;
  tier.put(std::move(note), true);
}

// ---- threads

// False: memory was refused, and the body ended early. A program does not end of it.
template <typename Body>
bool MemserverTier::guarded(Body body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    base::logError(
        "remote memory: a thread could not go on (%s): what it was at stays where it is for now. "
        "Is memory short?",
        error.what());
    std::this_thread::sleep_for(kRefusedPause);
    return false;
  }
}

void MemserverTier::work() {
  const auto closes = [&] {
    std::lock_guard lock(mutex_);
    return closing_;
  };
  while (!closes()) guarded([&] { workOnce(); });
}

void MemserverTier::workOnce() {
  std::deque<Note> some;
  {
    std::unique_lock lock(mutex_);
    const int64_t next = std::min({look_at_ms_, upkeep_at_ms_, late_look_at_ms_});
    const auto due =
        std::chrono::milliseconds(std::clamp<int64_t>(next - monotonicMs(), 0, kLookMs));
    changed_.wait_for(lock, due, [&] { return closing_ || !first_.empty() || !notes_.empty(); });
    if (closing_) return;
    if (!first_.empty()) {
      some.swap(first_);
    } else if (!notes_.empty()) {
      some.push_back(std::move(notes_.front()));
      notes_.pop_front();
    }
  }
  for (Note& note : some) handleGuarded(note);
  const int64_t now = monotonicMs();
  if (now >= late_look_at_ms_) lookForLate();
  if (now >= look_at_ms_) {
    look();
    look_at_ms_ = now + kLookMs;
    for (const uint64_t id : std::vector<uint64_t>(parked_.begin(), parked_.end()))
      continueSend(id);
    reconsider();
  }
  if (now >= upkeep_at_ms_) upkeep();
  tellLosses(false);
  publish();
}

void MemserverTier::lend() {
  for (;;) {
    Demand demand;
    {
      std::unique_lock lock(mutex_);
      demanded_.wait(lock, [&] { return closing_ || !demands_.empty(); });
      if (closing_) return;
      demand = demands_.front();
      demands_.pop_front();
    }
    // The worker waits for an answer, be it that there is no lease.
    if (guarded([&] { lease(demand); })) continue;
    guarded([&] {
      Note note;
      note.kind = Note::Kind::kLeased;
      note.server = demand.server;
      put(std::move(note), true);
    });
  }
}

void MemserverTier::lease(const Demand& demand) {
  const int64_t begun_ms = monotonicMs();
  auto got = servers_[demand.server]->client->lease(demand.bytes, demand.wait_ms);
  Note note;
  note.kind = Note::Kind::kLeased;
  note.server = demand.server;
  note.late = !got.ok() && monotonicMs() - begun_ms >= demand.wait_ms;
  if (got.ok()) {
    note.slabs = std::move(got.value());
  } else {
    base::logDebug("remote memory: no lease: %s", got.error().message.c_str());
  }
  put(std::move(note), true);
}

// A transfer whose note found no memory ends, since nobody would go on with it.
void MemserverTier::handleGuarded(Note& note) noexcept {
  uint64_t id = note.id;
  bool of_copy = note.kind == Note::Kind::kSend || note.kind == Note::Kind::kReceive;
  if (note.kind == Note::Kind::kTransfer) {
    const auto pass = passes_.find(note.id);
    of_copy = pass != passes_.end() &&
              (pass->second.kind == Pass::Kind::kSend || pass->second.kind == Pass::Kind::kReceive);
    if (of_copy) id = pass->second.id;
  }
  if (guarded([&] { handle(note); }) || !of_copy) return;
  while (!guarded([&] { abandon(note, id); })) {
  }
}

// Unless a pass moves its bytes: the pass goes on with it when it ends.
void MemserverTier::abandon(const Note& note, uint64_t id) {
  for (const auto& [number, pass] : passes_) {
    const bool of_copy = pass.kind == Pass::Kind::kSend || pass.kind == Pass::Kind::kReceive;
    if (of_copy && pass.id == id) return;
  }
  const auto found = copies_.find(id);
  const bool begun = found != copies_.end() && found->second.state != CopyState::kHeld;
  const bool sent =
      begun ? found->second.state == CopyState::kSending : note.kind == Note::Kind::kSend;
  // Ended before memory was refused, or freed.
  if (!begun && note.kind == Note::Kind::kTransfer) return;
  if (found != copies_.end() && !begun) return;
  finish(id, sent, sent ? Outcome::kNoRoom : Outcome::kNotNow,
         begun ? found->second.hash : pager::ContentHash{});
}

void MemserverTier::handle(Note& note) {
  switch (note.kind) {
    case Note::Kind::kSend:
      return startSend(note);
    case Note::Kind::kReceive:
      return startReceive(note);
    case Note::Kind::kRaise:
      return raiseNow(note.id);
    case Note::Kind::kGiveUp:
      return giveUpNow(note.id);
    case Note::Kind::kDrop:
      return dropNow(note.id);
    case Note::Kind::kChecked:
      return checkedNow(note.id, note.right);
    case Note::Kind::kTransfer:
      return transferred(note.id, note.result);
    case Note::Kind::kEvent:
      return happened(*servers_[note.server], note.event);
    case Note::Kind::kLeased:
      return leased(*servers_[note.server], note.slabs, note.late);
  }
}

// ---- passes

uint64_t MemserverTier::post(Pass::Kind kind, uint64_t id, unsigned index,
                             const transport::Region& region, const Frames& frames, Class klass) {
  Server& server = *servers_[index];
  const uint64_t number = next_pass_++;
  const bool write = kind == Pass::Kind::kSend || kind == Pass::Kind::kMoveWrite;
  Pass& pass = passes_[number];
  pass.kind = kind;
  pass.id = id;
  pass.server = index;
  pass.left = frames.size();
  pass.of_device = region.base() == nullptr;
  uint64_t offset = 0;
  for (const FrameRange& frame : frames) {
    const transport::LocalRange range{&region, offset, frame.bytes};
    offset += frame.bytes;
    pass.transfers.push_back(write ? server.client->write({&range, 1}, frame, klass, number)
                                   : server.client->read({&range, 1}, frame, klass, number));
  }
  pass.bytes = offset;
  uint64_t& under_way = write ? server.writing : server.reading;
  (write ? server.writes : server.reads).begins(under_way == 0);
  under_way += offset;
  return number;
}

void MemserverTier::transferred(uint64_t number, TransferResult result) {
  const auto found = passes_.find(number);
  if (found == passes_.end()) return;
  if (result != TransferResult::kOk) found->second.result = result;
  if (result == TransferResult::kBadRange && found->second.of_device &&
      !device_refused_.exchange(true))
    base::logWarn(
        "remote memory: memserver %s: an RDMA card does not move memory of the GPU that it knows; "
        "from now on pages go by host memory",
        servers_[found->second.server]->address.c_str());
  if (--found->second.left != 0) return;
  const Pass pass = std::move(found->second);
  passes_.erase(found);
  const bool write = pass.kind == Pass::Kind::kSend || pass.kind == Pass::Kind::kMoveWrite;
  Server& server = *servers_[pass.server];
  (write ? server.writing : server.reading) -= pass.bytes;
  if (pass.server < pager::kWhyMemservers) {
    pager::MemserverWhy& why = pager::counters().why.memservers[pass.server];
    const uint64_t moved = pass.result == TransferResult::kOk ? pass.bytes : 0;
    if (write)
      server.writes.ends(moved, why.out_bytes, why.out_ns);
    else
      server.reads.ends(moved, why.in_bytes, why.in_ns);
  }
  if (pass.result == TransferResult::kOk) {
    (write ? now_.sent_bytes : now_.received_bytes) += pass.bytes;
    if (servers_[pass.server]->seen.transport == transport::LinkKind::kVerbs) {
      pager::RdmaCounters& rdma = pager::counters().rdma;
      pager::add(pass.of_device ? (write ? rdma.direct_out : rdma.direct_in)
                                : (write ? rdma.frames_out : rdma.frames_in),
                 pass.bytes);
    }
    servers_[pass.server]->alive_at_ms = monotonicMs();
    if (std::any_of(servers_.begin(), servers_.end(), [](const auto& one) { return one->stalled; }))
      reconsider();
  }
  switch (pass.kind) {
    case Pass::Kind::kSend:
      return sendPassed(pass);
    case Pass::Kind::kReceive:
      return receivePassed(pass);
    case Pass::Kind::kHedge:
      return hedgePassed(pass);
    case Pass::Kind::kMoveRead:
      return moveRead(pass);
    case Pass::Kind::kMoveWrite:
      return moveWritten(pass);
  }
}

// ---- sends

void MemserverTier::startSend(Note& note) {
  Copy& copy = copies_[note.id];
  if (copy.state == CopyState::kHeld) now_.held_bytes -= copy.bytes;
  under_.erase(note.id);
  copy.state = CopyState::kSending;
  copy.version = next_version_++;
  copy.memory = note.memory;
  copy.urgent = note.urgent;
  copy.attempts = 0;
  // The replica's frames are written over where they can be reached.
  for (size_t i = copy.replicas.size(); i-- > 0;) {
    Replica& replica = copy.replicas[i];
    const Server& server = *servers_[replica.server];
    // If everything is wanted back nobody else may have room.
    const bool leaving =
        !server.leaving &&
        std::any_of(replica.frames.begin(), replica.frames.end(),
                    [&](const auto& frame) { return server.closed.count(frame.slab) != 0; });
    if (copy.bytes != note.bytes || !server.usable() || leaving) {
      removeReplica(note.id, copy, replica.server);
    } else {
      replica.writing = replica.written = replica.lost = false;
    }
  }
  copy.bytes = note.bytes;
  if (note.bytes == 0 || note.bytes % FramePool::kPageBytes != 0) {
    base::logError("remote memory: %llu bytes are no whole pages",
                   static_cast<unsigned long long>(note.bytes));
    finish(note.id, true, Outcome::kNoRoom, {});
    return;
  }
  if (copy.urgent) return continueSend(note.id);
  copy.hash = note.hash ? *note.hash : hasher_.hash(note.memory, note.bytes);
  auto region = kept_.use(note.memory, note.bytes);
  if (!region.ok()) {
    base::logError("remote memory: %s", region.error().message.c_str());
    finish(note.id, true, Outcome::kNoRoom, copy.hash);
    return;
  }
  copy.region = std::move(region.value());
  continueSend(note.id);
}

// Writes what is not yet written, waits for a lease, or ends.
void MemserverTier::continueSend(uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state != CopyState::kSending) {
    parked_.erase(id);
    return;
  }
  Copy& copy = found->second;
  if (copy.urgent) {  // its end is waited for: what is written is enough, nothing is begun
    if (copy.passes != 0) return;
    parked_.erase(id);
    for (size_t i = copy.replicas.size(); i-- > 0;) {
      if (!copy.replicas[i].written) removeReplica(id, copy, copy.replicas[i].server);
    }
    finish(id, true, copy.replicas.empty() ? Outcome::kNoRoom : Outcome::kDone, copy.hash);
    return;
  }
  const unsigned wanted = wantedReplicas();
  bool short_of_room = false;
  while (copy.replicas.size() < wanted && !short_of_room && copy.attempts < kMostAttempts) {
    auto replica = place(copy);
    short_of_room = !replica;
    if (replica) addReplica(id, copy, std::move(*replica));
  }
  const bool begun =
      std::any_of(copy.replicas.begin(), copy.replicas.end(),
                  [](const Replica& replica) { return replica.writing || replica.written; });
  if (copy.replicas.size() < wanted) {
    // A lease may come, or somebody who is silent speak again.
    if (copy.attempts < kMostAttempts &&
        (leaseMayHelp(copy, copy.bytes) || usableServers() < wanted)) {
      parked_.insert(id);
      return;
    }
    if (!begun && copy.attempts < kMostAttempts && turn(copy)) return continueSend(id);
    if (!begun) {
      parked_.erase(id);
      finish(id, true, Outcome::kNoRoom, copy.hash);
      return;
    }
  }
  parked_.erase(id);
  for (Replica& replica : copy.replicas) {
    if (replica.writing || replica.written) continue;
    replica.writing = true;
    ++copy.passes;
    ++copy.attempts;
    post(Pass::Kind::kSend, id, replica.server, *copy.region, replica.frames, Class::kWriteBack);
  }
  if (copy.passes == 0) finish(id, true, Outcome::kDone, copy.hash);
}

void MemserverTier::sendPassed(const Pass& pass) {
  const auto found = copies_.find(pass.id);
  if (found == copies_.end()) return;
  Copy& copy = found->second;
  --copy.passes;
  if (Replica* replica = replicaAt(copy, pass.server); replica != nullptr) {
    replica->writing = false;
    if (pass.result == TransferResult::kOk && !replica->lost) {
      replica->written = true;
    } else {
      removeReplica(pass.id, copy, pass.server);
    }
  }
  continueSend(pass.id);
}

// ---- receives

void MemserverTier::startReceive(Note& note) {
  const auto found = copies_.find(note.id);
  if (found == copies_.end() || found->second.state != CopyState::kHeld ||
      found->second.bytes != note.bytes) {
    finish(note.id, false, Outcome::kLost, {});
    return;
  }
  Copy& copy = found->second;
  copy.state = CopyState::kReceiving;
  copy.memory = note.memory;
  copy.urgent = note.urgent;
  copy.unwanted = note.unwanted;
  if (copy.unwanted) return finish(note.id, false, Outcome::kNotNow, copy.hash);
  auto region = kept_.use(note.memory, note.bytes);
  if (!region.ok()) {
    base::warnOnce("receive refused", "remote memory: nothing can be received now: %s",
                   region.error().message.c_str());
    finish(note.id, false, Outcome::kNotNow, copy.hash);
    return;
  }
  copy.region = std::move(region.value());
  continueReceive(note.id);
}

// From the replica that is likely to be here first; one that can't be reached now only where there
// is no other.
void MemserverTier::continueReceive(uint64_t id) {
  Copy& copy = copies_.at(id);
  const Replica* best = nullptr;
  double least = 0;
  for (const Replica& replica : copy.replicas) {
    const Server& server = *servers_[replica.server];
    const double speed =
        server.seen.read_bytes_per_s == 0 ? 1e9 : static_cast<double>(server.seen.read_bytes_per_s);
    const double time =
        static_cast<double>(server.reading + copy.bytes) / speed + (server.usable() ? 0 : 1e6);
    if (best == nullptr || time < least) {
      best = &replica;
      least = time;
    }
  }
  if (best == nullptr) {
    finish(id, false, Outcome::kLost, {});
    return;
  }
  copy.late_at_ms = lateAt(*servers_[best->server], copy.bytes);
  copy.hedged = false;
  copy.reading = post(Pass::Kind::kReceive, id, best->server, *copy.region, best->frames,
                      copy.urgent ? Class::kDemand : Class::kPrefetch);
  if (copy.replicas.size() > 1) late_look_at_ms_ = std::min(late_look_at_ms_, copy.late_at_ms);
}

void MemserverTier::receivePassed(const Pass& pass) {
  const auto found = copies_.find(pass.id);
  if (found == copies_.end()) return;
  Copy& copy = found->second;
  copy.reading = 0;
  if (copy.toDevice() && pass.result == TransferResult::kOk) {
    ended_.push_back({pass.id, false, Outcome::kUnchecked, copy.hash});
    must_wake_ = true;
    return;
  }
  // The replica is as good as it was.
  if (copy.toDevice() && pass.result == TransferResult::kBadRange)
    return finish(pass.id, false, Outcome::kNotNow, copy.hash);
  if (pass.result == TransferResult::kOk) {
    if (hasher_.hash(copy.memory, copy.bytes) == copy.hash) {
      finish(pass.id, false, Outcome::kDone, copy.hash);
      return;
    }
    wrongBytes(pass.id, pass.server);
  } else if (pass.result != TransferResult::kInterrupted) {
    removeReplica(pass.id, copy, pass.server);
    if (copy.replicas.empty() && !copy.spare) noteLoss(*servers_[pass.server], copy.bytes);
  }
  if (copy.spare) {
    std::memcpy(copy.memory, copy.spare->memory, copy.bytes);
    now_.hedged_bytes += copy.bytes;
    finish(pass.id, false, Outcome::kDone, copy.hash);
    return;
  }
  if (copy.unwanted && !copy.replicas.empty())
    return finish(pass.id, false, Outcome::kNotNow, copy.hash);
  continueReceive(pass.id);
}

void MemserverTier::wrongBytes(uint64_t id, unsigned server) {
  Copy& copy = copies_.at(id);
  base::logError(
      "remote memory: memserver %s gave wrong bytes for %llu MiB; this copy is not used any more",
      servers_[server]->address.c_str(), static_cast<unsigned long long>(copy.bytes >> 20));
  if (replicaAt(copy, server) == nullptr) return;  // lost meanwhile
  removeReplica(id, copy, server);
  if (copy.replicas.empty() && !copy.spare) noteLoss(*servers_[server], copy.bytes);
}

void MemserverTier::checkedNow(uint64_t id, bool right) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state != CopyState::kReceiving) return;
  finish(id, false, right ? Outcome::kDone : Outcome::kNotNow, found->second.hash);
}

void MemserverTier::raiseNow(uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state == CopyState::kHeld) return;
  found->second.urgent = true;
  if (found->second.state == CopyState::kSending) {
    std::vector<unsigned> silent;
    for (const Replica& replica : found->second.replicas) {
      if (replica.writing && !servers_[replica.server]->usable()) silent.push_back(replica.server);
    }
    for (const unsigned server : silent) cut(*servers_[server]);
    return continueSend(id);
  }
  const auto pass = passes_.find(found->second.reading);
  if (pass == passes_.end()) return;
  for (const uint64_t transfer : pass->second.transfers) {
    servers_[pass->second.server]->client->raise(transfer, Class::kDemand);
  }
}

// One that is read from a memserver that answers is soon over.
void MemserverTier::giveUpNow(uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state != CopyState::kReceiving) return;
  found->second.unwanted = true;
  const auto pass = passes_.find(found->second.reading);
  if (pass == passes_.end()) return;
  Server& server = *servers_[pass->second.server];
  if (!server.usable()) cut(server);
}

// ---- ends

void MemserverTier::dropNow(uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || found->second.state != CopyState::kHeld) return;
  now_.held_bytes -= found->second.bytes;
  forget(id);
}

void MemserverTier::forget(uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end()) return;
  while (!found->second.replicas.empty())
    removeReplica(id, found->second, found->second.replicas.back().server);
  under_.erase(id);
  parked_.erase(id);
  copies_.erase(found);
  std::lock_guard lock(mutex_);
  held_.erase(id);
}

void MemserverTier::finish(uint64_t id, bool sent, Outcome outcome, pager::ContentHash hash) {
  // First of all, as what is told below has to be told.
  if (ended_.size() == ended_.capacity()) ended_.reserve(2 * ended_.size() + 8);
  bool gone = true;
  const auto found = copies_.find(id);
  if (found != copies_.end()) {
    Copy& copy = found->second;
    kept_.done(std::exchange(copy.region, nullptr));
    copy.spare.reset();
    copy.memory = nullptr;
    copy.unwanted = false;
    gone = (outcome != Outcome::kDone && outcome != Outcome::kNotNow) || copy.replicas.empty();
    if (gone && outcome == Outcome::kNotNow)
      outcome = Outcome::kLost;  // its last replica went meanwhile
    const bool was_held = copy.state != CopyState::kSending;
    if (gone) {
      if (was_held) now_.held_bytes -= copy.bytes;
      if (outcome == Outcome::kLost) now_.lost_bytes += copy.bytes;
      forget(id);
    } else {
      if (!was_held) now_.held_bytes += copy.bytes;
      copy.state = CopyState::kHeld;
      if (copy.replicas.size() < options_.replicas) {
        under_.insert(id);
        upkeep_at_ms_ = std::min(upkeep_at_ms_, monotonicMs());
      }
    }
  }
  {
    std::lock_guard lock(mutex_);
    if (gone) {
      held_.erase(id);
    } else {
      held_[id] = hash;
    }
  }
  ended_.push_back({id, sent, outcome, hash});
  must_wake_ = true;
}

// Links beyond the room of the counters are not shown.
void MemserverTier::publishRails() const {
  const size_t shown = std::min<size_t>(servers_.size(), pager::kMaxCountedLinks);
  for (size_t i = 0; i < shown; ++i) {
    const Server& server = *servers_[i];
    pager::LinkCounters& link = pager::counters().rdma.links[i];
    pager::setName(link.peer, server.address);
    status::noteRails(link.rails, server.seen.rails);
  }
}

// Behind all that has ended so far.
void MemserverTier::publishRates() {
  const size_t shown = std::min<size_t>(servers_.size(), pager::kWhyMemservers);
  for (size_t i = 0; i < shown; ++i) {
    pager::MemserverWhy& why = pager::counters().why.memservers[i];
    servers_[i]->writes.noticedAll(why.out_best);
    servers_[i]->reads.noticedAll(why.in_best);
  }
}

void MemserverTier::publish() {
  publishRates();
  now_.memservers = static_cast<unsigned>(servers_.size());
  now_.connected = 0;
  std::array<unsigned, transport::kLinkKinds> by{};
  for (const auto& server : servers_) {
    now_.connected += server->up;
    by[static_cast<size_t>(server->seen.transport)] += server->up;
  }
  const auto count = [&](pager::Counter& into, transport::LinkKind kind) {
    pager::set(into, by[static_cast<size_t>(kind)]);
  };
  count(pager::counters().memservers_tcp, transport::LinkKind::kTcp);
  count(pager::counters().memservers_shm, transport::LinkKind::kShm);
  count(pager::counters().memservers_verbs, transport::LinkKind::kVerbs);
  const transport::CardMemory cards = transport::cardMemory(domain_);
  now_.card_registrations = cards.registrations;
  now_.card_bytes = cards.bytes;
  pager::set(pager::counters().card_registrations, cards.registrations);
  pager::set(pager::counters().card_bytes, cards.bytes);
  const uint64_t room = capacity();
  if (room != now_.capacity_bytes) must_wake_ = true;
  now_.capacity_bytes = room;
  now_.degraded =
      options_.replicas > 1 && (!under_.empty() || wantedReplicas() < options_.replicas);
  tellDegraded();
  {
    std::lock_guard lock(mutex_);
    figures_ = now_;
    finished_.insert(finished_.end(), ended_.begin(), ended_.end());
    for (const Finished& one : ended_) {
      raised_.erase(one.address);
      given_up_.erase(one.address);
    }
  }
  ended_.clear();
  if (!std::exchange(must_wake_, false)) return;
  std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

}  // namespace olpager::memserver
