// Long: one function for each step of a touch of the CPU's.
#include "pager/managed/cpu_agent.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/held_signals.h"
#include "pager/counters/counters.h"

namespace olpager::pager {
namespace {

using directory::Age;
using directory::ExtentId;
using directory::Message;
using directory::MessageKind;
using directory::Mode;

constexpr uint64_t kSecond = 1'000'000'000;
// A touch that has waited for less may be served any moment.
constexpr uint64_t kSoon = 300'000;
// Operations ahead of touches that are under way at once.
constexpr size_t kMostAsking = 64;

uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

void count(std::atomic<uint64_t>& counter, uint64_t n = 1) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

}  // namespace

/// Lies on its thread's stack. That thread waits until it is done.
struct CpuAgent::Command {
  enum What : uint8_t { kAdd, kRemove, kWant, kAway, kPassed, kStop } what;
  std::unique_ptr<Region> region;  // kAdd
  ExtentId first = 0;
  uint32_t extents = 0;
  uint32_t away = 0;  // kAway: the answer
  pid_t thread = 0;   // kPassed
  Command* next = nullptr;
  std::atomic<uint32_t> done{0};
};

// ---- any thread

Result<std::unique_ptr<CpuAgent>> CpuAgent::start(directory::Exchange& exchange,
                                                  directory::AgentId id,
                                                  std::unique_ptr<UserFaults> faults,
                                                  std::function<void()> serve_others) {
  auto bell = std::make_shared<base::UniqueFd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!*bell)
    return Error{std::string("managed memory's faults can't be served: no eventfd (") +
                 std::strerror(errno) + "); raise the limit of open files"};
  std::unique_ptr<CpuAgent> agent(new CpuAgent(exchange, id, std::move(faults), bell));
  agent->serve_others_ = std::move(serve_others);
  int error = 0;
  {
    const base::BlockedSignals blocked;
    error = pthread_create(
        &agent->thread_, nullptr,
        [](void* self) -> void* {
          base::runsNoHandler();
          static_cast<CpuAgent*>(self)->serve();
          return nullptr;
        },
        agent.get());
  }
  if (error != 0)
    return Error{std::string("managed memory's faults can't be served: no thread (") +
                 std::strerror(error) + "); raise the limit of threads"};
  agent->runs_ = true;
  exchange.join(id, [bell] {
    const uint64_t one = 1;
    // A bell that is rung already stays so.
    [[maybe_unused]] const ssize_t written = write(bell->get(), &one, sizeof one);
  });
  return agent;
}

CpuAgent::CpuAgent(directory::Exchange& exchange, directory::AgentId id,
                   std::unique_ptr<UserFaults> faults, std::shared_ptr<base::UniqueFd> bell)
    : exchange_(exchange),
      id_(id),
      faults_(std::move(faults)),
      bell_(std::move(bell)),
      elsewhere_(id, *this, false) {
  operations_.reserve(256);
  runnable_.reserve(256);
  failed_.reserve(64);
  messages_.reserve(256);
}

CpuAgent::~CpuAgent() { stop(); }

