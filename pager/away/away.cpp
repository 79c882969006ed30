#include "pager/away/away.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "coherence/pages/batch.h"
#include "coherence/pages/blocks.h"
#include "pager/counters/counters.h"
#include "pager/pool_state.h"
#include "pager/residency/host_copies.h"

namespace olpager::pager {

namespace {

constexpr unsigned kScanEvery = 64;  // operations
constexpr unsigned kScans = 64;      // after a page was given away
// Given pages stay in host memory: at most pages::kMostKept, in at most one part of it in so many.
constexpr uint64_t kRetainedShare = 16;

}  // namespace

Away::Away(PoolState& state, directory::AgentId agent, AwayLink& link)
    : PoolAgent(state, agent), link_(link) {
  startThread();
  dropper_ = base::ownThread([this] { dropFreed(); });
}

Away::~Away() { stopThreads(); }

void Away::stopThreads() noexcept {
  PoolAgent::stopThreads();
  freed_bell_.release();
  if (dropper_.joinable()) dropper_.join();
}

void Away::forked() noexcept {
  PoolAgent::forked();
  if (dropper_.joinable()) dropper_.detach();
}

// --- regions -------------------------------------------------------------------------------------

Engine& Away::engineOf(directory::ExtentId id) { return *region_of_[id]->engine; }

// For a region whose pages are all to be forgotten.
void Away::drop(Region& region, Lock& lock) {
  AwayRegion& away = *region.away;
  if (away.forgets.size() < region.pages) {  // its context goes, and takes what is here along
    link_.failed("a context is gone, and pages of the program with it");
    return stopPaging();
  }
  abandon(region, lock);
  for (const directory::Message& message : away.forgets) elsewhere_.receive(message, lock);
  flush();
  bell_.release();  // operations that used them may not be known to be over
  while (away.forgotten.size() < region.pages && !state_.stopped)
    state_.changed.wait_for(lock, std::chrono::milliseconds(1));
  if (state_.stopped) return;
  subtract(region.engine->figures().allocated_bytes, region.requested_bytes);
  subtract(region.engine->figures().allocations, 1);
  remove(region);
}

void Away::dropped(const AwayRegion& region) {
  outbox_.insert(outbox_.end(), region.forgotten.begin(), region.forgotten.end());
  flush();
}

void Away::forget(const std::vector<directory::Message>& forgets) {
  for (const directory::Message& message : forgets) {
    Region* const region = region_of_[message.extent];
    region->away->forgets.push_back(message);
    if (region->away->forgets.size() < region->pages) continue;
    // One that goes with its context is being dropped. From here on the end of a context waits for
    // dropFreed().
    if (std::exchange(region->dead, true)) continue;
    freed_.push_back(region);
    freed_bell_.release();
    state_.changed.notify_all();  // launches that wait go without it
  }
}

void Away::dropFreed() {
  while (true) {
    freed_bell_.acquire();
    if (ended_) return;
    const RelaxedThread relaxed(state_.driver);
    Lock lock(state_.mutex);
    if (state_.forked.load()) return;
    Region* const region = freed_.front();
    freed_.pop_front();
    dropRegion(state_, region, lock);
  }
}

void Away::receive(std::span<const directory::Message> messages, Lock& lock) {
  std::vector<directory::Message> forgets;
  for (const directory::Message& message : messages) {
    if (message.kind != directory::MessageKind::kOver && region_of_[message.extent] == nullptr)
      return violated({.extent = message.extent, .message = message});
    if (message.kind == directory::MessageKind::kForget) {
      forgets.push_back(message);
    } else {
      elsewhere_.receive(message, lock);
    }
  }
  elsewhere_.shed(retainedPages(), lock);
  forget(forgets);
  flush();
  if (someoneWaits()) bell_.release();
}

// --- operations ----------------------------------------------------------------------------------

bool Away::over(ToldOperation& operation) {
  using Stage = ToldOperation::Stage;
  Lock lock(state_.mutex);
  scanAhead();
  if (operation.stage == Stage::kSubmitted) {
    submitted(operation);
  } else if (operation.stage == Stage::kUntold) {
    // A page that came for it ahead is nobody's claim any more.
    const directory::AgentId self = elsewhere_.agent().id();
    elsewhere_.receive({.kind = directory::MessageKind::kOver,
                        .to = self,
                        .age = operation.age,
                        .served = operation.oldest},
                       lock);
    flush();
  }
  return operation.stage != Stage::kUntold;
}

void Away::scanAhead() {
  if (scans_to_come_ == 0 || ++made_ < kScanEvery) return;
  made_ = 0;
  --scans_to_come_;
  for (const auto& engine : state_.devices.engines) engine->scanAhead();
}

ToldOperation* Away::operationOfThread() const {
  ExternalOperation* const current = ExternalOperation::current();
  return current != nullptr && current->told ? &*current->told : nullptr;
}

bool Away::someoneWaits() const { return !short_.empty() || PoolAgent::someoneWaits(); }

void Away::turn(Lock& lock) { fetchShort(lock); }

// --- what the agent asks for ---------------------------------------------------------------------

// The chunk of an extent that is not granted; null: it has none. Nobody reads it any more.
Away::Frame Away::takeFrame(directory::ExtentId extent) {
  const auto found = frames_.extract(extent);
  if (found.empty()) return {};
  if (found.mapped().number != 0) link_.takenBack(extent, found.mapped().number);
  return found.mapped();
}

void Away::startFetch(const Key& key, directory::AgentId from, const Frame& frame) {
  coming_[key] = frame.chunk;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address
  auto* const into = reinterpret_cast<void*>(frame.chunk->alias);
  link_.fetch(key.first, key.second, from, into, frame.hash);
}

// A page that goes to and fro often comes back as it left: scratch memory of a library, say.
uint64_t Away::retainedPages() const {
  return std::min(pages::kMostKept, state_.devices.host.limit / kRetainedShare / kPageBytes);
}

void Away::giveRetained(Lock& lock) {
  elsewhere_.shed(0, lock);
  flush();
}

void Away::fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
                 directory::Content, Lock& lock) {
  const Key key{extent, number};
  if (const Frame frame = takeFrame(extent); frame.chunk != nullptr)
    return startFetch(key, from, frame);
  short_.push_back({key, from});
  fetchShort(lock);
  if (!short_.empty()) bell_.release();
}

