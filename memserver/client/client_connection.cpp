// The agent: the thread that renews, takes completions and tells the Observer (client_core.h).
#include "memserver/client/client_core.h"

#include <poll.h>
#include <unistd.h>

#include <iterator>
#include <numeric>

#include "base/format.h"
#include "base/held_signals.h"
#include "base/log.h"

namespace olpager::memserver {

// ---- the agent

void ClientCore::wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void ClientCore::agent() {
  looked_ms_ = bootMs();
  for (;;) {
    takeCompletions();
    tick();
    issueWaiting();
    flushReleases();
    deliver();
    bool connect = false;
    std::optional<Result<LinkPtr>> result;
    {
      std::lock_guard lock(mutex_);
      result.swap(connect_result_);
      if (!result) {
        const bool connecting = connector_.joinable();
        if (closing_ && state_ == State::kDown && !connecting && done_.empty() && events_.empty())
          break;
        if (!first_error_.empty() && !options_.may_be_away) break;  // nobody has this client
        connect = state_ == State::kDown && !connecting && !closing_ && bootMs() >= retry_at_ms_;
      }
    }
    if (result) {
      connector_.join();
      connected(std::move(*result));
      continue;
    }
    if (connect) startConnecting();
    pollfd what[2] = {{queue_->eventFd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    poll(what, 2, static_cast<int>(kTickMs));
    if ((what[1].revents & POLLIN) != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
    }
  }
}

void ClientCore::takeCompletions() {
  Completion batch[32];
  for (;;) {
    const size_t got = queue_->poll(batch);
    if (got == 0) return;
    for (size_t i = 0; i < got; ++i) {
      Completion& completion = batch[i];
      switch (completion.kind) {
        case Completion::Kind::kRead:
        case Completion::Kind::kWrite:
          transferEnded(completion);
          break;
        case Completion::Kind::kMessage:
          messageArrived(completion);
          break;
        case Completion::Kind::kDown:
          linkIsDown(completion.link);
          break;
        default:
          break;
      }
      completion = Completion();
    }
    deliver();
  }
}

void ClientCore::linkIsDown(const LinkPtr& link) {
  const std::string reason = link->reason();
  Lock lock(mutex_);
  if (link != link_) return;  // it failed before it was this client's: connected() sees it
  if (told_up_ && !closing_) {
    const int64_t left = std::max<int64_t>(0, renewed_ms_ + patience() - bootMs());
    happen(Event::Kind::kDown,
           base::format("disconnected: {}{}", reason,
                        slabs_.empty() ? ""
                                       : base::format("; what is there is waited for, {} s at most",
                                                      left / 1000)));
  }
  if (state_ == State::kGreeting) attempt_failed_ = true;
  attemptFailed(base::format("{}: {}", options_.address, reason), true);
  told_up_ = false;
  stalled_ = false;
  link_.reset();
  state_ = State::kDown;
  for (auto& [id, slab] : slabs_) slab.key = 0;
  requests_.clear();
  to_release_.insert(to_release_.end(), unsure_.begin(), unsure_.end());
  unsure_.clear();
  for (auto& [number, wish] : wishes_) {
    wish->done = true;
    wish->why = base::format("{}: the connection is lost", options_.address);
  }
  wishes_.clear();
  retryLater();
  changed_.notify_all();
}

// Under the mutex. Gives up the first connection only: after an outage of kFirstMs, or at once by
// the memserver's own word.
void ClientCore::attemptFailed(const std::string& why, bool answered) {
  if (figures_.connects != 0 || !first_error_.empty()) return;
  if (!answered && bootMs() < opened_ms_ + kFirstMs) return;
  figures_.away = first_error_ = base::format("memserver {}", why);
}

// At once after a connection that was of use, or soon, if it may end by the same transfer again;
// later and later as long as they are of none.
void ClientCore::retryLater() {
  const int64_t soon = troubled_ ? kFirstRetryMs : 0;
  retry_ms_ = useful_ ? soon : std::clamp(retry_ms_ * 2, kFirstRetryMs, kLastRetryMs);
  if (given_up_) retry_ms_ = patience();
  useful_ = troubled_ = given_up_ = false;
  retry_at_ms_ = bootMs() + retry_ms_;
}

void ClientCore::startConnecting() {
  transport::ConnectOptions connect;
  connect.domain = options_.domain;
  connect.queue = queue_;
  connect.replaces = last_link_;
  connector_ = base::ownThread([this, connect] {
    bool lasts = false;
    auto asked = connect;
    asked.lasts = &lasts;
    auto link = options_.endpoint->connect(options_.address, asked);
    {
      std::lock_guard lock(mutex_);
      connect_lasts_ = lasts;
      connect_result_ = std::move(link);
    }
    wake();
  });
}

void ClientCore::connected(Result<LinkPtr> link) {
  std::string why = link.ok() ? "" : link.error().message;
  if (link.ok()) {
    last_link_ = link.value()->id();
    // The link's kDown has been passed over if it is down already; else it is still to come.
    if (link.value()->state() == transport::LinkState::kDown) {
      why = base::format("{}: {}", options_.address, link.value()->reason());
    }
  }
  {
    std::lock_guard lock(mutex_);
    if (!why.empty()) {
      attempt_failed_ = true;
      attemptFailed(why, !link.ok() && connect_lasts_);
      retryLater();
      changed_.notify_all();
    } else {
      link_ = link.value();
      state_ = State::kGreeting;
      heard_ms_ = bootMs();
      greeting_until_ms_ = heard_ms_ + kAnswerMs;
    }
  }
  if (why.empty()) {
    request(protocol::Hello{options_.label});
  } else {
    base::logDebug("memserver %s", why.c_str());
  }
}

// After the greeting, and after each answer to an attach.
void ClientCore::greeted(Lock& lock) {
  std::vector<LeaseId> leases;
  std::vector<SlabId> ids;
  for (const auto& [id, slab] : slabs_) {
    if (slab.key != 0) continue;
    leases.push_back(slab.lease);
    ids.push_back(id);
    if (leases.size() == protocol::kMaxLeases) break;
  }
  if (!leases.empty()) {
    greeting_until_ms_ = bootMs() + kAnswerMs;
    lock.unlock();
    request(protocol::Attach{std::move(leases)}, std::move(ids));
    lock.lock();
    return;
  }
  state_ = State::kUp;
  renewed_ms_ = std::max(renewed_ms_, greeted_ms_);
  moved_ = 0;
  told_up_ = true;
  attempt_failed_ = false;
  ++figures_.connects;
  figures_.away.clear();
  const transport::PeerInfo& peer = link_->peer();
  figures_.transport = peer.kind;
  figures_.node = peer.node;
  happen(Event::Kind::kUp, base::format("{}, {} MiB of {} MiB free; {}",
                                        figures_.connects == 1 ? "connected" : "connected again",
                                        capacity_.free >> 20, capacity_.total >> 20, peer.why));
  changed_.notify_all();
}

// Looked at while it is up: of the transfers that wait nothing has been moved for too long. Time in
// which this process did not run is not counted. `moved`: bytes, over this link. Under mutex_.
bool ClientCore::standsStill(int64_t since_last_ms, uint64_t moved) {
  const bool still = !transfers_.empty() && moved == moved_;
  still_ms_ = still ? still_ms_ + std::min(since_last_ms, 2 * kTickMs) : 0;
  moved_ = moved;
  return still_ms_ >= patience();
}

// In whole slices.
uint64_t ClientCore::movedOver(const transport::Link& link) {
  const transport::LinkStats stats = link.stats();
  uint64_t moved = 0;
  for (const auto* const bytes : {&stats.bytes_read, &stats.bytes_written})
    moved = std::accumulate(std::begin(*bytes), std::end(*bytes), moved);
  return moved;
}

// The clocks.
void ClientCore::tick() {
  LinkPtr drop;
  std::string why;
  bool renew = false, goodbye = false;
  const int64_t now = bootMs(), since_looked_ms = now - looked_at_moved_ms_;
  LinkPtr link;
  if (since_looked_ms >= kTickMs) {
    looked_at_moved_ms_ = now;
    std::lock_guard lock(mutex_);
    if (state_ == State::kUp) link = link_;
  }
  const uint64_t moved = link ? movedOver(*link) : 0;
  {
    Lock lock(mutex_);
    // A process that was stopped, or a machine that slept, has no right to complain about silence.
    const int64_t missed = now - looked_ms_ - 2 * kTickMs;
    looked_ms_ = now;
    if (missed > 0) {
      for (auto& [number, made] : requests_) made.waits_since_ms += missed;
      greeting_until_ms_ += missed;
    }
    if (state_ == State::kGreeting && now >= greeting_until_ms_) {
      attempt_failed_ = true;
      drop = link_;
      why = "no answer to the greeting";
    }
    if (state_ == State::kUp) {
      int64_t oldest = now;
      for (const auto& [number, made] : requests_) oldest = std::min(oldest, made.waits_since_ms);
      oldest = std::max(oldest, std::min(heard_ms_, now));
      const int64_t silent = requests_.empty() ? 0 : now - oldest;
      if (!stalled_ && silent >= options_.stall_ms) {
        stalled_ = true;
        happen(Event::Kind::kStalled, base::format("no answer for {} ms", silent));
      } else if (stalled_ && silent < options_.stall_ms) {
        stalled_ = false;
        happen(Event::Kind::kResumed, "it answers again");
      }
      if (silent >= patience()) {
        drop = link_;
        why = base::format("no answer for {} ms, most of its lease time", silent);
        loseAll(lock, why);
      }
      if (link && link == link_ && standsStill(since_looked_ms, moved) && !drop) {
        drop = link_;
        given_up_ = true;
        why = base::format(
            "it answers, but nothing has been read or written for {} ms, most of its lease time",
            still_ms_);
        still_ms_ = 0;
        loseAll(lock, why);
      }
      const int64_t period = std::min<int64_t>(kRenewMs, lease_ms_ / 8);
      const bool asked = std::any_of(requests_.begin(), requests_.end(), [](auto& r) {
        return r.second.type == protocol::Body(protocol::Renew{}).index();
      });
      renew = !asked && now - last_renewal_ms_ >= period && !closing_;
      if (renew) last_renewal_ms_ = now;
    } else if (!slabs_.empty() && attempt_failed_ && now - renewed_ms_ >= patience()) {
      loseAll(lock,
              base::format("not connected for {} ms, most of its lease time", now - renewed_ms_));
    }
    if (closing_) {
      for (auto& queue : waiting_) {
        for (const uint64_t id : queue) finish(id, TransferResult::kClosed);
        queue.clear();
      }
      if (state_ == State::kUp && !goodbye_said_) {
        goodbye = goodbye_said_ = true;
        greeting_until_ms_ = now + kGoodbyeMs;
      } else if (link_ && (state_ != State::kUp || now >= greeting_until_ms_)) {
        drop = link_;
        why = "the session ends";
      }
    }
    if (drop) state_ = State::kEnding;
  }
  if (renew) request(protocol::Renew{});
  if (goodbye && !request(protocol::Goodbye{})) {
    std::lock_guard lock(mutex_);
    greeting_until_ms_ = 0;
  }
  if (drop) drop->close(why);
}

void ClientCore::flushReleases() {
  std::vector<LeaseId> batch;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kUp || to_release_.empty() || !unsure_.empty() || closing_) return;
    const size_t count = std::min(to_release_.size(), protocol::kMaxLeases);
    batch.assign(to_release_.end() - static_cast<ptrdiff_t>(count), to_release_.end());
    to_release_.resize(to_release_.size() - count);
    unsure_ = batch;
  }
  if (request(protocol::Release{batch})) return;
  std::lock_guard lock(mutex_);
  to_release_.insert(to_release_.end(), unsure_.begin(), unsure_.end());
  unsure_.clear();
}

// In the order in which it happened: transfers first, then what was said about their slabs.
void ClientCore::deliver() {
  for (;;) {
    Done done;
    Event event;
    bool transfer = false;
    {
      std::lock_guard lock(mutex_);
      if (!done_.empty()) {
        transfer = true;
        done = done_.front();
        done_.pop_front();
      } else if (!events_.empty()) {
        event = std::move(events_.front());
        events_.pop_front();
      } else {
        return;
      }
    }
    if (transfer) {
      observer_.transferDone(done.context, done.result);
    } else {
      observer_.happened(event);
    }
  }
}

}  // namespace olpager::memserver
