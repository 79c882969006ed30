// The session's end. One thread, the agent, renews, takes completions and calls the Observer;
// callers post transfers themselves. Connecting blocks, and has a thread of its own as long as it
// takes.
//
// State, under mutex_, moved by the agent only:
//   kDown (with connector_: an attempt is under way) -> kGreeting (a link is there; kHello, then
//   kAttach for every slab held) -> kUp -> kEnding (the link fails; its kDown is awaited) -> kDown.
//   kGreeting -> kEnding as well.
//
// A transfer: waiting_ (not with the transport) -> issued (with the transport of the current link)
// -> done_ (to be told) -> gone. A link that fails puts what was issued back to waiting_; this
// side's transport has then stopped touching its local ranges, and the next link (`replaces`) is up
// only when the memserver's has, so that no write of the old link can land after one of the new.
//
// A slab: held (key != 0: attached to the current link) -> releasing (its transfers are done first)
// -> gone; or lost -> gone. A slab's bytes are believed only under the lease id with which it came.
//
// Leases' clock. The memserver counts the lease time from the last renewal that it has received,
// and only while the connection is down; this side counts 9/10 of it from the last answered
// renewal's sending. Then it gives the leases up and never shows their ids again, not before one
// attempt to connect has failed, however.
//
// Lock: mutex_; nothing of the transport or the Observer is called under it, but Link::state().
#include "memserver/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "base/fd.h"
#include "base/format.h"
#include "base/log.h"

namespace olpager::memserver {
namespace {

using transport::Class;
using transport::Completion;
using transport::LinkPtr;
using transport::LocalRange;
using transport::MessageClass;
using transport::Outcome;

constexpr int64_t kAnswerMs = 5000;  // for the greeting and the attaching
constexpr int64_t kRenewMs = 500;    // at most, between renewals
constexpr int64_t kTickMs = 100;     // at most, between looks at the clock
constexpr int64_t kFirstRetryMs = 100, kLastRetryMs = 2000;
constexpr int64_t kGoodbyeMs = 1000;
constexpr uint32_t kFewAttempts = 3,
                   kMostAttempts = 20;        // of one transfer that takes its link down each time
constexpr int64_t kMostPatienceMs = 120'000;  // with it, where the lease time is longer
constexpr uint64_t kMostMemory = 1ull << 48;  // that a memserver is believed to have
constexpr uint32_t kConnectMs = 2000;
constexpr int64_t kSpeedWindowUs = 100'000;

int64_t bootMs() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

int64_t nowUs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
}

// Bytes per second of the times in which there was anything to do.
class Speed {
 public:
  void begun(int64_t now_us) {
    if (active_++ == 0) since_us_ = now_us;
  }
  void ended(uint64_t bytes, int64_t now_us) {
    --active_;
    bytes_ += bytes;
    const int64_t elapsed = now_us - since_us_;
    const bool worth = bytes_ >= (1 << 20) && elapsed > 0;
    if (elapsed < kSpeedWindowUs && !(active_ == 0 && worth)) return;
    if (worth) {
      const double rate = static_cast<double>(bytes_) * 1e6 / static_cast<double>(elapsed);
      rate_ = rate_ == 0 ? rate : rate_ * 0.7 + rate * 0.3;
    }
    since_us_ = now_us;
    bytes_ = 0;
  }
  uint64_t rate() const { return static_cast<uint64_t>(rate_); }

 private:
  uint64_t active_ = 0, bytes_ = 0;
  int64_t since_us_ = 0;
  double rate_ = 0;
};

enum class State : uint8_t { kDown, kGreeting, kUp, kEnding };

struct HeldSlab {
  LeaseId lease;
  uint64_t bytes = 0;
  uint64_t key = 0;        // on the current link; 0: not attached
  uint32_t transfers = 0;  // not done
  bool releasing = false;
};

struct Transfer {
  uint64_t id = 0;
  bool write = false;
  bool issued = false;
  bool interrupted = false;
  uint32_t attempts = 0;  // that took the link down
  int64_t failed_ms = 0;  // when the first of them did
  Class klass = Class::kDemand;
  uint64_t context = 0;
  std::vector<LocalRange> local;
  FrameRange frame;
  transport::OperationId operation = 0;  // while issued and known
};

struct Done {
  uint64_t context = 0;
  TransferResult result = TransferResult::kOk;
};

class ClientCore final : public Client {
 public:
  ClientCore(const ClientOptions& options, Observer& observer);
  ~ClientCore() override;