// In their order. Releases the mutex: one thread at a time.
void Away::fetchShort(Lock& lock) {
  if (std::exchange(fetching_short_, true)) return;
  while (!short_.empty()) {
    Engine& engine = engineOf(short_.front().key.first);
    HostChunk* const chunk = engine.host().takeChunkForOthers(lock);
    if (chunk == nullptr) break;
    const Short next = short_.front();
    short_.pop_front();
    startFetch(next.key, next.from, {chunk, 0, std::nullopt});
  }
  fetching_short_ = false;
}

void Away::landed(directory::ExtentId extent, directory::Number number,
                  std::optional<ContentHash> hash, Lock& lock) {
  const auto found = coming_.extract(Key{extent, number});
  if (found.empty()) return;
  frames_[extent] = {found.mapped(), 0, hash};
  elsewhere_.landed(extent, number, lock);
  flush();
}

void Away::clear(directory::ExtentId, Lock&) {}

bool Away::take(Extent& extent) {
  const directory::ExtentId id = extent.region->away->idOf(extent);
  const Frame frame = takeFrame(id);
  extent.host = frame.chunk;
  extent.host_valid = extent.host != nullptr;
  extent.hash_valid = frame.hash.has_value();
  if (frame.hash) extent.hash = *frame.hash;
  if (extent.host == nullptr) return false;
  arrived_.push_back(id);
  extent.region->engine->wake();
  return true;
}

void Away::keepArrivals(const std::function<bool(Extent&)>& keeps) {
  std::erase_if(arrived_, [&](directory::ExtentId id) {
    return region_of_[id] == nullptr || region_of_[id]->dead || !keeps(extentAt(id));
  });
}

void Away::lost(const Extent& extent) {
  const std::string why = base::format(
      "the page at {:#x}, which another gpunode needs, was lost with a memserver (OL_REPLICAS=2 "
      "keeps two of each)",
      extent.address);
  link_.failed(why.c_str());
  stopPaging();
}

void Away::give(Extent& extent) {
  scans_to_come_ = kScans;
  frames_[extent.region->away->idOf(extent)] = {
      std::exchange(extent.host, nullptr), 0,
      extent.hash_valid && extent.host_valid ? std::optional(extent.hash) : std::nullopt};
}

void Away::release(directory::ExtentId extent, Lock&) {
  if (const Frame frame = takeFrame(extent); frame.chunk != nullptr)
    engineOf(extent).host().giveChunkOfOthers(frame.chunk);
}

void Away::post(const directory::Message& message) {
  if (message.kind == directory::MessageKind::kReady) {
    Frame& frame = frames_[message.extent];
    if (frame.chunk == nullptr) return violated({.extent = message.extent, .message = message});
    frame.number = message.number;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the CPU's address
    link_.given(message.extent, message.number, message.to,
                reinterpret_cast<const void*>(frame.chunk->alias), frame.hash);
  } else if (message.kind == directory::MessageKind::kForgotten) {
    AwayRegion& region = *region_of_[message.extent]->away;
    region.forgotten.push_back(message);  // told by dropped()
    return state_.changed.notify_all();
  }
  outbox_.push_back(message);
}

// Sends the messages that steps have left.
void Away::flush() {
  retained_.store(elsewhere_.retained(), std::memory_order_relaxed);
  std::span<const directory::Message> left = outbox_;
  while (!left.empty()) {
    link_.post(pages::encode(left));
  }
  outbox_.clear();
}

void Away::violated(const directory::Action& action) {
  base::logError(
      "the unified view: the ownership protocol was violated at extent %u (message %d): paging has "
      "stopped",
      action.extent, static_cast<int>(action.message.kind));
  link_.failed("the ownership protocol was violated");
  stopPaging();
}

}  // namespace olpager::pager
