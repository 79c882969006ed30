// Long: one function for each message of the protocol.
#include "interpose/unified/home.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/space/pages.h"
#include "coherence/pages/batch.h"

namespace olpager::unified {

using directory::Action;
using directory::ActionKind;
using directory::Age;
using directory::kHome;
using directory::kNoAgent;
using directory::Message;
using directory::Mode;
using space::kPageBytes;

namespace {

constexpr size_t kMostRegions = 4096;  // of one record
constexpr uint64_t kNoLimit = UINT64_MAX;
constexpr uint64_t kTooMuch = uint64_t{1} << 40;  // pages: above every other cost
// The cost of a move of all, in pages that might move instead: the wait until the former executor
// has nothing to do, and most often the way back. With room for few pages each of them counts.
constexpr uint64_t kMove = 12;
constexpr uint64_t kFewPages = 256;
uint64_t moveOfAll(uint64_t room) { return std::min(kMove, room / kFewPages); }
// New pages leave one part of so many of an executor's room to what comes and goes, and what comes
// and goes may take as much beyond it: else a few pages would drive out what stays.
constexpr uint64_t kSlack = 32;
// How often a program that has made a turn twice is taken to make it for each time that it did.
constexpr uint64_t kAgain = 4;
// A step that makes room moves one part of so many of what an executor holds, and so many at most.
constexpr uint64_t kStepShare = 32;
constexpr uint64_t kMostInStep = 64;
constexpr uint64_t kNoCause = UINT64_MAX;  // a turn that begins with no region of its executor's

Error refused(unsigned executor, const std::string& why) {
  return Error{"executor " + std::to_string(executor) + ": " + why};
}

}  // namespace

Home::Home(std::vector<uint64_t> rooms, uint64_t base)
    : Home(rooms, std::vector(rooms.size(), kNoLimit), base,
           std::accumulate(rooms.begin(), rooms.end(), uint64_t{0})) {}

Home::Home(std::vector<uint64_t> rooms, std::vector<uint64_t> holds, uint64_t base, uint64_t most,
           status::UnifiedCounters* counters)
    : rooms_(std::move(rooms)),
      holds_(std::move(holds)),
      base_(base),
      most_(most),
      own_counters_(counters == nullptr ? std::make_unique<status::UnifiedCounters>() : nullptr),
      counters_(counters == nullptr ? *own_counters_ : *counters),
      placed_(rooms_.size()),
      completed_(rooms_.size()),
      turns_(kAgain * 2 * moveOfAll(*std::min_element(rooms_.begin(), rooms_.end()))),
      travellers_(rooms_.size()),
      outboxes_(rooms_.size()) {
  assert(!rooms_.empty() && rooms_.size() <= directory::kMostAgents);
  for (size_t i = 0; i < rooms_.size(); ++i) directory_.join(static_cast<directory::AgentId>(i));
}

// --- regions -------------------------------------------------------------------------------------

bool Home::add(uint64_t base, uint64_t bytes) {
  assert(base >= base_ && (base - base_) % kPageBytes == 0);
  assert(bytes % kPageBytes == 0 && bytes != 0);
  const uint64_t pages = bytes / kPageBytes;
  std::lock_guard lock(mutex_);
  if (pages > most_ - pages_) return false;
  const ExtentId first = numbers_.take(static_cast<ExtentId>(pages));
  page_of_.resize(numbers_.end());
  Region& region = regions_[base] = {.base = base, .pages = pages, .first = first};
  const uint64_t at = (base - base_) / kPageBytes;
  if (extent_at_.size() < at + pages) {
    extent_at_.resize(at + pages, directory::kNone);
    settled_at_.resize(at + pages, kNoRegion);
    turns_.resize(at + pages);
  }
  std::fill_n(settled_at_.begin() + static_cast<ptrdiff_t>(at), pages, kNowhere);
  for (uint64_t page = 0; page < pages; ++page) {
    const ExtentId extent = first + static_cast<ExtentId>(page);
    extent_at_[at + page] = extent;
    page_of_[extent] = {.region = &region};
  }
  directory_.allocate(first, static_cast<ExtentId>(pages));
  pages_ += pages;
  ++told_;
  for (size_t i = 0; i < outboxes_.size(); ++i)
    outbox(i).regions.push_back(
        {.base = base, .pages = static_cast<uint32_t>(pages), .first = first});
  return true;
}

void Home::remove(uint64_t base) {
  std::lock_guard lock(mutex_);
  const auto found = regions_.find(base);
  if (found == regions_.end() || found->second.removed) return;
  Region& region = found->second;
  region.removed = true;
  turns_.forget(pageOf(region));
  for (ExtentId extent = region.first; extent < region.first + region.pages; ++extent) {
    place(extent, kNowhere);
    endMove(extent);
  }
  setSettled(region, kNoRegion);
  directory_.free(region.first, static_cast<ExtentId>(region.pages), actions_);
  const Status freed = carryOut();
  assert(freed.ok());  // what is asked for here is no violation
}

std::vector<uint64_t> Home::released() {
  std::lock_guard lock(mutex_);
  return std::exchange(released_, {});
}

uint64_t Home::told() const {
  std::lock_guard lock(mutex_);
  return told_;
}

uint64_t Home::freePages() const {
  std::lock_guard lock(mutex_);
  return most_ - pages_;
}

// --- operations ----------------------------------------------------------------------------------

// The extent at an address of a region that was not removed; kNone: there is none.
Home::ExtentId Home::extentOf(uint64_t address) const {
  const uint64_t at = (address - base_) / kPageBytes;
  if (address < base_ || at >= extent_at_.size()) return directory::kNone;
  const ExtentId extent = extent_at_[at];
  return extent == directory::kNone || page_of_[extent].region->removed ? directory::kNone : extent;
}

Home::Region* Home::regionOf(uint64_t address) const {
  const ExtentId extent = extentOf(address);
  return extent == directory::kNone ? nullptr : page_of_[extent].region;
}

// Each page once, in order.
std::vector<Home::Run> Home::runsOf(std::span<const Named> named) const {
  std::vector<Run> runs;
  for (const Named& one : named) {
    const Region* const found = regionOf(one.address);
    if (found == nullptr) continue;
    const Region& region = *found;
    Run run{region.first, region.first + static_cast<ExtentId>(region.pages)};
    if (one.bytes != 0) {
      const uint64_t from = one.address - region.base;
      const uint64_t last = from + std::min(one.bytes, region.pages * kPageBytes - from) - 1;
      run = {region.first + static_cast<ExtentId>(from / kPageBytes),
             region.first + static_cast<ExtentId>(last / kPageBytes) + 1};
    }
    runs.push_back(run);
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
  size_t kept = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].first <= runs[kept].end) {
      runs[kept].end = std::max(runs[kept].end, runs[i].end);
    } else {
      runs[++kept] = runs[i];
    }
  }
  if (!runs.empty()) runs.resize(kept + 1);
  return runs;
}