/// On return the fault thread has done what the command says.
void CpuAgent::hand(Command& command) {
  if (!runs_) {
    obey(command);
    return;
  }
  command.next = commands_.load(std::memory_order_relaxed);
  while (!commands_.compare_exchange_weak(command.next, &command, std::memory_order_release,
                                          std::memory_order_relaxed)) {
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(bell_->get(), &one, sizeof one);
  command.done.wait(0, std::memory_order_acquire);
}

Status CpuAgent::add(ExtentId first, Frames& frames) {
  if (!runs_) return Error{"managed memory's faults are not served any more"};
  if (Status status = faults_->enlist(frames.address(), frames.bytes()); !status.ok())
    return status;
  Command command{.what = Command::kAdd, .region = std::make_unique<Region>()};
  command.region->first = first;
  command.region->frames = &frames;
  command.region->pages.resize(frames.pages());
  hand(command);
  return {};
}

void CpuAgent::remove(ExtentId first) {
  Command command{.what = Command::kRemove, .first = first};
  hand(command);
}

void CpuAgent::want(ExtentId first, uint32_t extents) {
  if (!runs_) return;
  Command command{.what = Command::kWant, .first = first, .extents = extents};
  hand(command);
}

uint32_t CpuAgent::awayOf(ExtentId first, uint32_t extents) {
  if (!runs_) return 0;
  Command command{.what = Command::kAway, .first = first, .extents = extents};
  hand(command);
  return command.away;
}

void CpuAgent::passed(pid_t thread) {
  // Pages that this thread has touched are held before its touch returns.
  if (!runs_ || holds_.load(std::memory_order_relaxed) == 0) return;
  Command command{.what = Command::kPassed, .thread = thread};
  hand(command);
}

void CpuAgent::forked() noexcept {
  runs_ = false;
  faults_.reset();
  bell_->reset();
  // The regions' views are not there: nothing of them is touched.
  for (std::unique_ptr<Region>& region : by_address_) (void)region.release();
  by_address_.clear();
  by_extent_.clear();
}

void CpuAgent::stop() noexcept {
  if (!runs_) return;
  Command command{.what = Command::kStop};
  hand(command);
  pthread_join(thread_, nullptr);
  runs_ = false;
}

// ---- the fault thread

void CpuAgent::serve() {
  pthread_setname_np(pthread_self(), "olpager-faults");
  // Holds end to the microsecond.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  while (!ended_) {
    std::array<pollfd, 2> waits{{{bell_->get(), POLLIN, 0}, {faults_->descriptor(), POLLIN, 0}}};
    // To go to sleep and be woken takes as long as what a touch waits for.
    const bool spins = isAwaited();
    const timespec most = spins ? timespec{} : untilNext();
    if (spins) sched_yield();
    ppoll(waits.data(), waits.size(), most.tv_sec < 0 ? nullptr : &most, nullptr);
    if ((waits[0].revents & POLLIN) != 0) {
      uint64_t rings;
      [[maybe_unused]] const ssize_t got = ::read(bell_->get(), &rings, sizeof rings);
    }
    takeCommands();
    takeMessages();
    takeFaults();
    expire();
    askWanted();
    settle();
    if (std::exchange(posted_, false) && serve_others_) serve_others_();
  }
}

/// A touch waits that may be served any moment.
bool CpuAgent::isAwaited() const {
  return std::any_of(operations_.begin(), operations_.end(), [time = now()](const auto& operation) {
    return operation.kind == Kind::kFault && !operation.held && time - operation.began < kSoon;
  });
}

void CpuAgent::takeCommands() {
  Command* newest = commands_.exchange(nullptr, std::memory_order_acquire);
  Command* oldest = nullptr;
  while (newest != nullptr) {
    Command* const next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest != nullptr) {
    Command& command = *oldest;
    oldest = command.next;
    obey(command);
    command.done.store(1, std::memory_order_release);
    command.done.notify_one();
  }
}

void CpuAgent::obey(Command& command) {
  switch (command.what) {
    case Command::kAdd: {
      Region* const region = command.region.get();
      elsewhere_.resize(region->first + region->frames->pages());
      by_extent_.insert(std::upper_bound(by_extent_.begin(), by_extent_.end(), region->first,
                                         [](ExtentId first, const Region* other) {
                                           return first < other->first;
                                         }),
                        region);
      by_address_.insert(
          std::upper_bound(by_address_.begin(), by_address_.end(), region->frames->address(),
                           [](uint64_t address, const std::unique_ptr<Region>& other) {
                             return address < other->frames->address();
                           }),
          std::move(command.region));
      break;
    }
    case Command::kRemove: {
      const Place place = placeOf(command.first);
      if (!place || place.index != 0) break;
      leave(*place.region);
      std::erase(by_extent_, place.region);
      std::erase_if(by_address_, [&](const std::unique_ptr<Region>& other) {
        return other.get() == place.region;
      });
      break;
    }
    case Command::kWant:
      wanted_.push_back({command.first, command.extents});
      break;
    case Command::kAway:
      for (ExtentId extent = command.first; extent - command.first < command.extents; ++extent) {
        const Place place = placeOf(extent);
        if (place && !place.page().granted && !place.page().gone && !place.page().lost)
          ++command.away;
      }
      break;
    case Command::kPassed:
      for (size_t i = operations_.size(); i-- > 0;) {
        if (operations_[i].held && operations_[i].thread == command.thread) complete(i);
      }
      break;
    case Command::kStop:
      closeAll();
      ended_ = true;
      break;
  }
}