  Status open();

  Result<std::vector<Slab>> lease(uint64_t bytes, uint32_t timeout_ms) override;
  void release(SlabId slab) override;
  std::vector<Slab> slabs() const override;
  uint64_t read(std::span<const LocalRange> into, const FrameRange& from, Class klass,
                uint64_t context) override {
    return post(false, into, from, klass, context);
  }
  uint64_t write(std::span<const LocalRange> from, const FrameRange& into, Class klass,
                 uint64_t context) override {
    return post(true, from, into, klass, context);
  }
  void raise(uint64_t transfer, Class klass) override;
  bool interrupt() override;
  Figures figures() const override;
  const std::string& address() const override { return options_.address; }

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;
  struct Request {
    int64_t sent_ms = 0;  // CLOCK_BOOTTIME
    int64_t sent_us = 0;
    int64_t waits_since_ms = 0;  // as sent_ms, less the times in which this process did not run
    size_t type = 0;
    std::vector<SlabId> attaching;
  };
  struct Wish {  // of a thread in lease()
    bool done = false;
    std::vector<Slab> slabs;
    std::string why;
  };

  void agent();
  void wake() const;
  void takeCompletions();
  void transferEnded(const Completion& completion);
  void messageArrived(const Completion& completion);
  std::string handle(Lock& lock, uint64_t number, const Request* request, protocol::Body& body);
  void linkIsDown(const LinkPtr& link);
  void retryLater();  // under mutex_
  void startConnecting();
  void connected(Result<LinkPtr> link);
  void greeted(Lock& lock);
  void tick();
  void deliver();
  void issueWaiting();

  uint64_t post(bool write, std::span<const LocalRange> local, const FrameRange& frame, Class klass,
                uint64_t context);
  bool request(protocol::Body body, std::vector<SlabId> attaching = {}, uint64_t number = 0);
  void flushReleases();
  void finish(uint64_t id, TransferResult result);  // under mutex_
  void lose(Lock& lock, SlabId slab, const std::string& why);
  void loseAll(Lock& lock, const std::string& why);
  void noteCapacity(const protocol::Capacity& capacity);
  void happen(Event::Kind kind, const std::string& text, SlabId slab = 0, uint64_t bytes = 0,
              uint32_t deadline = 0);
  /// Since the last renewal that was answered; then what is there is taken for lost. The memserver
  /// keeps it a little longer.
  int64_t patience() const { return lease_ms_ - lease_ms_ / 10; }
  bool onAgent() const { return std::this_thread::get_id() == agent_.get_id(); }

