// Long: an executor's whole life, from its connection to its loss.
#include "interpose/unified/executors.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "base/format.h"
#include "base/held_signals.h"
#include "base/kernel_faults.h"
#include "base/log.h"
#include "base/size.h"
#include "base/space/pages.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_functions.h"
#include "interpose/forward/session.h"
#include "interpose/forward/straight_copies.h"
#include "interpose/forward/threads.h"

namespace olpager::unified {

using forward::Aged;
using forward::Call;
using space::kPageBytes;
using status::RouteReason;

namespace {

using namespace std::chrono_literals;

// An operation that would move waits for the other ones while these get on, and then for as long as
// a large kernel may take.
constexpr auto kPatience = 1s;
constexpr auto kLongest = 10s;
constexpr size_t kMostKept = 8192;           // calls
constexpr size_t kMostKeptBytes = 64 << 20;  // of their records
constexpr auto kStepPoll = 50us;
constexpr auto kForRelease = 2s;   // until pages that were freed are room again, while none is
constexpr uint64_t kReserve = 16;  // one part of so many is kept for pages on their way
constexpr uint64_t kOthers = 10;   // one part of so many of VRAM is for what is no page of the view

std::vector<uint64_t> roomsOf(const forward::Session& session) {
  std::vector<uint64_t> rooms;
  for (const auto& executor : session.executors()) {
    const uint64_t pages = executor->description().vram / kPageBytes;
    rooms.push_back(std::max<uint64_t>(1, pages - pages / kOthers));
  }
  return rooms;
}

// In pages, less the part that is kept for pages on their way.
uint64_t withoutReserve(uint64_t bytes) {
  const uint64_t pages = bytes / kPageBytes;
  return pages - pages / kReserve;
}

// Pages of so many bytes of each executor, beside those that are on their way.
std::vector<uint64_t> pagesOf(const forward::Session& session,
                              uint64_t forward::Description::*bytes) {
  std::vector<uint64_t> of_each;
  for (const auto& executor : session.executors())
    of_each.push_back(withoutReserve(executor->description().*bytes));
  return of_each;
}

// Pages that several executors count, and that are there once: what the same memservers lend them.
// `lent`: of the bytes that pagesOf() was asked for.
uint64_t countedAgain(const forward::Session& session, uint64_t forward::Description::*lent) {
  std::map<uint64_t, uint64_t> once;  // by lenders: the most that one executor counts
  uint64_t bytes = 0;
  for (const auto& executor : session.executors()) {
    const forward::Description& one = executor->description();
    if (one.lenders == 0) continue;  // disks: each has its own
    uint64_t& most = once[one.lenders];
    bytes += std::min(most, one.*lent);
    most = std::max(most, one.*lent);
  }
  return withoutReserve(bytes);
}

uint64_t sum(const std::vector<uint64_t>& pages) {
  return std::accumulate(pages.begin(), pages.end(), uint64_t{0});
}

uint64_t nanoseconds(std::chrono::nanoseconds time) { return static_cast<uint64_t>(time.count()); }

}  // namespace

std::optional<int> attributeAt(forward::Session& session, unsigned executor,
                               CUdevice_attribute attribute, CUdevice device) {
  Call call(api::Symbol::kCuDeviceGetAttribute, &session);
  call.only(executor);
  call.needsNoContext();
  call.beforeInit();
  int value = 0;
  call.value(attribute);
  call.value(device);
  call.wants(&value);
  if (call.sync() != CUDA_SUCCESS) return std::nullopt;
  call.take(&value, 1);
  return value;
}

Executors::Executors(forward::Session& session, status::UnifiedCounters& counters, Routing routing,
                     unsigned one, bool managed)
    : session_(session),
      counters_(counters),
      holds_(pagesOf(session, &forward::Description::capacity)),
      told_(pagesOf(session, &forward::Description::told)),
      most_(sum(holds_) - countedAgain(session, &forward::Description::lent)),
      most_told_(sum(told_) - countedAgain(session, &forward::Description::told_lent)),
      routing_(routing),
      next_(one),
      home_(roomsOf(session), holds_, session.executors().front()->description().placed, most_,
            &counters),
      links_(
          home_, static_cast<unsigned>(session.executors().size()),
          {[this](unsigned executor, const std::string& why) {
             session_.lost(*session_.executors()[executor], why, false);
             heard();
           },
           [this] { heard(); }, [](unsigned executor) { return forward::countedLink(executor); }}),
      managed_(session, home_, counters, managed),
      event_clock_(session) {}

Executors::~Executors() { stopMover(); }

// The worker of `from` connects to that of `to`.
Status Executors::linkPeers(unsigned from, unsigned to) {
  const auto executors = session_.executors();
  Call call(forward::Operation::kPeerLink, &session_);
  call.only(from);
  call.needsNoContext();
  call.beforeInit();
  std::string how;
  CUresult result = CUDA_SUCCESS;
  const forward::PeerLinked linked = linkWorker(call, from, *executors[to], &how, &result);
  if (linked == forward::PeerLinked::kNo) return Error{how};
  base::logInfo("unified view: gpunodes %s and %s: %s", executors[from]->name().c_str(),
                executors[to]->name().c_str(), how.c_str());
  return {};
}

Status Executors::start() {
  const auto executors = session_.executors();
  const forward::Description& first = executors.front()->description();
  const auto cannot = [&](unsigned i, const std::string& why) {
    return Error{base::format("view = unified: gpunodes {} and {} can't be one device: {}",
                              executors.front()->name(), executors[i]->name(), why)};
  };
  if (first.placed_bytes == 0)
    return Error{"view = unified: gpunode " + executors.front()->name() +
                 " has no pager (OL_PAGER=off there?): its memory can't move"};
  for (unsigned i = 1; i < executors.size(); ++i) {
    const forward::Description& one = executors[i]->description();
    if (one.placed != first.placed || one.placed_bytes != first.placed_bytes)
      return cannot(i, "their settings va_base and va_size have to be the same");
    for (const CUdevice_attribute attribute : {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                               CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR}) {
      if (attributeAt(session_, 0, attribute, 0) != attributeAt(session_, i, attribute, 0))
        return cannot(
            i,
            "their GPUs are of unlike compute capability; CUDA_VISIBLE_DEVICES chooses some of "
            "one");
    }
  }
  for (unsigned i = 0; i < executors.size(); ++i) {
    const forward::Description& one = executors[i]->description();
    base::logInfo("unified view: gpunode %s: %s of VRAM, %s in all", executors[i]->name().c_str(),
                  base::formatSize(one.vram).c_str(), base::formatSize(one.capacity).c_str());
    if (const Status opened = links_.open(i, executors[i]->pageRoute()); !opened.ok())
      return Error{"view = unified: gpunode " + executors[i]->name() + ": " +
                   opened.error().message};
    for (unsigned j = 0; j < i; ++j) {
      const Status there = linkPeers(j, i);
      if (there.ok()) continue;
      if (const Status back = linkPeers(i, j); !back.ok())
        return Error{base::format(
            "view = unified: gpunodes {} and {} don't reach each other: {}; the other way round: "
            "{}",
            executors[j]->name(), executors[i]->name(), there.error().message,
            back.error().message)};
    }
  }
  base::logInfo("unified view: at most %s for the program",
                base::formatSize(most_ * kPageBytes).c_str());
  const std::vector<uint64_t> rooms = roomsOf(session_);
  for (size_t i = 0; i < rooms.size(); ++i) {
    status::ExecutorCounters& one = counters_.executors[i];
    executors[i]->name().copy(one.gpunode, sizeof one.gpunode - 1);
    one.room_bytes.store(rooms[i] * kPageBytes, std::memory_order_relaxed);
    one.capacity_bytes.store(holds_[i] * kPageBytes, std::memory_order_relaxed);
  }
  counters_.count.store(rooms.size(), std::memory_order_release);
  startMover();
  return {};
}

// Without the thread each operation that moves all waits for that.
void Executors::startMover() {
  const auto executors = session_.executors();
  same_kind_ = std::all_of(executors.begin(), executors.end(), [&](const auto& one) {
    return one->sharesMemory() == executors.front()->sharesMemory();
  });
  try {
    mover_ = base::ownThread([this] { runMover(); });
    mover_runs_ = true;
  } catch (const std::exception& error) {
    base::logDebug("unified view: no thread that moves (%s)", error.what());
  }
}

void Executors::leaves() {
  stopMover();
  managed_.stop();
  links_.close();
  const std::lock_guard lock(order_);
  std::string sent;
  unsigned long long kept = 0, pushed = 0;
  for (unsigned i = 0; i < session_.executors().size(); ++i) {
    const auto& routed = counters_.executors[i].routed;
    kept += counters_.executors[i].kept;
    pushed += counters_.executors[i].pushed_bytes / kPageBytes;
    sent += base::format(
        "{} {} at {}", i == 0 ? "" : ",",
        std::accumulate(std::begin(routed), std::end(routed), uint64_t{0}, std::plus{}),
        session_.executors()[i]->name());
  }
  const auto milliseconds = [](const status::Counter& time) {
    return static_cast<long long>(time / 1'000'000);
  };
  const auto times = [](uint64_t n) { return base::format("{} time{}", n, n == 1 ? "" : "s"); };
  base::logInfo(
      "unified view: operations:%s; all moved to another GPU %s (%lld ms until work at the former "
      "one was over, %lld ms for variables; %llu operations were kept meanwhile), pages %s, %llu "
      "of these to make room",
      sent.c_str(), times(counters_.moves).c_str(), milliseconds(counters_.finishing_ns),
      milliseconds(counters_.bringing_ns), kept, times(home_.moved()).c_str(), pushed);
}

// --- what is sent --------------------------------------------------------------------------------

// By the thread that moves. True when the active executor has nothing more to do: within
// `patience`, or later if operations complete meanwhile.
bool Executors::finishActive(std::chrono::milliseconds patience) {
  if (unfinished_.empty()) {
    for (const uint64_t context : forward::contextsOf(session_))
      unfinished_.push_back(std::make_unique<Unfinished>(session_, active(), context));
  }
  const auto begin = std::chrono::steady_clock::now();
  auto until = begin + patience;
  uint64_t completed = home_.completed(active());
  while (!unfinished_.empty()) {
    Unfinished& one = *unfinished_.back();
    const auto now = std::chrono::steady_clock::now();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    CUresult result = CUDA_SUCCESS;  // what has failed is for the program's own calls to tell
    if (one.begun && !one.call.finishWithin(std::max(0ms, left), &result)) {
      const uint64_t by_now = home_.completed(active());
      if (by_now == completed || now > begin + kLongest || stopping_) return false;
      completed = by_now;
      until = std::chrono::steady_clock::now() + patience;
      continue;
    }
    faulted_ |= base::isKernelFault(result);
    unfinished_.pop_back();
  }
  return true;
}

// By the thread that moves.
bool Executors::isFinished(std::chrono::milliseconds patience) {
  const auto begun = std::chrono::steady_clock::now();
  // Contexts that had not ended when they were last asked answer when they end.
  const bool waited_before = !unfinished_.empty();
  if (!finishActive(waited_before ? 0ms : patience)) {
    if (!waited_before && patience != 0ms && !session_.ended())
      base::warnOnce("unified move",
                     "unified view: work at gpunode %s has not ended within %lld ms (a kernel that "
                     "waits?): until it has, launches go there and their pages come to them",
                     session_.executor().name().c_str(),
                     static_cast<long long>(std::chrono::milliseconds(kPatience).count()));
    return false;
  }
  // The answer leaves out work that was launched since.
  if (waited_before && !finishActive(patience)) return false;
  finishing_ns_ = nanoseconds(std::chrono::steady_clock::now() - begun);
  status::grow(counters_.finishing_ns, finishing_ns_);
  // Nothing can be brought along after a kernel has ended a context: that executor tells of it.
  return !std::exchange(faulted_, false);
}

// By the thread that moves. The active executor is finished. `begun`: the move was asked for then.
bool Executors::moveTo(const Home::Routed& routed, std::chrono::steady_clock::time_point begun) {
  const auto finished = std::chrono::steady_clock::now();
  const unsigned from = active(), to = routed.executor;
  if (const Status brought = code_.bring(session_, from, to); !brought.ok()) {
    if (!session_.ended()) bindHere(brought.error().message);
    return false;
  }
  status::grow(counters_.bringing_ns, nanoseconds(std::chrono::steady_clock::now() - finished));
  active_.store(to, std::memory_order_release);
  forward::nameAlsoAt(session_.executors()[to]->slot(), session_.executors()[from]->slot());
  forward::sendPinnedNow(&session_);
  status::noteMove(counters_,
                   {.from = from,
                    .to = to,
                    .reason = routed.reason,
                    .begun_ns = nanoseconds(begun.time_since_epoch()),
                    .ended_ns = nanoseconds(std::chrono::steady_clock::now().time_since_epoch()),
                    .pages_there = routed.there,
                    .pages_coming = routed.coming,
                    .finishing_ns = finishing_ns_});
  const auto microseconds = [](auto time) {
    return static_cast<long long>(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  };
  base::logDebug(
      "unified view: all moves from gpunode %s to %s: %lld us until work there was over, %lld us "
      "more, for %llu page(s) beside %llu that are there",
      session_.executors()[from]->name().c_str(), session_.executors()[to]->name().c_str(),
      microseconds(finished - begun), microseconds(std::chrono::steady_clock::now() - finished),
      static_cast<unsigned long long>(routed.coming),
      static_cast<unsigned long long>(routed.there));
  return true;
}

// Under order_, or by the thread that moves. Other pages make room for the operation's pages first,
// in steps. A step may wait for a later call of the program's, as for pages of a kernel that spins.
// So a step in which no page has moved for kLongest is given up, and the operation is sent all the
// same.
Home::Sent Executors::send(unsigned executor, std::span<const forward::Named> named,
                           std::optional<uint64_t> united) {
  uint64_t moved = home_.moved();
  auto until = std::chrono::steady_clock::now() + kLongest;
  const auto isInVain = [&] {
    const auto now = std::chrono::steady_clock::now();
    const uint64_t by_now = home_.moved();
    if (by_now != moved) until = now + kLongest;
    moved = by_now;
    return now > until || session_.ended() || stopping_;
  };
  for (uint64_t steps = home_.steps(); home_.makeRoom(executor, named); steps = home_.steps()) {
    links_.flush();
    bool in_vain = isInVain();
    for (; home_.steps() == steps && !in_vain; in_vain = isInVain())
      std::this_thread::sleep_for(kStepPoll);
    if (!in_vain) continue;
    home_.giveUpStep();
    break;
  }
  return home_.send(executor, named, true, united);
}

// By the thread that moves. An operation goes to another executor, and the whole program with it;
// nullopt: all stays.
std::optional<Home::Sent> Executors::sendElsewhere(const Home::Routed& routed,
                                                   std::span<const forward::Named> named) {
  const auto begun = std::chrono::steady_clock::now();
  const unsigned to = routed.executor;
  // A host function that touches managed memory needs the order, and is waited for.
  const bool at_once = managed_.any() && session_.functions().outstanding();
  if (!isFinished(at_once ? 0ms : kPatience)) return std::nullopt;
  // Pages leave while variables are brought: pages that the operation names first, then the many
  // that later operations will name. The former executor gives at once all that it is asked for.
  const Home::Sent sent = send(to, named);
  links_.flush();
  struct Cancels {  // also where something is thrown: else its pages stay claimed for it
    Executors& self;
    const directory::Age age;
    bool moved = false;
    ~Cancels() {
      if (!moved) self.home_.cancel(age);
    }
  } cancels{*this, sent.age};
  cancels.moved = moveTo(routed, begun);
  if (!cancels.moved) return std::nullopt;
  home_.arrive(to, sent.age, named);
  links_.flush();
  return sent;
}

// Under order_. The executor to which the next operation is to go, if it can hold the pages.
std::optional<unsigned> Executors::asked() const {
  return routing_ == Routing::kOwner ? std::nullopt : std::optional(next_);
}

// Under order_. The operation's age, where it goes to the active executor; else where it goes.
std::optional<Aged> Executors::sendHere(const Uses& uses, Home::Routed* elsewhere) {
  const std::optional<unsigned> to = asked();
  std::optional<Home::Sent> sent;
  if (!to || *to == active()) sent = home_.sendInPlace(active(), uses.named);
  if (sent) return noteSent(uses, *sent, RouteReason::kInPlace);
  RouteReason reason = RouteReason::kInPlace;
  if (bound()) {
    reason = RouteReason::kBound;
  } else if (forward::capturing()) {
    reason = RouteReason::kCapturing;
  } else {
    *elsewhere = home_.routed(uses.named, active(), to);
    reason = elsewhere->reason;
    if (routing_ == Routing::kOne && elsewhere->executor != next_)
      base::warnOnce("unified route",
                     "unified view: gpunode %s, which the setting route names, can't hold all "
                     "pages that would be there: launches and copies go to other ones too (give "
                     "it more memory: olgpunode --vram, --memory; or leave route out)",
                     session_.executors()[next_]->name().c_str());
    if (elsewhere->executor != active()) return std::nullopt;
  }
  return noteSent(uses, send(active(), uses.named, elsewhere->united), reason);
}

// Under order_. Counts an operation that is sent to the active executor.
Aged Executors::noteSent(const Uses& uses, const Home::Sent& sent, RouteReason reason) {
  if (routing_ == Routing::kRoundRobin) next_ = (next_ + 1) % session_.executors().size();
  status::ExecutorCounters& counted = counters_.executors[active()];
  status::grow(counted.routed[static_cast<size_t>(reason)]);
  if (uses.launches) status::grow(counted.launches);
  return {sent.age, sent.oldest, sent.regions};
}

// Under order_, which is `released` while all moves. Sends an operation that goes elsewhere.
Aged Executors::sendRouted(const Uses& uses, const Home::Routed& elsewhere, Lock* released) {
  if (released != nullptr) released->unlock();
  std::optional<Home::Sent> sent = sendElsewhere(elsewhere, uses.named);
  if (released != nullptr) released->lock();
  RouteReason reason = elsewhere.reason;
  if (!sent) {
    reason = bound() ? RouteReason::kBound : RouteReason::kNotEnded;
    sent = send(active(), uses.named);
  }
  return noteSent(uses, *sent, reason);
}

// Returns with order_ held until leave(), or with keeping_ where the call is kept.
unsigned Executors::enter(const Uses& uses, Aged* aged, bool* kept) {
  Lock lock(order_, std::defer_lock);
  if (uses.at) {
    lock.lock();
  } else {
    *kept = uses.may_be_kept && !managed_.any() && joinsKept();
    if (*kept) return active();
    lock = whenNoneIsKept();
  }
  Home::Routed elsewhere;
  if (!uses.operates) {
    aged->regions = home_.told();  // it may name some
  } else if (uses.at) {
    const Home::Sent sent = send(*uses.at, uses.named);
    *aged = {sent.age, sent.oldest, sent.regions};
    status::grow(counters_.executors[*uses.at].routed[static_cast<size_t>(RouteReason::kInPlace)]);
  } else if (const std::optional<Aged> here = sendHere(uses, &elsewhere)) {
    *aged = *here;
  } else if (uses.may_be_kept && startsKeeping()) {
    *kept = true;
    return active();
  } else {
    *aged = sendRouted(uses, elsewhere, nullptr);
  }
  for (const forward::CodeThere& code : uses.code) code_.use(session_, code, uses.again);
  (void)lock.release();
  return uses.at.value_or(active());
}

// --- what is kept --------------------------------------------------------------------------------

// Under order_, while nothing is kept. True: a call may be kept now. Then keeping_ is held, and
// other threads find something kept as soon as they have the order.
bool Executors::startsKeeping() {
  if (!mover_runs_ || !same_kind_ || !unfinished_.empty() || managed_.any()) return false;
  Lock lock(keeping_);
  if (awaiting_ != 0) return false;
  keeps_.store(true, std::memory_order_release);
  (void)lock.release();
  return true;
}

bool Executors::isFull() const {
  return kept_.size() >= kMostKept || kept_bytes_ >= kMostKeptBytes;
}

// True: calls are kept, and one more goes behind them. Then keeping_ is held.
bool Executors::joinsKept() {
  if (!keeps_.load(std::memory_order_acquire)) return false;
  Lock lock(keeping_);
  // Those that wait for the end of what is kept come first.
  sent_.wait(lock, [&] { return kept_.empty() || (awaiting_ == 0 && !isFull()); });
  if (kept_.empty()) return false;
  (void)lock.release();
  return true;
}

// Under keeping_.
void Executors::keep(std::unique_ptr<forward::KeptCall> call) {
  kept_.push_back(std::move(call));
  kept_bytes_ += kept_.back()->bytes();
  due_.notify_one();
}

void Executors::behindKept(std::function<void()> what) {
  Lock lock(keeping_);
  if (kept_.empty()) {
    lock.unlock();
    return what();
  }
  auto note = std::make_unique<forward::KeptCall>();
  note->note = std::move(what);
  keep(std::move(note));
}

void Executors::awaitKept() {
  if (!keeps_.load(std::memory_order_acquire)) return;
  Lock lock(keeping_);
  ++awaiting_;
  sent_.wait(lock, [&] { return kept_.empty(); });
  --awaiting_;
  lock.unlock();
  sent_.notify_all();
}

// order_, under which only its holder keeps calls.
Executors::Lock Executors::whenNoneIsKept() {
  for (;;) {
    awaitKept();
    Lock lock(order_);
    if (!keeps_.load(std::memory_order_acquire)) return lock;
  }
}

// The mover's thread. After an exception nothing more can be sent in its order.
void Executors::runMover() {
  pthread_setname_np(pthread_self(), "olpager-mover");
  forward::thisThreadIsOurs();
  Lock keeping(keeping_);
  for (;;) {
    due_.wait(keeping, [&] { return stopping_ || !kept_.empty(); });
    if (kept_.empty()) return;
    keeping.unlock();
    Lock order(order_);
    keeping.lock();
    while (!kept_.empty()) {
      forward::KeptCall& first = *kept_.front();
      const size_t bytes = first.bytes();
      keeping.unlock();
      try {
        if (!session_.ended()) sendKept(order, first);
      } catch (const std::exception& error) {
        if (!order.owns_lock()) order.lock();
        session_.lost(session_.executor(), error.what(), false);
      }
      keeping.lock();
      const bool was_full = isFull();
      kept_bytes_ -= bytes;
      kept_.pop_front();
      if (kept_.empty()) keeps_.store(false, std::memory_order_release);
      if (kept_.empty() || was_full) sent_.notify_all();
    }
    keeping.unlock();
    session_.flush();
    order.unlock();
    keeping.lock();
  }
}

// Under order_, which is given up while all moves.
void Executors::sendKept(Lock& lock, forward::KeptCall& call) {
  if (call.note) return call.note();
  const Uses uses{.operates = call.operates,
                  .launches = call.launches,
                  .named = call.named,
                  .code = call.code,
                  .again = call.again};
  Aged aged;
  if (!uses.operates) {
    aged.regions = home_.told();
  } else {
    Home::Routed elsewhere;
    const std::optional<Aged> here = sendHere(uses, &elsewhere);
    aged = here ? *here : sendRouted(uses, elsewhere, &lock);
    status::grow(counters_.executors[active()].kept);
  }
  for (const forward::CodeThere& code : uses.code) code_.use(session_, code, uses.again);
  if (call.everywhere) {
    const unsigned begin = bound() ? active() : 0;
    const auto end = bound() ? begin + 1 : static_cast<unsigned>(session_.executors().size());
    for (unsigned i = begin; i < end; ++i)
      call.send(session_, i, forward::hasAge(call.record) ? draw(i) : aged);
  } else {
    call.send(session_, active(), aged);
  }
  links_.flush();
}

// Kept calls are sent first: the program may have meant its work to be done. No call is kept from
// now on.
void Executors::stopMover() {
  if (!mover_runs_.exchange(false)) return;
  Lock lock(keeping_);
  ++awaiting_;
  // Only what makes no progress is left.
  for (size_t left = SIZE_MAX; !kept_.empty() && kept_.size() < left;) {
    left = kept_.size();
    (void)sent_.wait_for(lock, kLongest, [&] { return kept_.empty(); });
  }
  stopping_ = true;
  lock.unlock();
  due_.notify_one();
  mover_.join();
}

Aged Executors::draw(unsigned executor) {
  const Home::Sent sent = home_.send(executor, {}, false);
  return {sent.age, sent.oldest, sent.regions};
}

std::shared_ptr<const forward::SharedVariable> Executors::share(forward::CodeThere code,
                                                                const std::string& name) {
  if (!code.state->readable) return nullptr;
  const Lock lock = whenNoneIsKept();
  auto variable = bound() ? nullptr : code_.share(session_, code, name);
  if (variable != nullptr) this->code().share(variable);
  return variable;
}

void Executors::contextGone(uint64_t context) {
  managed_.contextGone(context);
  event_clock_.contextGone(context);
  code().contextGone(context);
  const Lock lock = whenNoneIsKept();
  code_.contextGone(context);
}

void Executors::forget(uint64_t owner) {
  const Lock lock = whenNoneIsKept();
  code_.forget(owner);
}

void Executors::leave(bool sent, bool kept, const Aged& aged) {
  if (kept) {
    if (kept_.empty()) keeps_.store(false, std::memory_order_release);  // it was not left here
    return keeping_.unlock();
  }
  order_.unlock();
  if (aged.age == Aged::kNoOperation) return;
  if (!sent) home_.cancel(aged.age);
  links_.flush();
}

void Executors::bind(const std::string& what) {
  const Lock lock = whenNoneIsKept();
  if (bound()) return;
  const auto begun = std::chrono::steady_clock::now();
  // The program is bound to the executor to which all operations are to go.
  if (routing_ == Routing::kOne && !code().anyShared() && active() != next_ &&
      isFinished(kPatience))
    (void)moveTo({.executor = next_, .reason = RouteReason::kAsked}, begun);
  const Home::Routed first{.executor = 0, .reason = RouteReason::kVariables};
  if (code().anyShared() && active() != 0 && !(isFinished(kPatience) && moveTo(first, begun)))
    base::logWarn(
        "unified view: all stays at gpunode %s (work there does not end, or its variables can't be "
        "brought along): where memory holds the address of a variable, kernels will find another "
        "GPU's",
        session_.executor().name().c_str());
  if (!bound()) bindHere(what);
}

// By the thread that moves, or under order_ while nothing is kept.
void Executors::bindHere(const std::string& what) {
  bound_.store(true, std::memory_order_release);
  if (most_ - home_.freePages() > holds_[active()]) {
    // The program's pages would wait for room that never comes.
    session_.lost(
        session_.executor(),
        "the unified view: " + what +
            " needs all of the program's memory at one GPU, which can't hold it; see each "
            "GPU as a device (--view discrete)",
        false);
    return;
  }
  base::logWarn(
      "unified view: %s can be at one GPU alone so far: all runs at gpunode %s from now on, and "
      "pages come to it from the others",
      what.c_str(), session_.executor().name().c_str());
}

// --- memory --------------------------------------------------------------------------------------

bool Executors::add(uint64_t base, uint64_t bytes) {
  if (bytes > freeOf(holds_, most_) || !home_.add(base, bytes)) return false;
  links_.flush();
  return true;
}

void Executors::remove(uint64_t base) {
  managed_.remove(base);
  {
    const std::lock_guard lock(releasing_);
    ++leaving_;
  }
  home_.remove(base);
  links_.flush();
  heard();  // what no executor ever had is released at once
}

void Executors::heard() {
  const std::lock_guard lock(releasing_);
  const auto now = home_.released();
  bases_.insert(bases_.end(), now.begin(), now.end());
  leaving_ -= std::min(leaving_, now.size());
  gone_ += now.size();
  released_.notify_all();
}

std::vector<uint64_t> Executors::released(bool wait) {
  std::unique_lock lock(releasing_);
  if (wait) awaitRelease(lock, [&] { return !bases_.empty(); });
  return std::exchange(bases_, {});
}

void Executors::awaitReleased() {
  std::unique_lock lock(releasing_);
  awaitRelease(lock, [] { return false; });
}

// Until `enough`, or nothing is to come, or nothing is released for kForRelease.
void Executors::awaitRelease(std::unique_lock<std::mutex>& lock,
                             const std::function<bool()>& enough) {
  const auto over = [&] { return enough() || leaving_ == 0 || session_.ended(); };
  for (bool more = true; more && !over();) {
    const uint64_t before = gone_;
    released_.wait_for(lock, kForRelease, [&] { return gone_ != before || over(); });
    more = gone_ != before;
  }
}

// A program that is bound gets what the one GPU can hold.
uint64_t Executors::freeOf(const std::vector<uint64_t>& pages, uint64_t of_all) const {
  const uint64_t all = bound() ? pages[active()] : of_all;
  return (all - std::min(all, most_ - home_.freePages())) * kPageBytes;
}
uint64_t Executors::freeBytes() const { return freeOf(told_, most_told_); }
uint64_t Executors::totalBytes() const { return most_told_ * kPageBytes; }

}  // namespace olpager::unified
