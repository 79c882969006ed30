#include "coherence/transport/faults/faulty.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>

#include "base/fd.h"

namespace olpager::transport {
namespace {

using Clock = std::chrono::steady_clock;

/// The plan's dice.
class Dice {
 public:
  Dice(const FaultPlan& the_plan, FaultCounts* count_into)
      : plan(the_plan), counts(count_into), random_(the_plan.seed) {}
  bool roll(uint32_t chance) {
    if (chance == 0) return false;
    std::lock_guard lock(mutex_);
    return random_() % 1'000'000 < chance;
  }
  uint64_t number(uint64_t below) {
    std::lock_guard lock(mutex_);
    return below == 0 ? 0 : random_() % below;
  }
  void count(std::atomic<uint64_t> FaultCounts::*which) const {
    if (counts != nullptr) ++(counts->*which);
  }
  const FaultPlan plan;
  FaultCounts* const counts;

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

class FaultyQueue;

class FaultyLink final : public Link, public std::enable_shared_from_this<FaultyLink> {
 public:
  FaultyLink(LinkPtr inner, std::shared_ptr<Dice> dice)
      : inner_(std::move(inner)), dice_(std::move(dice)) {}

  Outcome read(std::span<const LocalRange> into, const RemoteRange& from, Class klass,
               uint64_t context, OperationId* id) override {
    return post(into, context,
                [&](uint64_t own) { return inner_->read(into, from, klass, own, id); });
  }
  Outcome write(std::span<const LocalRange> from, const RemoteRange& into, Class klass,
                uint64_t context, OperationId* id) override {
    return post(from, context,
                [&](uint64_t own) { return inner_->write(from, into, klass, own, id); });
  }
  Outcome askMemory(const RemoteKey& key, uint64_t context) override {
    return post({}, context, [&](uint64_t own) { return inner_->askMemory(key, own); });
  }
  void raise(OperationId id, Class klass) override { inner_->raise(id, klass); }
  Outcome send(MessageClass klass, std::span<const std::byte> head,
               std::span<const std::byte> body) override {
    maybeDrop();
    return inner_->send(klass, head, body);
  }
  uint32_t maxMessageBytes() const override { return inner_->maxMessageBytes(); }
  LinkState state() const override { return inner_->state(); }
  std::string reason() const override { return inner_->reason(); }
  void close(const std::string& reason) override { inner_->close(reason); }
  const PeerInfo& peer() const override { return inner_->peer(); }
  const DomainPtr& domain() const override { return inner_->domain(); }
  std::string id() const override { return inner_->id(); }
  LinkStats stats() const override { return inner_->stats(); }

  struct Posted {
    uint64_t context = 0;
    std::vector<LocalRange> local;
  };
  /// The record of a completion of the inner link.
  Posted done(uint64_t own) {
    std::lock_guard lock(mutex_);
    Posted posted = std::move(posted_[own]);
    posted_.erase(own);
    return posted;
  }

 private:
  template <typename Post>
  Outcome post(std::span<const LocalRange> local, uint64_t context, Post&& inner) {
    maybeDrop();
    uint64_t own = 0;
    {
      std::lock_guard lock(mutex_);
      own = ++next_;
      posted_[own] = {context, {local.begin(), local.end()}};
    }
    const Outcome outcome = inner(own);
    if (outcome != Outcome::kOk) done(own);
    return outcome;
  }
  void maybeDrop() {
    if (!dice_->roll(dice_->plan.drop)) return;
    dice_->count(&FaultCounts::dropped);
    inner_->close("a fault of the plan: dropped");
  }
  void messageTaken(MessageClass, size_t) override {}  // the inner message gives its room back

  const LinkPtr inner_;
  const std::shared_ptr<Dice> dice_;
  std::mutex mutex_;
  uint64_t next_ = 0;
  std::unordered_map<uint64_t, Posted> posted_;
};

class FaultyQueue final : public CompletionQueue, public std::enable_shared_from_this<FaultyQueue> {
 public:
  FaultyQueue(QueuePtr inner, std::shared_ptr<Dice> dice)
      : inner_(std::move(inner)), dice_(std::move(dice)) {}