Home::Cost Home::costAt(unsigned executor, std::span<const Run> runs) const {
  Cost cost;
  uint64_t more = 0;
  for (const Run& run : runs) {
    for (ExtentId extent = run.first; extent < run.end; ++extent) {
      const Page& page = page_of_[extent];
      if (settledAt(*page.region) == executor && extent == page.region->first) {
        extent += static_cast<ExtentId>(page.region->pages) - 1;
        cost.there += page.region->pages;
        continue;
      }
      if (page.placed == executor) {
        ++cost.there;
        continue;
      }
      ++more;
      if (page.placed != kNowhere) ++cost.moved;
    }
  }
  const uint64_t then = cost.then = placed_[executor] + more;
  const uint64_t slack = rooms_[executor] / kSlack;
  const uint64_t room = more != cost.moved ? rooms_[executor] - slack : rooms_[executor] + slack;
  cost.beyond = then > room ? 2 * (then - room) : 0;
  cost.never = then > holds_[executor] ? kTooMuch : 0;
  return cost;
}

Home::Routed Home::routed(std::span<const Named> named, unsigned at,
                          std::optional<unsigned> asked) const {
  using status::RouteReason;
  std::lock_guard lock(mutex_);
  const std::vector<Run> runs = runsOf(named);
  const Cost here = costAt(at, runs);
  const uint64_t move = moveOfAll(rooms_[at]);
  unsigned best = at;
  Cost cost = here;
  if (asked) {
    const Cost its = costAt(*asked, runs);
    if (its.never == 0) {
      best = *asked, cost = its;
    } else {
      asked.reset();
    }
  }
  for (unsigned executor = 0; !asked && executor < rooms_.size() && cost.sum() != 0; ++executor) {
    if (executor == at) continue;
    const Cost its = costAt(executor, runs);
    if (its.sum() + move < cost.sum() + (best != at ? move : 0)) best = executor, cost = its;
  }
  std::optional<uint64_t> united;
  if (best != at && !asked) united = shortTurn(at, best, runs);
  if (united) best = at, cost = here;
  RouteReason reason = RouteReason::kPages;
  if (best == at) {
    reason = here.moved == 0 && here.beyond == 0 ? RouteReason::kInPlace : RouteReason::kPagesCome;
  } else if (asked) {
    reason = RouteReason::kAsked;
  } else if (here.never > cost.never) {
    reason = RouteReason::kCapacity;
  } else if (here.moved <= cost.moved + move) {  // without what is beyond its room it had stayed
    reason = RouteReason::kRoom;
  }
  return {.executor = best,
          .reason = reason,
          .there = cost.there,
          .coming = cost.moved,
          .united = united};
}

