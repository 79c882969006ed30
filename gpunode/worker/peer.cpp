#include "gpunode/worker/peer.h"

#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using transport::Completion;
using transport::Outcome;

constexpr auto kPeerLook = 100ms;    // at the clock, beside what wakes
constexpr size_t kMostEarly = 4096;  // events of copies that were not begun here
constexpr size_t kMostEarlyBytes = 16 << 20;
constexpr size_t kMostEnded = 1024;

}  // namespace

Peer::~Peer() {
  if (link_ != nullptr) link_->close("the peer is gone");
}

void Peer::run(transport::QueuePtr queue, transport::LinkPtr link) {
  if (link != nullptr) {
    std::lock_guard lock(mutex_);
    link_ = link;
    if (state_ == State::kMade) {
      state_ = State::kUp;
      if (pages_ != nullptr) pages_->peerUp(slot_, number_);
    } else {  // closed meanwhile
      link->close("not wanted any more");
    }
  }
  std::thread([self = shared_from_this(), queue = std::move(queue)] {
    self->listen(queue);
  }).detach();
}

void Peer::listen(const transport::QueuePtr& queue) {
  constexpr auto kFirst = 15s;  // a handshake that is never finished says nothing
  const auto begun = std::chrono::steady_clock::now();
  std::array<Completion, 16> happened;
  for (;;) {
    const size_t count = queue->wait(happened, kPeerLook);
    for (size_t i = 0; i < count; ++i) {
      take(happened[i]);
      happened[i] = {};
    }
    std::lock_guard lock(mutex_);
    const bool late = std::chrono::steady_clock::now() - begun > kFirst;
    if (state_ == State::kMade && late) state_ = State::kDown;
    // One that was closed before its link came hears of that still, to close it.
    if (state_ == State::kDown && (link_ != nullptr || late)) {
      changed_.notify_all();
      return;
    }
  }
}

void Peer::take(Completion& completion) {
  std::unique_lock lock(mutex_);
  switch (completion.kind) {
    case Completion::Kind::kUp:
      link_ = completion.link;
      if (state_ == State::kMade) {
        state_ = State::kUp;
        if (pages_ != nullptr) pages_->peerUp(slot_, number_);
      } else {  // closed meanwhile
        lock.unlock();
        completion.link->close("not wanted any more");
        return;
      }
      break;
    case Completion::Kind::kDown:
      state_ = State::kDown;
      base::logInfo("the link to the worker of session %u is down: %s", slot_,
                    completion.link->reason().c_str());
      for (auto& [number, copy] : copies_) copy->events.push_back({});
      if (pages_ != nullptr) pages_->peerLost(slot_, number_, refused_);
      break;
    case Completion::Kind::kRead: {
      const auto found = reads_.extract(completion.context);
      if (found.empty()) break;
      Event event;
      event.kind = Event::Kind::kRead;
      event.read = found.mapped().second;
      event.good = completion.outcome == Outcome::kOk;
      if (found.mapped().first != nullptr) {
        found.mapped().first->events.push_back(event);
      } else {
        using ReadIs = PageHearer::ReadIs;
        const bool cut = completion.outcome == Outcome::kLinkDown;
        pages_->read(event.read, event.good ? ReadIs::kGood : cut ? ReadIs::kCut : ReadIs::kFailed);
      }
      ++rooms_;
      break;
    }
    case Completion::Kind::kCredit:
      ++rooms_;
      break;
    case Completion::Kind::kMessage:
      hear(completion);
      break;
    default:
      break;
  }
  changed_.notify_all();
}

// Under mutex_.
void Peer::hear(const Completion& completion) {
  if (refused_) return;
  PeerMessage said;
  const auto bytes = completion.message.bytes();
  if (bytes.size() >= sizeof said) std::memcpy(&said, bytes.data(), sizeof said);
  const uint64_t behind = bytesBehind(said);
  if (bytes.size() != sizeof said + (behind <= kInlineBytes ? behind : 0)) {
    nonsense("a message of another length");
    return;
  }
  if (said.says == PeerSays::kPage && pages_ != nullptr)
    return pages_->offered(slot_, number_, said, bytes.subspan(sizeof said));
  Event event;
  event.bytes.assign(bytes.begin() + sizeof said, bytes.end());
  event.said = said;
  switch (said.says) {
    case PeerSays::kOffer:
    case PeerSays::kBytes:
      event.kind = Event::Kind::kOffer;
      break;
    case PeerSays::kTaken:
      event.kind = Event::Kind::kTaken;
      break;
    case PeerSays::kOver:
      event.kind = Event::Kind::kOver;
      break;
    default:
      nonsense("a message of no known kind");
      return;
  }
  add(said.copy, std::move(event));
}

// Under mutex_.
void Peer::add(uint64_t number, Event event) {
  if (const auto found = copies_.find(number); found != copies_.end()) {
    if (found->second->events.size() > kMostEarly) return nonsense("more than a copy has pieces");
    found->second->events.push_back(std::move(event));
    return;
  }
  if (ended_.contains(number)) return;
  if (early_events_ >= kMostEarly || early_bytes_ > kMostEarlyBytes)
    return nonsense("too much for copies that nobody has asked for");
  early_bytes_ += event.bytes.size();
  early_[number].push_back(std::move(event));
  ++early_events_;
}