/// Faults end: what is granted, and waits for its first touch to be published, gets that now.
void CpuAgent::closeAll() {
  while (!operations_.empty()) drop(operations_.size() - 1);
  for (const std::unique_ptr<Region>& region : by_address_) {
    for (uint32_t index = 0; index < region->pages.size(); ++index) {
      Page& page = region->pages[index];
      page.writes = true;
      if (!page.gone) publish({region.get(), index}, 0);
      if (!page.published) region->frames->close(index, 1);
    }
    faults_->dismiss(region->frames->address(), region->frames->bytes());
  }
}

/// Nobody waits in the region any more.
void CpuAgent::leave(Region& region) {
  const auto reaches = [&](const Operation& operation) {
    for (size_t i = 0; i < operation.count; ++i) {
      if (operation.extents[i] - region.first < region.pages.size()) return true;
    }
    return false;
  };
  for (size_t i = operations_.size(); i-- > 0;) {
    if (i < operations_.size() && reaches(operations_[i])) drop(i);
  }
  touches_.forget(region.first, region.frames->pages());
  region.frames->close(0, region.frames->pages());
  faults_->dismiss(region.frames->address(), region.frames->bytes());
}

CpuAgent::Place CpuAgent::placeOf(uint64_t address) const {
  auto after = std::upper_bound(by_address_.begin(), by_address_.end(), address,
                                [](uint64_t sought, const std::unique_ptr<Region>& other) {
                                  return sought < other->frames->address();
                                });
  if (after == by_address_.begin()) return {};
  Region& region = **--after;
  if (!region.frames->holds(address)) return {};
  return {&region,
          static_cast<uint32_t>((address - region.frames->address()) >> space::kPageShift)};
}

CpuAgent::Place CpuAgent::placeOf(ExtentId extent) const {
  auto after =
      std::upper_bound(by_extent_.begin(), by_extent_.end(), extent,
                       [](ExtentId sought, const Region* other) { return sought < other->first; });
  if (after == by_extent_.begin()) return {};
  Region& region = **--after;
  if (extent - region.first >= region.pages.size()) return {};
  return {&region, extent - region.first};
}

void CpuAgent::takeMessages() {
  messages_.clear();
  if (!exchange_.take(id_, messages_)) return;
  for (const Message& message : messages_) {
    if (message.kind == MessageKind::kForget) {
      if (const Place place = placeOf(message.extent)) place.page().gone = true;
      // The program has freed it: no touch of it has to get done.
      for (size_t i = operations_.size(); i-- > 0;) {
        if (i < operations_.size() && operations_[i].held && operations_[i].needs(message.extent))
          complete(i);
      }
    }
    elsewhere_.receive(message, here_);
  }
}

void CpuAgent::takeFaults() {
  std::array<UserFault, 32> faults;
  for (size_t got = faults.size(); got == faults.size();) {
    got = faults_->read(faults);
    for (size_t i = 0; i < got; ++i) fault(faults[i]);
  }
}