// Runs may be of several regions.
template <typename Each>
void Home::eachRegion(std::span<const Run> runs, Each each) const {
  for (const Run& run : runs) {
    for (ExtentId extent = run.first; extent < run.end;) {
      const Region& region = *page_of_[extent].region;
      each(region);
      extent = region.first + static_cast<ExtentId>(region.pages);
    }
  }
}

// Regions of a turn that are there still, whole. At the addresses of others there may be something
// else by now.
template <typename Each>
void Home::eachStillAt(unsigned executor, const Turns::Turn& turn, Each each) const {
  for (const uint64_t page : turn.regions) {
    if (extent_at_[page] == directory::kNone) continue;
    const Region& region = *page_of_[extent_at_[page]].region;
    if (pageOf(region) == page && settledAt(region) == executor) each(region);
  }
}

// The first page of a region for which all would go to `there` for a short turn, if `at` has room
// for the turn's pages.
std::optional<uint64_t> Home::shortTurn(unsigned at, unsigned there,
                                        std::span<const Run> runs) const {
  std::optional<uint64_t> found;
  eachRegion(runs, [&](const Region& region) {
    if (found || settledAt(region) != there) return;
    const Turns::Turn* const turn = turns_.paidFor(pageOf(region), there);
    if (turn == nullptr) return;
    uint64_t then = placed_[at];
    eachStillAt(there, *turn, [&](const Region& one) { then += one.pages; });
    if (then <= std::min(rooms_[at], holds_[at])) found = pageOf(region);
  });
  return found;
}

// The turn's pages come, and its operations find them here.
void Home::unite(unsigned executor, uint64_t cause, Age age) {
  const auto agent = static_cast<directory::AgentId>(executor);
  if (extent_at_[cause] == directory::kNone) return;
  const uint8_t other = page_of_[extent_at_[cause]].placed;
  const Turns::Turn* const turn = turns_.paidFor(cause, other);
  if (turn == nullptr) return;
  std::vector<Run> coming;  // to place a page says that its region is not settled
  eachStillAt(other, *turn, [&](const Region& region) {
    coming.push_back({region.first, region.first + static_cast<ExtentId>(region.pages)});
  });
  for (const Run& run : coming) {
    for (ExtentId extent = run.first; extent < run.end; ++extent) {
      place(extent, agent);
      directory_.ask(age, agent, extent, 1, Mode::kOwn, actions_);
    }
  }
  turns_.forget(cause);
}

uint64_t Home::pageOf(const Region& region) const { return (region.base - base_) / kPageBytes; }

void Home::noteInTurn(const Region& region, bool belongs) {
  const uint64_t first = pageOf(region);
  if (!turns_.isNoted(first)) turns_.note(first, first, region.pages, belongs);
}