  const ClientOptions options_;
  Observer& observer_;
  const transport::QueuePtr queue_;
  const base::UniqueFd wake_;
  std::thread agent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kDown;
  bool closing_ = false;
  bool goodbye_said_ = false;
  bool told_up_ = false;
  std::thread connector_;
  std::optional<Result<LinkPtr>> connect_result_;
  LinkPtr link_;           // kGreeting, kUp, kEnding
  std::string last_link_;  // the agent's: what the next one replaces
  std::string first_error_;
  uint64_t next_number_ = 1, next_transfer_ = 1, next_slab_ = 1;
  std::map<SlabId, HeldSlab> slabs_;
  std::unordered_map<uint64_t, Transfer> transfers_;
  std::deque<uint64_t> waiting_[transport::kClasses];
  uint32_t issued_ = 0;
  std::deque<Done> done_;
  std::deque<Event> events_;
  std::vector<LeaseId> to_release_;
  std::vector<LeaseId> unsure_;  // kRelease sent, not answered
  std::unordered_map<uint64_t, Request> requests_;
  std::map<uint64_t, std::shared_ptr<Wish>> wishes_;  // by the request's number
  uint32_t attaches_ = 0;                             // not answered
  protocol::Capacity capacity_;
  uint32_t lease_ms_ = 30'000;
  int64_t renewed_ms_ = 0;       // sending of the last renewal that was answered
  int64_t last_renewal_ms_ = 0;  // sending of the last renewal
  int64_t heard_ms_ = 0;
  int64_t greeting_until_ms_ = 0;
  int64_t retry_at_ms_ = 0, retry_ms_ = 0;
  bool useful_ = false;    // something was moved or renewed over the link
  bool troubled_ = false;  // it ended with a transfer that has seen several end
  int64_t looked_ms_ = 0;
  bool attempt_failed_ = false;  // since the link went down
  bool stalled_ = false;
  Speed reads_, writes_;
  Figures figures_;
};

ClientCore::ClientCore(const ClientOptions& options, Observer& observer)
    : options_(options),
      observer_(observer),
      queue_(options.endpoint->makeQueue()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ClientCore::~ClientCore() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (auto& [number, wish] : wishes_) {
      wish->done = true;
      wish->why = "the client is being closed";
    }
    wishes_.clear();
    changed_.notify_all();
  }
  wake();
  if (agent_.joinable()) agent_.join();
}

Status ClientCore::open() {
  agent_ = std::thread([this] { agent(); });
  Lock lock(mutex_);
  // connect() waits for its own time, the greeting for kAnswerMs; an attempt that failed says so.
  changed_.wait(lock, [&] { return figures_.connects != 0 || !first_error_.empty(); });
  if (figures_.connects != 0) return {};
  return Error{first_error_};
}

// ---- what callers do

Result<std::vector<Slab>> ClientCore::lease(uint64_t bytes, uint32_t timeout_ms) {
  if (onAgent()) return Error{"lease() can't be waited for on the observer's own thread"};
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::vector<Slab> all;
  uint64_t have = 0;
  std::string why;
  while (have < bytes && why.empty()) {
    auto wish = std::make_shared<Wish>();
    uint64_t number = 0;
    {
      Lock lock(mutex_);
      if (closing_ || state_ != State::kUp) {
        why = base::format("{}: not connected", options_.address);
        break;
      }
      number = next_number_++;
      wishes_.emplace(number, wish);
    }
    const bool sent = request(protocol::Lease{bytes - have}, {}, number);
    Lock lock(mutex_);
    if (!sent) {
      wishes_.erase(number);
      why = base::format("{}: the request could not be sent", options_.address);
      break;
    }
    // A slab that comes after the time is over is given back when it comes (handle()).
    if (!changed_.wait_until(lock, deadline, [&] { return wish->done; })) {
      wishes_.erase(number);
      why = base::format("{}: no answer within {} ms", options_.address, timeout_ms);
      break;
    }
    for (const Slab& slab : wish->slabs) {
      all.push_back(slab);
      have += slab.bytes;
    }
    why = wish->why;
    if (wish->slabs.empty() && why.empty())
      why = base::format("{}: nothing to lease", options_.address);
  }
  if (all.empty() && bytes != 0) return Error{why};
  return all;
}

void ClientCore::release(SlabId slab) {
  {
    std::lock_guard lock(mutex_);
    const auto found = slabs_.find(slab);
    if (found == slabs_.end()) return;
    found->second.releasing = true;
    if (found->second.transfers != 0) return;
    to_release_.push_back(found->second.lease);
    slabs_.erase(found);
  }
  wake();
}

std::vector<Slab> ClientCore::slabs() const {
  std::lock_guard lock(mutex_);
  std::vector<Slab> all;
  for (const auto& [id, slab] : slabs_) {
    if (!slab.releasing) all.push_back({id, slab.bytes});
  }
  return all;
}