void CpuAgent::fault(const UserFault& fault) {
  const Place place = placeOf(fault.address);
  if (!place) {
    // A fault in a region that has left.
    faults_->wake(fault.address & ~(space::kPageBytes - 1), space::kPageBytes);
    return;
  }
  if (place.page().gone || place.page().lost) {
    end(place);
    return;
  }
  Page& page = place.page();
  if (page.published) {
    if (fault.write && !page.writable) {
      count(counters_.write_faults);
      allowWrites(place);
    } else {
      count(counters_.faults);
    }
    // The page has come since; or the program has thrown away the mapping of a part.
    const uint64_t base_page = place.frames().basePage();
    faults_->publish(fault.address & ~(base_page - 1), base_page, base_page, page.writable);
    faults_->wake(place.view(), space::kPageBytes);
    return;
  }
  count(counters_.faults);
  page.marked = false;
  Touches::Pages extents;
  const size_t count_of = together(place, fault.thread, extents);
  const std::span<const ExtentId> needed(extents.data(), count_of);
  // Nothing is known of those beside it. As long as some other touch waits for one of them, that
  // may be a write.
  for (const ExtentId extent : needed) {
    Page& other = placeOf(extent).page();
    other.writes =
        (fault.write && extent == place.extent()) || (other.writes && isWaitedFor(extent));
  }
  const auto serves = [&](const Operation& other) {
    return !other.held && std::all_of(needed.begin(), needed.end(),
                                      [&](ExtentId extent) { return other.needs(extent); });
  };
  const auto asked = std::find_if(operations_.begin(), operations_.end(), serves);
  if (asked == operations_.end()) {
    begin(Kind::kFault, needed, fault.thread);
    operations_.back().touched = fault.address;
  } else if (asked->kind == Kind::kAhead) {
    // Somebody waits for it now.
    --asking_;
    asked->kind = Kind::kFault;
    asked->thread = fault.thread;
    asked->touched = fault.address;
    asked->began = now();
  } else if (asked->thread != fault.thread) {
    asked->thread = 0;
  }
  askAhead(place, fault.thread);
}

/// Somebody has asked for it, and it has not come.
bool CpuAgent::isWaitedFor(ExtentId extent) const {
  return std::any_of(operations_.begin(), operations_.end(), [&](const Operation& operation) {
    return !operation.held && operation.needs(extent);
  });
}

/// The pages that the thread needs at one moment. Others have taken the page soon after it came: so
/// the access that it came for may need more than it.
size_t CpuAgent::together(const Place& place, pid_t thread, Touches::Pages& extents) const {
  size_t needed = 0;
  const Page& page = place.page();
  if (page.taken_at != 0 && page.taken_at - page.published_at < Hold::kMost) {
    Touches::Pages since;
    const size_t most = touches_.since(thread, place.extent(), since);
    for (size_t i = 0; i < most; ++i) {
      const Place other = placeOf(since[i]);
      if (other && !other.page().gone && !other.page().lost) extents[needed++] = since[i];
    }
  }
  // The page itself is not among them, so there is room for it.
  extents[needed++] = place.extent();
  return needed;
}

/// True if the page is at another agent or nobody's, and nothing has been asked yet.
bool CpuAgent::worthAsking(const Place& place) const {
  const Page& page = place.page();
  if (page.granted || page.gone || page.lost || asking_ >= kMostAsking) return false;
  return exchange_.owner(place.extent()) != id_ &&
         std::none_of(operations_.begin(), operations_.end(),
                      [&](const Operation& other) { return other.needs(place.extent()); });
}

void CpuAgent::askAhead(const Place& place, pid_t thread) {
  const Region& region = *place.region;
  const ExtentId end = region.first + region.frames->pages();
  const Touches::Run run = touches_.fault(thread, place.extent(), end);
  for (ExtentId extent = run.first; extent < run.first + run.count; ++extent) {
    const Place next = placeOf(extent);
    if (!worthAsking(next)) continue;
    next.page().marked = extent == run.first;
    next.page().writes = place.page().writes;
    count(counters_.ahead);
    begin(Kind::kAhead, {&extent, 1});
  }
}

void CpuAgent::begin(Kind kind, std::span<const ExtentId> extents, pid_t thread) {
  Operation operation{
      .age = exchange_.operation(id_), .kind = kind, .thread = thread, .began = now()};
  std::array<directory::Need, kMostExtents> needs;
  for (const ExtentId extent : extents) {
    needs[operation.count] = {extent, Mode::kOwn};
    operation.extents[operation.count++] = extent;
  }
  if (kind == Kind::kAhead) ++asking_;
  operations_.push_back(operation);
  elsewhere_.need(operation.age, {needs.data(), operation.count}, exchange_.oldest(), here_);
}