Home::Sent Home::send(unsigned executor, std::span<const Named> named, bool ahead,
                      std::optional<uint64_t> united) {
  assert(executor < rooms_.size());
  const auto agent = static_cast<directory::AgentId>(executor);
  std::lock_guard lock(mutex_);
  const Sent drawn = draw(agent);
  if (united) unite(executor, *united, drawn.age);
  for (const Run& run : runsOf(named)) {
    for (ExtentId extent = run.first; extent < run.end;) {
      Region& region = *page_of_[extent].region;
      region.used = drawn.age;
      const ExtentId end = region.first + static_cast<ExtentId>(region.pages);
      if (turns_.executor() == agent) noteInTurn(region, settledAt(region) == agent);
      const bool whole = extent == region.first && end <= run.end;
      if (whole && settledAt(region) == agent) {
        extent = end;
        continue;
      }
      bool settled = whole;
      for (; extent < std::min(end, run.end); ++extent) {
        noteTraveller(extent, agent);
        place(extent, agent);
        const bool there = directory_.owner(extent) == agent &&
                           directory_.phase(extent) == directory::Phase::kRest;
        settled = settled && there;
        if (ahead && !there) directory_.ask(drawn.age, agent, extent, 1, Mode::kOwn, actions_);
      }
      if (settled) setSettled(region, agent);
    }
  }
  const Status asked = carryOut();
  assert(asked.ok());
  return drawn;
}

std::optional<Home::Sent> Home::sendInPlace(unsigned executor, std::span<const Named> named) {
  assert(executor < rooms_.size());
  std::lock_guard lock(mutex_);
  if (placed_[executor] > rooms_[executor] + rooms_[executor] / kSlack)
    return std::nullopt;  // routing sheds work then
  bool all_noted = true;
  for (const Named& one : named) {
    const uint64_t at = (one.address - base_) / kPageBytes;
    if (one.address < base_ || at >= settled_at_.size()) continue;
    if (settled_at_[at] != executor && settled_at_[at] != kNoRegion) return std::nullopt;
    all_noted = all_noted && turns_.isNoted(at);
  }
  for (const Named& one : all_noted ? std::span<const Named>() : named) {
    const uint64_t at = (one.address - base_) / kPageBytes;
    if (one.address < base_ || at >= settled_at_.size() || settled_at_[at] != executor ||
        turns_.isNoted(at))
      continue;
    const Region& region = *page_of_[extent_at_[at]].region;
    turns_.note(at, pageOf(region), region.pages, true);
  }
  return draw(static_cast<directory::AgentId>(executor));
}

Home::Sent Home::draw(directory::AgentId agent) {
  const Age age = directory_.operation();
  directory_.sent(age, agent);
  return {.age = age, .oldest = directory_.oldest(), .regions = told_};
}

// Before it is placed there.
void Home::noteTraveller(ExtentId extent, uint8_t executor) {
  Page& page = page_of_[extent];
  const bool expected = std::exchange(page.expected, false);
  const bool comes = page.placed != executor && page.placed != kNowhere;
  if (comes || expected) travellers_[executor].push_back(extent);
}

// Runs in order.
bool Home::isIn(std::span<const Run> runs, ExtentId extent) {
  const auto behind =
      std::upper_bound(runs.begin(), runs.end(), extent,
                       [](ExtentId one, const Run& run) { return one < run.first; });
  return behind != runs.begin() && extent < std::prev(behind)->end;
}

void Home::arrive(unsigned executor, Age age, std::span<const Named> named) {
  const auto agent = static_cast<directory::AgentId>(executor);
  std::lock_guard lock(mutex_);
  const std::vector<Run> runs = runsOf(named);
  uint64_t cause = kNoCause;
  eachRegion(runs, [&](const Region& region) {
    if (cause == kNoCause && settledAt(region) == agent) cause = pageOf(region);
  });
  turns_.begin(executor, cause);
  eachRegion(runs, [&](const Region& region) { noteInTurn(region, settledAt(region) == agent); });
  std::vector<ExtentId> last = std::exchange(travellers_[executor], {});
  std::sort(last.begin(), last.end());
  last.erase(std::unique(last.begin(), last.end()), last.end());
  for (const ExtentId extent : last) {
    if (placed_[executor] >= holds_[executor]) break;  // what is named comes first, by makeRoom()
    Page& page = page_of_[extent];
    if (page.region == nullptr || page.region->removed || page.placed == kNowhere) continue;
    if (page.placed == executor) {  // the operation has named it, or it has stayed here
      if (isIn(runs, extent)) travellers_[executor].push_back(extent);
      continue;
    }
    page.expected = true;
    noteInTurn(*page.region, false);
    place(extent, agent);
    directory_.ask(age, agent, extent, 1, Mode::kOwn, actions_);
  }
  const Status asked = carryOut();
  assert(asked.ok());
}