// Under mutex_.
void Peer::nonsense(const char* what) {
  refused_ = true;
  base::logWarn("the worker of session %u says what makes no sense (%s): the link to it ends",
                slot_, what);
  if (link_ != nullptr) link_->close(std::string("nonsense: ") + what);
}

void Peer::close(const std::string& why) {
  transport::LinkPtr link;
  {
    std::lock_guard lock(mutex_);
    link = link_;
    if (link == nullptr) state_ = State::kDown;
    changed_.notify_all();
  }
  if (link != nullptr) link->close(why);
}

bool Peer::waitUp(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return state_ != State::kMade; });
  return state_ == State::kUp;
}

bool Peer::isUp() {
  std::lock_guard lock(mutex_);
  return state_ == State::kUp;
}

bool Peer::is(transport::LinkKind kind) {
  std::lock_guard lock(mutex_);
  return link_ != nullptr && link_->peer().kind == kind;
}

void Peer::count(status::LinkBytes& into) {
  std::lock_guard lock(mutex_);
  if (link_ == nullptr) return;
  const transport::LinkStats stats = link_->stats();
  const status::CountedBytes more = counted_.since(stats);
  status::count(into.sent, more.sent);
  status::count(into.received, more.received);
  const bool up = link_->state() == transport::LinkState::kUp;
  into.transport.store(up ? 1 + static_cast<uint64_t>(link_->peer().kind) : 0,
                       std::memory_order_relaxed);
  if (up) status::noteRails(into.rails, stats.rails);
  status::setName(into.peer, link_->peer().address);
  into.end.store(static_cast<uint64_t>(status::LinkEnd::kWorker), std::memory_order_release);
}

std::string Peer::describe() {
  std::lock_guard lock(mutex_);
  return link_ != nullptr ? link_->peer().why : "";
}

Peer::CopyPtr Peer::begin(uint64_t number) {
  std::lock_guard lock(mutex_);
  auto copy = std::make_shared<Copy>();
  if (ended_.contains(number) || !copies_.emplace(number, copy).second) return nullptr;
  copy->number = number;
  if (const auto found = early_.extract(number); !found.empty()) {
    early_events_ -= found.mapped().size();
    for (Event& event : found.mapped()) {
      early_bytes_ -= event.bytes.size();
      copy->events.push_back(std::move(event));
    }
  }
  if (state_ == State::kDown) copy->events.push_back({});
  return copy;
}

void Peer::end(const CopyPtr& copy) {
  std::lock_guard lock(mutex_);
  copies_.erase(copy->number);
  ended_.insert(copy->number);
  if (ended_.size() > kMostEnded) ended_.erase(ended_.begin());
}

bool Peer::next(const CopyPtr& copy, Event& event, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto some = [&] { return !copy->events.empty(); };
  // To wait for no time at all takes the timer's slack, some 50 us.
  if (timeout.count() == 0 ? !some() : !changed_.wait_for(lock, timeout, some)) return false;
  event = std::move(copy->events.front());
  copy->events.pop_front();
  return true;
}

void Peer::stop(uint64_t number) {
  std::lock_guard lock(mutex_);
  Event event;
  event.kind = Event::Kind::kStopped;
  add(number, std::move(event));
  changed_.notify_all();
}

void Peer::settle(const CopyPtr& copy, std::chrono::milliseconds patience) {
  bool waiting = say({PeerSays::kOver, 0, copy->number, 0, 0, 0, {}});
  const auto until = std::chrono::steady_clock::now() + patience;
  Event event;
  do {
    if (waiting && std::chrono::steady_clock::now() >= until) {
      waiting = false;
      close("a copy was given up, and the other end does not say that it reads no more");
    }
    if (!next(copy, event, kPeerLook)) event.kind = Event::Kind::kStopped;
  } while (event.kind != Event::Kind::kOver && event.kind != Event::Kind::kLost);
}

bool Peer::say(const PeerMessage& message, std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (state_ != State::kUp) return false;
    const auto link = link_;
    const uint64_t rooms = rooms_;
    lock.unlock();
    const Outcome outcome =
        link->send(transport::MessageClass::kNotice, std::as_bytes(std::span(&message, 1)), bytes);
    lock.lock();
    if (outcome == Outcome::kOk) return true;
    if (outcome != Outcome::kNoCredit && outcome != Outcome::kFull) return false;
    changed_.wait_for(lock, kPeerLook, [&] { return rooms_ != rooms || state_ != State::kUp; });
  }
}

bool Peer::read(const CopyPtr& copy, uint64_t read, const transport::LocalRange& into,
                const transport::RemoteRange& from) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (state_ != State::kUp) return false;
    const auto link = link_;
    const uint64_t rooms = rooms_, context = next_read_++;
    // There before its completion can be.
    reads_.emplace(context, std::pair{copy, read});
    lock.unlock();
    const Outcome outcome =
        link->read(std::span(&into, 1), from, transport::Class::kDemand, context);
    lock.lock();
    if (outcome == Outcome::kOk) return true;
    reads_.erase(context);
    if (outcome != Outcome::kFull) {
      if (outcome == Outcome::kBadRange || outcome == Outcome::kTooLong)
        nonsense("an offer that can't be read");
      return false;
    }
    changed_.wait_for(lock, kPeerLook, [&] { return rooms_ != rooms || state_ != State::kUp; });
  }
}

}  // namespace olpager::gpunode