  const QueuePtr& inner() const { return inner_; }

  std::shared_ptr<FaultyLink> wrap(const LinkPtr& link) {
    std::lock_guard lock(mutex_);
    auto& known = links_[link.get()];
    if (!known) known = std::make_shared<FaultyLink>(link, dice_);
    return known;
  }

  size_t poll(std::span<Completion> into) override {
    fetch(std::chrono::microseconds(0));
    return take(into);
  }

  size_t wait(std::span<Completion> into, std::chrono::microseconds timeout) override {
    const auto end = Clock::now() + timeout;
    for (;;) {
      if (const size_t got = take(into); got != 0) return got;
      const auto now = Clock::now();
      if (now >= end) return 0;
      auto most = std::chrono::duration_cast<std::chrono::microseconds>(end - now);
      if (const auto due = nextDue(); due) {
        most = std::min(
            most, std::max(std::chrono::microseconds(1),
                           std::chrono::duration_cast<std::chrono::microseconds>(*due - now)));
      }
      fetch(most);
    }
  }

  // Held-back completions ring no bell of the inner queue: a thread of its own does.
  int eventFd() override {
    std::lock_guard lock(mutex_);
    if (!bell_) {
      bell_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      std::thread([weak = weak_from_this()] {
        while (auto self = weak.lock()) {
          self->fetch(std::chrono::milliseconds(1));
          self->ringIfDue();
        }
      }).detach();
    }
    return bell_.get();
  }

 private:
  void fetch(std::chrono::microseconds timeout) {
    Completion batch[16];
    const size_t got = timeout.count() == 0 ? inner_->poll(batch) : inner_->wait(batch, timeout);
    for (size_t i = 0; i < got; ++i) arrived(std::move(batch[i]));
  }

  void arrived(Completion completion) {
    const LinkPtr inner = completion.link;
    const auto link = wrap(inner);
    completion.link = link;
    const bool operation = completion.kind == Completion::Kind::kRead ||
                           completion.kind == Completion::Kind::kWrite ||
                           completion.kind == Completion::Kind::kMemory;
    std::vector<LocalRange> local;
    if (operation) {
      auto posted = link->done(completion.context);
      completion.context = posted.context;
      local = std::move(posted.local);
    }
    const FaultPlan& plan = dice_->plan;
    if (completion.kind == Completion::Kind::kMessage && !completion.message.bytes().empty()) {
      auto& bytes = completion.message.mutableBytes();
      if (dice_->roll(plan.corrupt)) {
        bytes[dice_->number(bytes.size())] ^= std::byte{1} << static_cast<int>(dice_->number(8));
        dice_->count(&FaultCounts::corrupted);
      }
      if (dice_->roll(plan.truncate)) {
        bytes.resize(dice_->number(bytes.size()));
        completion.bytes = bytes.size();
        dice_->count(&FaultCounts::truncated);
      }
    }
    if (completion.kind == Completion::Kind::kRead && completion.outcome == Outcome::kOk) {
      if (dice_->roll(plan.corrupt)) {
        const LocalRange& range = local[dice_->number(local.size())];
        std::byte* place = range.region->base() + range.offset + dice_->number(range.length);
        *place ^= std::byte{1} << static_cast<int>(dice_->number(8));
        dice_->count(&FaultCounts::corrupted);
      }
      if (dice_->roll(plan.truncate)) {
        // The link broke before its last bytes came.
        const LocalRange& range = local.back();
        std::memset(range.region->base() + range.offset + range.length / 2, 0xdd,
                    range.length - range.length / 2);
        completion.outcome = Outcome::kLinkDown;
        dice_->count(&FaultCounts::truncated);
        inner->close("a fault of the plan: truncated");
      }
    }
    std::lock_guard lock(mutex_);
    auto due = Clock::now();
    if (dice_->roll(plan.delay)) {
      due += std::chrono::microseconds(dice_->number(plan.delay_us) + 1);
      dice_->count(&FaultCounts::delayed);
    }
    // Operations pass each other; messages stay in their order, and kDown comes last.
    auto& last = last_due_[link.get()];
    if (completion.kind == Completion::Kind::kDown) {
      due = std::max(due, last.any);
      last_due_.erase(link.get());
      links_.erase(inner.get());
    } else {
      if (!operation) due = last.messages = std::max(due, last.messages);
      last.any = std::max(last.any, due);
    }
    held_.emplace(due, std::move(completion));  // equal times stay in order
  }