/// Asks for the next of what is wanted.
void CpuAgent::askWanted() {
  while (!wanted_.empty() && asking_ < kMostAsking) {
    Range& range = wanted_.front();
    if (range.count == 0) {
      wanted_.pop_front();
      continue;
    }
    const ExtentId extent = range.next++;
    --range.count;
    const Place place = placeOf(extent);
    if (!place) continue;
    place.page().marked = false;
    if (!worthAsking(place)) continue;
    place.page().writes = false;
    begin(Kind::kAhead, {&extent, 1});
  }
}

/// Carries out what has become possible, or impossible, meanwhile.
void CpuAgent::settle() {
  for (;;) {
    if (!failed_.empty()) {
      const Age age = failed_.back();
      failed_.pop_back();
      giveUp(age);
    } else if (!runnable_.empty()) {
      const Age age = runnable_.back();
      runnable_.pop_back();
      run(age);
    } else {
      return;
    }
  }
}

size_t CpuAgent::find(Age age) const {
  size_t i = 0;
  while (i < operations_.size() && operations_[i].age != age) ++i;
  return i;
}

void CpuAgent::run(Age age) {
  const size_t i = find(age);
  // If it has lost a page since, it is told again.
  if (i == operations_.size() || operations_[i].held || !elsewhere_.submit(age)) return;
  Operation& operation = operations_[i];
  operation.held = true;
  // Before it is published: passed() of the thread that waits finds it.
  holds_.fetch_add(1, std::memory_order_relaxed);
  for (size_t e = 0; e < operation.count; ++e) {
    const Place place = placeOf(operation.extents[e]);
    if (place && !(place.page().marked && operation.kind == Kind::kAhead))
      publish(place, operation.touched);
  }
  if (operation.kind == Kind::kAhead) {
    complete(i);
  } else {
    WhyCounters& why = pager::counters().why;
    count(why.cpu_faults);
    pager::add(why.cpu_wait_ns, now() - operation.began);
    operation.until = now() + hold(operation);
  }
}

/// A page that the operation needs has been freed.
void CpuAgent::giveUp(Age age) {
  const size_t i = find(age);
  if (i == operations_.size()) return;
  const Operation operation = operations_[i];
  drop(i);
  for (size_t e = 0; e < operation.count; ++e) {
    const Place place = placeOf(operation.extents[e]);
    if (!place) continue;
    if (place.page().gone || place.page().lost) {
      end(place);
    } else {
      // The threads that wait there ask again.
      faults_->wake(place.view(), space::kPageBytes);
    }
  }
}

/// A touch of what is freed or lost.
void CpuAgent::end(const Place& place) {
  if (place.page().gone) {
    place.frames().close(place.index, 1);
  } else {
    place.frames().lose(place.index);
  }
  faults_->wake(place.view(), space::kPageBytes);
}

void CpuAgent::complete(size_t i) {
  const Operation operation = operations_[i];
  operations_[i] = operations_.back();
  operations_.pop_back();
  if (operation.kind == Kind::kAhead) --asking_;
  holds_.fetch_sub(1, std::memory_order_relaxed);
  elsewhere_.complete(operation.age, here_);
}

/// Drops the operation, whatever it waits for.
void CpuAgent::drop(size_t i) {
  if (operations_[i].held) {
    complete(i);
    return;
  }
  const Operation operation = operations_[i];
  operations_[i] = operations_.back();
  operations_.pop_back();
  if (operation.kind == Kind::kAhead) --asking_;
  elsewhere_.cancel(operation.age, here_);
}