// So many pages are on their way at once, into what executors keep free for such.
uint64_t Home::stepOf(unsigned executor) const {
  return std::clamp<uint64_t>(holds_[executor] / kStepShare, 1, kMostInStep);
}

// The executor that can hold the most beside what it has, and a step more; nullopt: none can hold
// anything.
std::optional<uint8_t> Home::roomiest(unsigned but) const {
  std::optional<uint8_t> best;
  uint64_t most = 0;
  for (unsigned i = 0; i < holds_.size(); ++i) {
    const uint64_t holds = holds_[i] + stepOf(i);
    if (i == but || holds <= placed_[i] || holds - placed_[i] <= most) continue;
    most = holds - placed_[i];
    best = static_cast<uint8_t>(i);
  }
  return best;
}

bool Home::makeRoom(unsigned executor, std::span<const Named> named) {
  std::lock_guard lock(mutex_);
  if (holds_[executor] == kNoLimit || !in_step_.empty()) return false;
  const std::vector<Run> runs = runsOf(named);
  const uint64_t then = costAt(executor, runs).then;
  if (then <= holds_[executor]) return false;
  const uint64_t pushed =
      pushOut(executor, std::min(then - holds_[executor], stepOf(executor)), runs);
  // If nobody has room, the operation's pages come first: their former owner has room then.
  if (pushed == 0 && pullIn(executor, stepOf(executor), runs) == 0) return false;
  const Status asked = carryOut();
  assert(asked.ok());
  return true;
}

// Pages that no operation has named for longest, at rest, go to others. Returns how many.
uint64_t Home::pushOut(unsigned executor, uint64_t pages, std::span<const Run> named) {
  std::vector<const Region*> coldest;
  for (const auto& [base, region] : regions_)
    if (!region.removed) coldest.push_back(&region);
  std::stable_sort(coldest.begin(), coldest.end(),
                   [](const Region* a, const Region* b) { return a->used < b->used; });
  uint64_t pushed = 0;
  for (const Region* const region : coldest) {
    const auto end = region->first + static_cast<ExtentId>(region->pages);
    for (ExtentId extent = region->first; extent < end; ++extent) {
      if (page_of_[extent].placed != executor || directory_.owner(extent) != executor ||
          directory_.phase(extent) != directory::Phase::kRest || isIn(named, extent))
        continue;
      const std::optional<uint8_t> taker = roomiest(executor);
      if (pushed == pages || !taker) return pushed;
      moveInStep(extent, *taker);
      status::grow(counters_.of(executor).pushed_bytes, kPageBytes);
      ++pushed;
    }
  }
  return pushed;
}

// Pages of them that others have. Returns how many.
uint64_t Home::pullIn(unsigned executor, uint64_t pages, std::span<const Run> named) {
  uint64_t pulled = 0;
  for (const Run& run : named)
    for (ExtentId extent = run.first; extent < run.end && pulled < pages; ++extent) {
      const directory::AgentId owner = directory_.owner(extent);
      if (owner == kNoAgent || owner == executor || page_of_[extent].placed == executor) continue;
      moveInStep(extent, static_cast<directory::AgentId>(executor));
      ++pulled;
    }
  return pulled;
}

void Home::moveInStep(ExtentId extent, directory::AgentId taker) {
  const auto [step, is_new] = step_ages_.try_emplace(taker);
  if (is_new) step->second = draw(taker).age;
  page_of_[extent].expected = false;
  place(extent, taker);
  in_step_.insert(extent);
  directory_.ask(step->second, taker, extent, 1, Mode::kOwn, actions_);
}

// The page is at rest again, or freed.
void Home::endMove(ExtentId extent) {
  if (in_step_.erase(extent) != 0 && in_step_.empty()) endStep();
}

void Home::endStep() {
  in_step_.clear();
  for (const auto& [taker, age] : step_ages_) directory_.cancel(age, actions_);
  step_ages_.clear();
  steps_.fetch_add(1, std::memory_order_release);
}

void Home::giveUpStep() {
  std::lock_guard lock(mutex_);
  if (in_step_.empty()) return;
  endStep();
  const Status told = carryOut();
  assert(told.ok());
}

void Home::cancel(Age age) {
  std::lock_guard lock(mutex_);
  directory_.cancel(age, actions_);
  const Status told = carryOut();
  assert(told.ok());
}