  size_t take(std::span<Completion> into) {
    std::lock_guard lock(mutex_);
    size_t taken = 0;
    const auto now = Clock::now();
    while (taken < into.size() && !held_.empty() && held_.begin()->first <= now) {
      into[taken++] = std::move(held_.begin()->second);
      held_.erase(held_.begin());
    }
    if (taken == 0 && bell_) {
      uint64_t rung = 0;
      if (read(bell_.get(), &rung, sizeof rung) < 0) return 0;
    }
    return taken;
  }

  std::optional<Clock::time_point> nextDue() {
    std::lock_guard lock(mutex_);
    if (held_.empty()) return std::nullopt;
    return held_.begin()->first;
  }

  void ringIfDue() {
    std::lock_guard lock(mutex_);
    if (held_.empty() || held_.begin()->first > Clock::now()) return;
    const uint64_t one = 1;
    if (write(bell_.get(), &one, sizeof one) < 0) return;
  }

  struct LastDue {
    Clock::time_point messages{}, any{};
  };
  const QueuePtr inner_;
  const std::shared_ptr<Dice> dice_;
  std::mutex mutex_;
  std::multimap<Clock::time_point, Completion> held_;
  std::unordered_map<Link*, std::shared_ptr<FaultyLink>> links_;
  std::unordered_map<Link*, LastDue> last_due_;
  base::UniqueFd bell_;
};

class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, const FaultPlan& plan, FaultCounts* counts)
      : inner_(std::move(inner)), dice_(std::make_shared<Dice>(plan, counts)) {}

  QueuePtr makeQueue() override {
    return std::make_shared<FaultyQueue>(inner_->makeQueue(), dice_);
  }

  Result<LinkPtr> connect(const std::string& address, const ConnectOptions& options) override {
    const auto queue = std::dynamic_pointer_cast<FaultyQueue>(options.queue);
    if (!queue) return Error{address + ": the queue is not of this endpoint"};
    auto link = inner_->connect(
        address, {options.domain, queue->inner(), options.replaces, options.route, options.lasts});
    if (!link.ok()) return link;
    return LinkPtr(queue->wrap(link.value()));
  }

  Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptFn accept,
                                           RoutesPtr routes) override {
    return inner_->listen(address, unwrapping(std::move(accept)), std::move(routes));
  }
  Result<std::unique_ptr<Listener>> listenBehind(base::UniqueFd socket, AcceptFn accept) override {
    return inner_->listenBehind(std::move(socket), unwrapping(std::move(accept)));
  }

 private:
  static AcceptFn unwrapping(AcceptFn accept) {
    return [accept = std::move(accept)](const PeerInfo& peer) -> Result<Accepted> {
      auto accepted = accept(peer);
      if (!accepted.ok()) return accepted;
      const auto queue = std::dynamic_pointer_cast<FaultyQueue>(accepted.value().queue);
      if (!queue) return Error{"the queue is not of this endpoint"};
      return Accepted{accepted.value().domain, queue->inner()};
    };
  }

  const std::unique_ptr<Endpoint> inner_;
  const std::shared_ptr<Dice> dice_;
};

}  // namespace

std::unique_ptr<Endpoint> makeFaulty(std::unique_ptr<Endpoint> endpoint, const FaultPlan& plan,
                                     FaultCounts* counts) {
  return std::make_unique<FaultyEndpoint>(std::move(endpoint), plan, counts);
}

}  // namespace olpager::transport