uint64_t ClientCore::post(bool write, std::span<const LocalRange> local, const FrameRange& frame,
                          Class klass, uint64_t context) {
  uint64_t id = 0;
  bool bad = false;
  {
    std::lock_guard lock(mutex_);
    id = next_transfer_++;
    const auto slab = slabs_.find(frame.slab);
    uint64_t total = 0;
    for (const LocalRange& range : local) total += range.length;
    bad = slab == slabs_.end() || slab->second.releasing || frame.bytes == 0 ||
          frame.bytes != total || frame.offset > slab->second.bytes ||
          frame.bytes > slab->second.bytes - frame.offset ||
          frame.bytes > transport::kMaxOperationBytes || local.size() > transport::kMaxLocalRanges;
    if (bad || closing_) {
      done_.push_back({context, closing_ ? TransferResult::kClosed : TransferResult::kBadRange});
      bad = true;
    } else {
      Transfer& transfer = transfers_[id];
      transfer.id = id;
      transfer.write = write;
      transfer.klass = klass;
      transfer.context = context;
      transfer.local.assign(local.begin(), local.end());
      transfer.frame = frame;
      ++slab->second.transfers;
      waiting_[static_cast<size_t>(klass)].push_back(id);
    }
  }
  if (bad) {
    wake();
  } else {
    issueWaiting();
  }
  return id;
}

void ClientCore::raise(uint64_t id, Class klass) {
  LinkPtr link;
  transport::OperationId operation = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || found->second.klass <= klass) return;
    Transfer& transfer = found->second;
    if (!transfer.issued) {
      auto& from = waiting_[static_cast<size_t>(transfer.klass)];
      if (const auto place = std::find(from.begin(), from.end(), id); place != from.end()) {
        from.erase(place);
        waiting_[static_cast<size_t>(klass)].push_back(id);
      }
    }
    transfer.klass = klass;
    operation = transfer.operation;
    link = link_;
  }
  if (operation != 0 && link) link->raise(operation, klass);
}

bool ClientCore::interrupt() {
  LinkPtr link;
  bool gives_up = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& queue : waiting_) {
      for (const uint64_t id : queue) finish(id, TransferResult::kInterrupted);
      queue.clear();
    }
    for (auto& [id, transfer] : transfers_) transfer.interrupted = true;
    if (issued_ != 0) link = link_;
    gives_up = link != nullptr && state_ == State::kUp;  // else it is lost already
  }
  if (link) link->close("its transfers are interrupted");
  wake();
  return gives_up;
}

Figures ClientCore::figures() const {
  std::lock_guard lock(mutex_);
  Figures all = figures_;
  all.up = state_ == State::kUp;
  all.stalled = stalled_;
  all.total_bytes = capacity_.total;
  all.free_bytes = capacity_.free;
  all.available_bytes = all.up ? capacity_.available : 0;
  all.recalled_bytes = capacity_.recalled;
  all.lease_ms = lease_ms_;
  all.read_bytes_per_s = reads_.rate();
  all.write_bytes_per_s = writes_.rate();
  for (const auto& [id, slab] : slabs_) all.leased_bytes += slab.bytes;
  return all;
}

// ---- transfers

// Takes from the most urgent class. The link's own call is made without the lock: it sends.
void ClientCore::issueWaiting() {
  for (;;) {
    LinkPtr link;
    uint64_t id = 0;
    bool write = false;
    std::vector<LocalRange> local;
    transport::RemoteRange remote;
    Class klass{};
    {
      std::lock_guard lock(mutex_);
      if (state_ != State::kUp || issued_ >= options_.in_flight) return;
      for (auto& queue : waiting_) {
        if (queue.empty()) continue;
        id = queue.front();
        queue.pop_front();
        break;
      }
      if (id == 0) return;
      Transfer& transfer = transfers_.at(id);
      const HeldSlab& slab = slabs_.at(transfer.frame.slab);
      transfer.issued = true;
      ++issued_;
      (transfer.write ? writes_ : reads_).begun(nowUs());
      link = link_;
      write = transfer.write;
      klass = transfer.klass;
      local = transfer.local;
      remote = {{slab.key, slab.bytes, transport::kRemoteReadWrite, 0},
                transfer.frame.offset,
                transfer.frame.bytes};
    }
    transport::OperationId operation = 0;
    const Outcome outcome = write ? link->write(local, remote, klass, id, &operation)
                                  : link->read(local, remote, klass, id, &operation);
    Lock lock(mutex_);
    const auto found = transfers_.find(id);
    if (outcome == Outcome::kOk) {
      // It may have ended already, or been raised meanwhile.
      if (found == transfers_.end() || !found->second.issued) continue;
      found->second.operation = operation;
      const Class raised = found->second.klass;
      lock.unlock();
      if (raised != klass) link->raise(operation, raised);
      continue;
    }
    Transfer& transfer = found->second;
    transfer.issued = false;
    --issued_;
    (write ? writes_ : reads_).ended(0, nowUs());
    if (outcome == Outcome::kLinkDown || outcome == Outcome::kFull) {
      if (transfer.interrupted || closing_) {
        finish(id, closing_ ? TransferResult::kClosed : TransferResult::kInterrupted);
        wake();
      } else if (slabs_.count(transfer.frame.slab) == 0) {
        finish(id, TransferResult::kLost);
        wake();
      } else {
        waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
      }
      return;  // goes on with the next link, or when something has completed
    }
    finish(id, TransferResult::kBadRange);
    wake();
  }
}