bool Home::complete(Age age) const {
  std::lock_guard lock(mutex_);
  return directory_.complete(age);
}

uint64_t Home::completed(unsigned executor) const {
  std::lock_guard lock(mutex_);
  return completed_[executor];
}

uint64_t Home::moved() const {
  std::lock_guard lock(mutex_);
  return moved_;
}

void Home::place(ExtentId extent, uint8_t executor) {
  uint8_t& placed = page_of_[extent].placed;
  if (placed == executor) return;
  if (Region* const region = page_of_[extent].region; region != nullptr)
    setSettled(*region, kNowhere);
  if (placed != kNowhere) --placed_[placed];
  placed = executor;
  if (placed != kNowhere) ++placed_[placed];
}

uint8_t Home::settledAt(const Region& region) const { return settled_at_[pageOf(region)]; }

void Home::setSettled(const Region& region, uint8_t executor) {
  if (const uint8_t now = settledAt(region); now == executor || now == kNoRegion) return;
  std::fill_n(settled_at_.begin() + static_cast<ptrdiff_t>(pageOf(region)), region.pages, executor);
}

// While something is under way for an extent its owner says nothing of where it will be.
void Home::settle(ExtentId extent) {
  const directory::AgentId owner = directory_.owner(extent);
  if (owner != kNoAgent && directory_.phase(extent) == directory::Phase::kRest)
    place(extent, owner);
}

// After a step that may have given it another owner.
void Home::noteOwner(ExtentId extent, uint8_t owner) {
  const uint8_t before = std::exchange(page_of_[extent].owner, owner);
  if (before == owner) return;
  if (before != kNowhere) status::shrink(counters_.of(before).owned_bytes, kPageBytes);
  if (owner != kNowhere) status::grow(counters_.of(owner).owned_bytes, kPageBytes);
  if (before == kNowhere || owner == kNowhere) return;
  status::grow(counters_.of(before).bytes_out, kPageBytes);
  status::grow(counters_.of(owner).bytes_in, kPageBytes);
}

uint64_t Home::placed(unsigned executor) const {
  std::lock_guard lock(mutex_);
  return placed_[executor];
}

std::optional<unsigned> Home::placedAt(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const ExtentId extent = extentOf(address);
  const uint8_t placed = extent == directory::kNone ? kNowhere : page_of_[extent].placed;
  return placed == kNowhere ? std::nullopt : std::optional<unsigned>(placed);
}

std::optional<unsigned> Home::ownerOf(uint64_t address) const {
  std::lock_guard lock(mutex_);
  const ExtentId extent = extentOf(address);
  const directory::AgentId owner = extent == directory::kNone ? kNoAgent : directory_.owner(extent);
  return owner == kNoAgent ? std::nullopt : std::optional<unsigned>(owner);
}

// --- records -------------------------------------------------------------------------------------

// To be filled.
Home::Outbox& Home::outbox(size_t executor) {
  has_records_.store(true, std::memory_order_release);
  return outboxes_[executor];
}

Status Home::carryOut() {
  Status status;
  for (const Action& action : actions_) {
    switch (action.kind) {
      case ActionKind::kSend:
        outbox(action.message.to).messages.push_back(action.message);
        break;
      case ActionKind::kReleased: {
        Region& region = *page_of_[action.extent].region;
        if (++region.released != region.pages) break;
        const uint64_t at = pageOf(region);
        for (uint64_t page = 0; page < region.pages; ++page) {
          noteOwner(extent_at_[at + page], kNowhere);
          page_of_[extent_at_[at + page]] = {};
          extent_at_[at + page] = directory::kNone;
        }
        pages_ -= region.pages;
        numbers_.give(region.first, static_cast<ExtentId>(region.pages));
        released_.push_back(region.base);
        regions_.erase(region.base);
        break;
      }
      default:
        status =
            Error{"the ownership protocol was violated at extent " + std::to_string(action.extent)};
    }
  }
  actions_.clear();
  return status;
}