/// A page that somebody waits for comes first: that thread goes on while the rest comes, and each
/// step wakes the threads that wait for it.
void CpuAgent::publish(const Place& place, uint64_t touched) {
  Page& page = place.page();
  if (page.published || !page.granted) return;
  page.published = page.used = true;
  page.writable = page.writes || !faults_->protects();
  if (page.writable) place.frames().noteWrites(place.index);
  page.published_at = now();
  count(counters_.published);
  constexpr uint64_t kFirstStep = 64 << 10;
  const uint64_t base_page = place.frames().basePage();
  const uint64_t first = place.view(), last = first + space::kPageBytes;
  const bool by_steps = base_page < kFirstStep && touched >= first && touched < last;
  const uint64_t from = by_steps ? touched & ~(kFirstStep - 1) : first;
  bool there = true;
  uint64_t at = from;
  for (uint64_t step = by_steps ? kFirstStep : space::kPageBytes; at < last; step *= 2) {
    const uint64_t bytes = std::min(step, last - at);
    there &= faults_->publish(at, bytes, base_page, page.writable);
    at += bytes;
  }
  if (from > first) there &= faults_->publish(first, from - first, base_page, page.writable);
  if (there) return;
  page.lost = true;
  end(place);
}

/// The page is the CPU's alone: nobody is asked.
void CpuAgent::allowWrites(const Place& place) {
  place.page().writes = place.page().writable = true;
  place.frames().noteWrites(place.index);
  faults_->allowWrites(place.view(), space::kPageBytes);
}

/// How long its pages stay from now on.
uint64_t CpuAgent::hold(const Operation& operation) const {
  const uint64_t took = now() - operation.began;
  uint64_t longest = Hold::kLeast;
  for (size_t e = 0; e < operation.count; ++e) {
    if (const Place place = placeOf(operation.extents[e]))
      longest = std::max(longest, place.page().hold.after(took));
  }
  return longest;
}

/// Holds that are over, and touches that wait for long.
void CpuAgent::expire() {
  const uint64_t time = now();
  for (size_t i = operations_.size(); i-- > 0;) {
    if (i >= operations_.size()) continue;
    Operation& operation = operations_[i];
    if (operation.held) {
      if (operation.until <= time) complete(i);
    } else if (operation.kind == Kind::kFault && !operation.long_wait &&
               operation.began + kSecond <= time) {
      operation.long_wait = true;
      count(counters_.long_waits);
      if (const Place place = placeOf(operation.extents[0]))
        counters_.last_long_wait.store(place.view(), std::memory_order_relaxed);
    }
  }
}

/// Until expire() has something to do; negative: nothing will be.
timespec CpuAgent::untilNext() const {
  uint64_t next = UINT64_MAX;
  for (const Operation& operation : operations_) {
    if (operation.held) {
      next = std::min(next, operation.until);
    } else if (operation.kind == Kind::kFault && !operation.long_wait) {
      next = std::min(next, operation.began + kSecond);
    }
  }
  if (next == UINT64_MAX) return {.tv_sec = -1, .tv_nsec = 0};
  const uint64_t time = now(), left = next > time ? next - time : 0;
  return {.tv_sec = static_cast<time_t>(left / kSecond),
          .tv_nsec = static_cast<long>(left % kSecond)};
}

// ---- what the directory's steps ask for

void CpuAgent::fetch(ExtentId extent, directory::AgentId, directory::Number number,
                     directory::Content, OneThread&) {
  // The giver has put the bytes into the frame.
  if (const Place place = placeOf(extent)) place.page().used = true;
  elsewhere_.landed(extent, number, here_);
}

void CpuAgent::clear(ExtentId extent, OneThread&) {
  const Place place = placeOf(extent);
  if (!place || !place.page().used) return;
  std::memset(place.frames().alias(place.index), 0, space::kPageBytes);
}

void CpuAgent::grant(ExtentId extent, Mode mode, OneThread&) {
  const Place place = placeOf(extent);
  if (!place) return;
  Page& page = place.page();
  page.granted = mode == Mode::kOwn;
  if (page.granted || !page.published) return;
  // Others read it: a touch asks for it alone.
  page.published = false;
  place.frames().drop(place.index);
}

void CpuAgent::yield(ExtentId extent, OneThread&) {
  const Place place = placeOf(extent);
  if (!place) return;
  Page& page = place.page();
  page.granted = page.marked = false;
  count(counters_.given);
  if (!page.published) return;
  page.published = false;
  place.frames().drop(place.index);
  page.taken_at = now();
  noteBounce(pager::counters().why, place.view(), page.writable);
  if (page.hold.taken(page.taken_at)) count(counters_.contended);
}

}  // namespace olpager::pager