// The transfer is over; who waits for its slab may go on.
void ClientCore::finish(uint64_t id, TransferResult result) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;
  done_.push_back({found->second.context, result});
  const auto slab = slabs_.find(found->second.frame.slab);
  if (slab != slabs_.end() && --slab->second.transfers == 0 && slab->second.releasing) {
    to_release_.push_back(slab->second.lease);
    slabs_.erase(slab);
  }
  transfers_.erase(found);
}

void ClientCore::transferEnded(const Completion& completion) {
  Lock lock(mutex_);
  const auto found = transfers_.find(completion.context);
  if (found == transfers_.end() || !found->second.issued) return;
  Transfer& transfer = found->second;
  const uint64_t id = transfer.id;
  transfer.issued = false;
  transfer.operation = 0;
  --issued_;
  const bool ok = completion.outcome == Outcome::kOk;
  (transfer.write ? writes_ : reads_).ended(ok ? completion.bytes : 0, nowUs());
  if (ok) {
    heard_ms_ = bootMs();
    useful_ = true;
    (transfer.write ? figures_.bytes_written : figures_.bytes_read) += completion.bytes;
  }
  const SlabId slab = transfer.frame.slab;
  const bool lost = slabs_.count(slab) == 0;
  if (ok && !lost) {
    finish(id, TransferResult::kOk);
  } else if (lost) {
    finish(id, TransferResult::kLost);
  } else if (completion.outcome == Outcome::kRevoked) {
    // Of its own accord: on this link the key was good. Ends this transfer as well.
    waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
    lose(lock, slab, "it was taken back");
  } else if (completion.outcome == Outcome::kLinkDown) {
    if (transfer.interrupted || closing_) {
      finish(id, closing_ ? TransferResult::kClosed : TransferResult::kInterrupted);
    } else {
      waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
      // Others may get through, and their lease lives: what waits for this one is not to wait for
      // ever.
      if (transfer.attempts++ == 0) transfer.failed_ms = bootMs();
      troubled_ = troubled_ || transfer.attempts > kFewAttempts;
      if (transfer.attempts >= kMostAttempts &&
          bootMs() - transfer.failed_ms >= std::min<int64_t>(lease_ms_, kMostPatienceMs))
        lose(lock, slab, "the connection fails at each attempt to use it");
    }
  } else {
    finish(id, TransferResult::kBadRange);
  }
}

// ---- messages

// False: not sent. `number` 0: the next.
bool ClientCore::request(protocol::Body body, std::vector<SlabId> attaching, uint64_t number) {
  LinkPtr link;
  const bool notice = std::holds_alternative<protocol::Goodbye>(body);
  const size_t type = body.index();
  {
    std::lock_guard lock(mutex_);
    if (!link_) return false;
    link = link_;
    if (number == 0) number = next_number_++;
    if (!notice) {
      Request& made = requests_[number];
      made.sent_ms = made.waits_since_ms = bootMs();
      made.sent_us = nowUs();
      made.type = type;
      made.attaching = std::move(attaching);
    }
  }
  const auto bytes = protocol::encode({number, std::move(body)});
  const Outcome outcome =
      link->send(notice ? MessageClass::kNotice : MessageClass::kRequest, bytes);
  if (outcome == Outcome::kOk) return true;
  std::lock_guard lock(mutex_);
  requests_.erase(number);
  return false;
}