Status Home::hear(unsigned executor, const Message& message) {
  if (message.from != executor)
    return Error{"it speaks for executor " + std::to_string(message.from)};
  if (message.to != kHome) {  // of a giver to a taker, in the order of the giver's messages
    if (message.to >= rooms_.size() || message.to == executor)
      return Error{"it speaks to executor " + std::to_string(message.to)};
    outbox(message.to).messages.push_back(message);
    return {};
  }
  if (message.kind == directory::MessageKind::kCompleted) ++completed_[executor];
  if (message.kind == directory::MessageKind::kDone) ++moved_;
  directory_.receive(message, actions_);
  const bool of_extent = message.kind != directory::MessageKind::kCompleted;
  if (Status carried = carryOut(); !carried.ok()) return carried;
  if (of_extent && message.extent < page_of_.size()) {
    const directory::AgentId owner = directory_.owner(message.extent);
    const bool rests = directory_.phase(message.extent) == directory::Phase::kRest;
    // A region stays settled whose extent rests where the region is.
    if (Region* const region = page_of_[message.extent].region;
        region != nullptr && !(rests && owner == settledAt(*region)))
      setSettled(*region, kNowhere);
    noteOwner(message.extent, owner);
    settle(message.extent);
    if (rests && in_step_.contains(message.extent)) {
      endMove(message.extent);
      return carryOut();
    }
  }
  return {};
}

Status Home::receive(unsigned executor, std::span<const std::byte> record) {
  forward::PagesHead head;
  if (record.size() < sizeof head) return refused(executor, "a record of pages without a head");
  std::memcpy(&head, record.data(), sizeof head);
  if (head.kind == forward::PagesKind::kFigures && head.count == 0 &&
      record.size() == sizeof head + sizeof(forward::FiguresRecord)) {
    noteFigures(executor, record.subspan(sizeof head));
    return {};
  }
  if (head.kind != forward::PagesKind::kMessages || head.count != 0)
    return refused(executor, "a record of pages that no executor sends");
  std::lock_guard lock(mutex_);
  std::vector<Message> messages;
  if (const auto decoded = pages::decode(record.subspan(sizeof head),
                                         static_cast<ExtentId>(page_of_.size()), messages);
      !decoded.ok())
    return refused(executor, decoded.error().message);
  for (const Message& message : messages) {
    if (const Status heard = hear(executor, message); !heard.ok())
      return refused(executor, heard.error().message);
  }
  return {};
}

// An executor's figures of the link are for people to see, and nothing follows from them.
void Home::noteFigures(unsigned executor, std::span<const std::byte> body) {
  forward::FiguresRecord figures;
  std::memcpy(&figures, body.data(), sizeof figures);
  std::lock_guard lock(mutex_);
  status::ExecutorCounters& counted = counters_.of(executor);
  counted.read_bytes.store(figures.read_bytes, std::memory_order_relaxed);
  counted.unchanged_bytes.store(figures.unchanged_bytes, std::memory_order_relaxed);
  counted.in_part_bytes.store(figures.in_part_bytes, std::memory_order_relaxed);
  counted.retained_bytes.store(figures.retained_bytes, std::memory_order_relaxed);
}

std::vector<std::byte> Home::take(unsigned executor) {
  std::lock_guard lock(mutex_);
  Outbox& outbox = outboxes_[executor];
  const auto isEmpty = [](const Outbox& one) {
    return one.regions.empty() && one.messages.empty();
  };
  forward::PagesHead head;
  std::vector<std::byte> body;
  if (!outbox.regions.empty()) {
    const size_t count = std::min(outbox.regions.size(), kMostRegions);
    head = {.kind = forward::PagesKind::kRegions, .count = static_cast<uint32_t>(count)};
    const auto bytes = std::as_bytes(std::span(outbox.regions).first(count));
    body.assign(bytes.begin(), bytes.end());
    outbox.regions.erase(outbox.regions.begin(),
                         outbox.regions.begin() + static_cast<ptrdiff_t>(count));
  } else if (!outbox.messages.empty()) {
    std::span<const Message> left = outbox.messages;
    body = pages::encode(left);
    outbox.messages.erase(outbox.messages.begin(),
                          outbox.messages.end() - static_cast<ptrdiff_t>(left.size()));
  } else {
    return {};
  }
  if (std::all_of(outboxes_.begin(), outboxes_.end(), isEmpty))
    has_records_.store(false, std::memory_order_release);
  std::vector<std::byte> record(sizeof head);
  std::memcpy(record.data(), &head, sizeof head);
  record.insert(record.end(), body.begin(), body.end());
  return record;
}

}  // namespace olpager::unified