void ClientCore::messageArrived(const Completion& completion) {
  auto decoded = protocol::decode(completion.message.bytes());
  std::string wrong;
  {
    Lock lock(mutex_);
    if (completion.link != link_ || state_ == State::kEnding) return;  // of a link that is given up
    heard_ms_ = bootMs();
    if (!decoded.ok()) {
      wrong = decoded.error().message;
    } else {
      protocol::Message& message = decoded.value();
      const bool reply = completion.message_class == MessageClass::kReply;
      const auto found = reply ? requests_.find(message.number) : requests_.end();
      if (reply && found == requests_.end()) {
        wrong = "an answer to nothing";
      } else {
        Request request;
        if (reply) {
          request = std::move(found->second);
          requests_.erase(found);
        }
        wrong = handle(lock, message.number, reply ? &request : nullptr, message.body);
      }
    }
  }
  if (!wrong.empty()) {
    completion.link->close("the memserver broke the protocol: " + wrong);
  } else if (decoded.ok() && std::holds_alternative<protocol::Goodbye>(decoded.value().body)) {
    completion.link->close("the memserver has ended");
  }
}

std::string ClientCore::handle(Lock& lock, uint64_t number, const Request* request,
                               protocol::Body& body) {
  using namespace protocol;
  if (request == nullptr) {
    if (const auto* recall = std::get_if<Recall>(&body)) {
      capacity_.recalled = recall->bytes;
      happen(Event::Kind::kRecall,
             recall->bytes == 0
                 ? "it no longer wants memory back"
                 : base::format("it wants {} MiB back within {} ms: {}", recall->bytes >> 20,
                                recall->deadline_ms, recall->why),
             0, recall->bytes, recall->deadline_ms);
      return "";
    }
    if (const auto* revoked = std::get_if<Revoked>(&body)) {
      for (const LeaseId& lease : revoked->leases) {
        const auto slab = std::find_if(slabs_.begin(), slabs_.end(),
                                       [&](auto& s) { return s.second.lease == lease; });
        if (slab != slabs_.end()) lose(lock, slab->first, revoked->why);
      }
      return "";
    }
    if (std::holds_alternative<Goodbye>(body)) {
      loseAll(lock, "the memserver has ended");
      state_ = State::kEnding;
      return "";
    }
    return base::format("a {} message that was not asked for", bodyName(body));
  }

  const auto answers = [&](size_t asked) { return request->type == asked; };
  if (const auto* refusal = std::get_if<Refusal>(&body)) {
    if (const auto wish = wishes_.find(number); wish != wishes_.end()) {
      wish->second->done = true;
      wish->second->why = base::format("{}: {}", options_.address, refusal->why);
      wishes_.erase(wish);
      changed_.notify_all();
      return "";
    }
    return "it refuses a request: " + refusal->why;
  }
  if (auto* hello = std::get_if<HelloReply>(&body);
      hello != nullptr && answers(Body(Hello{}).index())) {
    if (state_ != State::kGreeting) return "a greeting out of turn";
    if (hello->lease_ms < 100) return "a lease time of nothing";
    lease_ms_ = hello->lease_ms;
    noteCapacity(hello->capacity);
    renewed_ms_ = request->sent_ms;
    greeted(lock);
    return "";
  }
  if (auto* attached = std::get_if<AttachReply>(&body);
      attached != nullptr && answers(Body(Attach{}).index())) {
    if (attached->slabs.size() != request->attaching.size()) return "an answer about other leases";
    for (size_t i = 0; i < attached->slabs.size(); ++i) {
      const auto slab = slabs_.find(request->attaching[i]);
      if (slab == slabs_.end()) continue;  // given up meanwhile
      const LeasedSlab& told = attached->slabs[i];
      if (told.lease != slab->second.lease) return "an answer about another lease";
      if (told.key == 0 || told.bytes != slab->second.bytes) {
        lose(lock, slab->first, "it does not know the lease any more");
      } else {
        slab->second.key = told.key;
      }
    }
    --attaches_;
    if (attaches_ == 0) greeted(lock);
    return "";
  }
  if (auto* leased = std::get_if<LeaseReply>(&body);
      leased != nullptr && answers(Body(protocol::Lease{}).index())) {
    noteCapacity(leased->capacity);
    const auto wish = wishes_.find(number);
    for (const LeasedSlab& slab : leased->slabs) {
      if (slab.key == 0 || slab.bytes == 0 || slab.bytes % (2ull << 20) != 0)
        return "a slab that can't be";
      if (wish == wishes_.end()) {  // nobody waits any more
        to_release_.push_back(slab.lease);
        continue;
      }
      const SlabId id = next_slab_++;
      HeldSlab& held = slabs_[id];
      held.lease = slab.lease;
      held.bytes = slab.bytes;
      held.key = slab.key;
      wish->second->slabs.push_back({id, slab.bytes});
    }
    if (wish != wishes_.end()) {
      wish->second->done = true;
      wish->second->why =
          leased->why.empty() ? "" : base::format("{}: {}", options_.address, leased->why);
      wishes_.erase(wish);
      changed_.notify_all();
    }
    return "";
  }
  if (auto* renewed = std::get_if<RenewReply>(&body);
      renewed != nullptr && answers(Body(Renew{}).index())) {
    noteCapacity(renewed->capacity);
    renewed_ms_ = std::max(renewed_ms_, request->sent_ms);
    useful_ = true;
    const auto took = static_cast<uint32_t>(nowUs() - request->sent_us);
    figures_.round_trip_us =
        figures_.round_trip_us == 0 ? took : (figures_.round_trip_us * 7 + took) / 8;
    return "";
  }
  if (auto* released = std::get_if<ReleaseReply>(&body);
      released != nullptr && answers(Body(Release{}).index())) {
    noteCapacity(released->capacity);
    unsure_.clear();
    return "";
  }
  return base::format("a {} message as an answer to something else", bodyName(body));
}

void ClientCore::noteCapacity(const protocol::Capacity& capacity) {
  const bool grown = capacity_.available == 0 && capacity.available != 0 && told_up_;
  capacity_ = capacity;
  capacity_.total = std::min(capacity_.total, kMostMemory);
  capacity_.free = std::min(capacity_.free, capacity_.total);
  capacity_.available = std::min(capacity_.available, capacity_.total);
  if (grown) {
    happen(Event::Kind::kCapacity,
           base::format("{} MiB can be leased again", capacity.available >> 20), 0,
           capacity.available);
  }
}

void ClientCore::happen(Event::Kind kind, const std::string& text, SlabId slab, uint64_t bytes,
                        uint32_t deadline) {
  events_.push_back(
      {kind, slab, bytes, deadline, base::format("memserver {}: {}", options_.address, text)});
}

void ClientCore::lose(Lock&, SlabId id, const std::string& why) {
  const auto found = slabs_.find(id);
  if (found == slabs_.end()) return;
  const uint64_t bytes = found->second.bytes;
  slabs_.erase(found);
  for (auto& queue : waiting_) {
    std::erase_if(queue, [&](uint64_t waiting) {
      if (transfers_.at(waiting).frame.slab != id) return false;
      finish(waiting, TransferResult::kLost);
      return true;
    });
  }
  // What is issued ends with its operation.
  ++figures_.slabs_lost;
  happen(Event::Kind::kSlabLost, base::format("{} MiB are lost: {}", bytes >> 20, why), id, bytes);
}

void ClientCore::loseAll(Lock& lock, const std::string& why) {
  while (!slabs_.empty()) lose(lock, slabs_.begin()->first, why);
}

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
        if (!first_error_.empty()) break;  // the first attempt failed: nobody has this client
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
  if (figures_.connects == 0 && first_error_.empty()) {
    first_error_ = base::format("memserver {}: {}", options_.address, reason);
  }
  told_up_ = false;
  stalled_ = false;
  link_.reset();
  state_ = State::kDown;
  attaches_ = 0;
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

// At once after a connection that was of use, or soon, if it may end by the same transfer again;
// later and later as long as they are of none.
void ClientCore::retryLater() {
  const int64_t soon = troubled_ ? kFirstRetryMs : 0;
  retry_ms_ = useful_ ? soon : std::clamp(retry_ms_ * 2, kFirstRetryMs, kLastRetryMs);
  useful_ = troubled_ = false;
  retry_at_ms_ = bootMs() + retry_ms_;
}

void ClientCore::startConnecting() {
  transport::ConnectOptions connect;
  connect.domain = options_.domain;
  connect.queue = queue_;
  connect.replaces = last_link_;
  connector_ = std::thread([this, connect] {
    auto link = options_.endpoint->connect(options_.address, connect);
    {
      std::lock_guard lock(mutex_);
      connect_result_ = std::move(link);
    }
    wake();
  });
}

void ClientCore::connected(Result<LinkPtr> link) {
  std::string why = link.ok() ? "" : link.error().message;
  if (link.ok()) {
    last_link_ = link.value()->id();
    // Its kDown has been passed over if it is down already; else it is still to come.
    if (link.value()->state() == transport::LinkState::kDown) {
      why = base::format("{}: {}", options_.address, link.value()->reason());
    }
  }
  {
    std::lock_guard lock(mutex_);
    if (!why.empty()) {
      attempt_failed_ = true;
      if (figures_.connects == 0) first_error_ = base::format("memserver {}", why);
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
  std::vector<std::pair<std::vector<LeaseId>, std::vector<SlabId>>> batches;
  for (const auto& [id, slab] : slabs_) {
    if (slab.key != 0) continue;
    if (batches.empty() || batches.back().first.size() == protocol::kMaxLeases)
      batches.emplace_back();
    batches.back().first.push_back(slab.lease);
    batches.back().second.push_back(id);
  }
  if (!batches.empty()) {
    attaches_ = static_cast<uint32_t>(batches.size());
    lock.unlock();
    for (auto& [leases, ids] : batches)
      request(protocol::Attach{std::move(leases)}, std::move(ids));
    lock.lock();
    return;
  }
  state_ = State::kUp;
  told_up_ = true;
  attempt_failed_ = false;
  ++figures_.connects;
  const transport::PeerInfo& peer = link_->peer();
  figures_.transport = peer.kind;
  figures_.node = peer.node;
  happen(Event::Kind::kUp, base::format("{}, {} MiB of {} MiB free; {}",
                                        figures_.connects == 1 ? "connected" : "connected again",
                                        capacity_.free >> 20, capacity_.total >> 20, peer.why));
  changed_.notify_all();
}

// The clocks.
void ClientCore::tick() {
  LinkPtr drop;
  std::string why;
  bool renew = false, goodbye = false;
  {
    Lock lock(mutex_);
    const int64_t now = bootMs();
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

}  // namespace

const char* transferResultName(TransferResult result) {
  switch (result) {
    case TransferResult::kOk:
      return "done";
    case TransferResult::kLost:
      return "lost";
    case TransferResult::kInterrupted:
      return "interrupted";
    case TransferResult::kBadRange:
      return "bad range";
    case TransferResult::kClosed:
      return "closed";
  }
  return "?";
}

const char* eventName(Event::Kind kind) {
  constexpr const char* kEvents[] = {"up",        "down",   "stalled", "resumed",
                                     "slab lost", "recall", "capacity"};
  return kEvents[static_cast<size_t>(kind)];
}

transport::Options sessionTransport(transport::Options base) {
  base.silent_ms = 0;
  base.connect_ms = std::min(base.connect_ms, kConnectMs);
  return base;
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options, Observer& observer) {
  if (options.endpoint == nullptr || !options.domain || options.in_flight == 0) {
    return Error{"a memserver's client needs an endpoint, a domain and room for transfers"};
  }
  auto client = std::make_unique<ClientCore>(options, observer);
  if (const Status opened = client->open(); !opened.ok()) return opened.error();
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace olpager::memserver
