#include "coherence/calls/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace olpager::calls {
namespace {

using transport::Completion;
using transport::MessageClass;
using transport::Outcome;

constexpr uint64_t kAckBytes =
    1 << 20;  // taken without a message of ours: an acknowledgement of its own
constexpr uint32_t kAckMessages = 64;
constexpr size_t kSpare = 16;
constexpr auto kOldLink = std::chrono::seconds(5);    // to say what became of its transfers
constexpr auto kTurn = std::chrono::milliseconds(1);  // of a writer that waits

std::span<const std::byte> bytesOf(const MessageHead& head) {
  return {reinterpret_cast<const std::byte*>(&head), sizeof head};
}

}  // namespace

// With less than what is acknowledged at once both ends could wait for an acknowledgement.
Channel::Channel(const ChannelOptions& options) : options_(options) {
  options_.kept_bytes = std::max(options_.kept_bytes, kAckBytes);
}

Channel::~Channel() { close("ended"); }

Status Channel::attach(transport::LinkPtr link, transport::QueuePtr queue, uint64_t peer_taken) {
  const std::lock_guard receiving(receive_mutex_);
  std::unique_lock lock(write_mutex_);
  sent_all_.wait(lock, [&] { return !sending_; });  // over a link that is down: soon
  if (closed_) return Error{reason_};
  const uint64_t oldest = kept_.empty() ? next_number_ : kept_.front().number;
  if (peer_taken >= next_number_ || peer_taken + 1 < oldest)
    return Error{"the peer names a message that this end never sent, or no longer has"};
  // The old link is down, or the peer would make no new one: what it still had under way has ended,
  // which is in its queue.
  const auto issued = [&] { return transfers_.size() > waiting_.size(); };
  for (const auto end = std::chrono::steady_clock::now() + kOldLink; issued();) {
    if (!queue_ || std::chrono::steady_clock::now() > end)
      return Error{"the old link still moves memory"};
    Completion completions[16];
    const size_t count = queue_->wait(completions, kTurn);
    for (size_t i = 0; i < count; ++i) transferred(completions[i]);
  }
  gather();
  link_ = std::move(link);
  seen_ = {};
  queue_ = std::move(queue);
  // Messages that arrived whole over the old link and were not read are read still; the peer sends
  // on from there.
  last_received_ = std::max(last_received_, taken_.load());
  message_bytes_ = link_->maxMessageBytes() - sizeof(MessageHead);
  sent_ = kept_.size();
  dropTaken(peer_taken);
  sent_ = 0;
  reason_.clear();
  attached_.store(true, std::memory_order_release);
  sendKept(lock);
  issueWaiting();
  room_.notify_all();
  return {};
}

uint64_t Channel::taken() const { return taken_.load(); }

bool Channel::linkUp() const {
  std::lock_guard lock(write_mutex_);
  return attached_.load() && link_ && link_->state() == transport::LinkState::kUp;
}

std::optional<transport::LinkKind> Channel::linkKind() const {
  std::lock_guard lock(write_mutex_);
  if (!attached_.load() || !link_ || link_->state() != transport::LinkState::kUp)
    return std::nullopt;
  return link_->peer().kind;
}

// Under write_mutex_.
void Channel::gather() {
  if (!link_) return;
  const status::CountedBytes more = seen_.since(link_->stats());
  carried_.sent += more.sent;
  carried_.received += more.received;
}

void Channel::count(status::LinkBytes& into, bool leads) {
  std::lock_guard lock(write_mutex_);
  gather();
  const status::CountedBytes more = std::exchange(carried_, {});
  status::count(into.sent, more.sent);
  status::count(into.received, more.received);
  if (!leads) return;
  const bool up = attached_.load() && link_ && link_->state() == transport::LinkState::kUp;
  into.transport.store(up ? 1 + static_cast<uint64_t>(link_->peer().kind) : 0,
                       std::memory_order_relaxed);
  if (up) status::noteRails(into.rails, link_->stats().rails);
}

bool Channel::closed() const {
  std::lock_guard lock(write_mutex_);
  return closed_;
}

std::string Channel::reason() const {
  std::lock_guard lock(write_mutex_);
  return reason_;
}

void Channel::close(const std::string& reason) {
  transport::LinkPtr link;
  {
    std::lock_guard lock(write_mutex_);
    if (closed_) return;
    closed_ = true;
    if (reason_.empty()) reason_ = reason;
    attached_.store(false);
    gather();
    link = std::move(link_);
    for (const auto& [context, transfer] : transfers_) transfer->state = Transfer::State::kFailed;
    transfers_.clear();
    waiting_.clear();
    transfer_over_.notify_all();
    room_.notify_all();
  }
  if (link) link->close(reason);
}

// --- sending -------------------------------------------------------------------------------------

bool Channel::write(std::initializer_list<std::span<const std::byte>> parts, bool flush_now) {
  size_t length = 0;
  for (const auto& part : parts) length += part.size();
  std::unique_lock lock(write_mutex_);
  if (!waitForRoom(lock)) return false;
  bool full = false;  // a message; sent when the record is whole, since others may write meanwhile
  const auto append = [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t room = message_bytes_ - std::min(message_bytes_, open_.size());
      const size_t count = std::min(room, bytes.size());
      open_.insert(open_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (open_.size() >= message_bytes_) {
        seal();
        full = true;
      }
    }
  };
  const auto announced = static_cast<uint32_t>(length);
  append({reinterpret_cast<const std::byte*>(&announced), sizeof announced});
  for (const auto& part : parts) append(part);
  if (flush_now || full) {
    if (flush_now) seal();
    sendKept(lock);
  } else if (!open_.empty()) {
    unsent_.store(true, std::memory_order_relaxed);
  }
  return true;
}

bool Channel::flush() {
  std::unique_lock lock(write_mutex_);
  if (closed_) return false;
  seal();
  sendKept(lock);
  return true;
}

void Channel::seal() {
  if (open_.empty()) return;
  kept_bytes_ += open_.size();
  kept_.push_back({next_number_++, std::move(open_)});
  open_ = {};
  if (!spare_.empty()) {
    open_ = std::move(spare_.back());
    spare_.pop_back();
  }
}

// Without the mutex while the link sends, which may take as long as a system call and a wake-up:
// others write meanwhile. One at a time, who looks again when somebody else wanted to send.
void Channel::sendKept(std::unique_lock<std::mutex>& lock) {
  if (sending_) {
    send_again_ = true;
    return;
  }
  sending_ = true;
  do {
    send_again_ = false;
    while (attached_.load(std::memory_order_relaxed) && sent_ < kept_.size()) {
      const Kept& next = kept_[sent_];  // stays in its place: only what was sent is dropped
      const MessageHead head{next.number, taken_.load()};
      const transport::LinkPtr link = link_;
      lock.unlock();
      // kNoCredit: whoever receives is told when there is room again. kLinkDown: it is told that as
      // well.
      const Outcome outcome = link->send(MessageClass::kStream, bytesOf(head), next.bytes);
      lock.lock();
      if (outcome != Outcome::kOk) break;
      ack_due_ = false;
      ++sent_;
      dropTaken(peer_taken_);
    }
  } while (send_again_);
  sending_ = false;
  sent_all_.notify_all();
  unsent_.store(sent_ < kept_.size() || !open_.empty(), std::memory_order_relaxed);
}

void Channel::sendTaken() {
  if (!attached_.load(std::memory_order_relaxed)) return;
  const MessageHead head{0, taken_.load()};
  ack_due_ = link_->send(MessageClass::kNotice, bytesOf(head)) == Outcome::kNoCredit;
}

void Channel::dropTaken(uint64_t taken) {
  peer_taken_ = std::max(peer_taken_, taken);
  while (sent_ > 0 && !kept_.empty() && kept_.front().number <= peer_taken_) {
    kept_bytes_ -= kept_.front().bytes.size();
    if (spare_.size() < kSpare) {
      kept_.front().bytes.clear();
      spare_.push_back(std::move(kept_.front().bytes));
    }
    kept_.pop_front();
    --sent_;
  }
}

// Receives for a turn, without `lock` meanwhile, unless somebody else does: false.
bool Channel::receiveMeanwhile(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::unique_lock receiving(receive_mutex_, std::try_to_lock);
  if (receiving.owns_lock()) receive(kTurn);
  lock.lock();
  return receiving.owns_lock();
}

// A writer that finds too much kept receives in the meantime, so that the acknowledgement is seen
// also where nobody reads. A reader receives for all, and makes room at the peer by what it takes:
// it is not kept from it.
void Channel::receiveForRoom(std::unique_lock<std::mutex>& lock) {
  if (attached_.load(std::memory_order_relaxed) && readers_.load() == 0 && receiveMeanwhile(lock))
    return;
  room_.wait_for(lock, kTurn);
}

bool Channel::waitForRoom(std::unique_lock<std::mutex>& lock) {
  while (!closed_ && kept_bytes_ > options_.kept_bytes) receiveForRoom(lock);
  return !closed_;
}

bool Channel::awaitRoom(std::chrono::microseconds timeout) {
  std::unique_lock lock(write_mutex_);
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!closed_ && kept_bytes_ > options_.kept_bytes) {
    if (!attached_.load(std::memory_order_relaxed) || std::chrono::steady_clock::now() >= end)
      return false;
    receiveForRoom(lock);
  }
  return true;
}

// --- receiving -----------------------------------------------------------------------------------

// Under receive_mutex_. Takes what has come, waiting for the first of it.
void Channel::receive(std::chrono::microseconds timeout) {
  if (!queue_) return;
  const size_t count = queue_->wait(arrived_, timeout);
  struct Emptied {  // nothing stays: completions hold their links, and messages room at them
    std::span<Completion> completions;
    ~Emptied() {
      for (Completion& completion : completions) completion = {};
    }
  } const emptied{std::span(arrived_).first(count)};
  for (Completion& completion : emptied.completions) {
    switch (completion.kind) {
      case Completion::Kind::kMessage: {
        const auto bytes = completion.message.bytes();
        MessageHead head;
        if (bytes.size() < sizeof head) {
          breach("a message without a head");
          return;
        }
        std::memcpy(&head, bytes.data(), sizeof head);
        {
          std::lock_guard lock(write_mutex_);
          if (completion.link != link_) break;  // of a link before this one
          dropTaken(
              std::min(head.taken, next_number_ - 1));  // a peer's word: no more than was sent
          if (kept_bytes_ <= options_.kept_bytes) room_.notify_all();
        }
        if (head.number == 0 || head.number <= last_received_) break;
        if (head.number != last_received_ + 1) {
          breach("messages are missing");
          return;
        }
        last_received_ = head.number;
        inbox_.push_back(std::move(completion.message));
        inbox_messages_.fetch_add(1, std::memory_order_relaxed);
        break;
      }
      case Completion::Kind::kCredit: {
        std::unique_lock lock(write_mutex_);
        if (completion.link != link_) break;
        if (ack_due_) sendTaken();
        sendKept(lock);
        break;
      }
      case Completion::Kind::kDown: {
        std::lock_guard lock(write_mutex_);
        if (completion.link != link_) break;
        reason_ = completion.link->reason();
        attached_.store(false, std::memory_order_release);
        room_.notify_all();
        transfer_over_.notify_all();
        break;
      }
      case Completion::Kind::kRead:
      case Completion::Kind::kWrite:
      case Completion::Kind::kMemory: {
        std::lock_guard lock(write_mutex_);
        transferred(completion);
        issueWaiting();
        break;
      }
      default:
        break;
    }
  }
}

// Messages of a peer that broke the protocol are not read any more, over no link.
void Channel::breach(const std::string& reason) {
  broken_ = true;
  {
    std::lock_guard lock(write_mutex_);
    if (!closed_) reason_ = reason;
  }
  close(reason);
}

// --- transfers -----------------------------------------------------------------------------------

TransferPtr Channel::fetch(std::span<const transport::LocalRange> into,
                           const transport::RemoteRange& from) {
  auto transfer = std::make_shared<Transfer>();
  transfer->near.assign(into.begin(), into.end());
  transfer->far = from;
  return start(std::move(transfer));
}

TransferPtr Channel::put(const transport::LocalRange& from, const transport::RemoteRange& into) {
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = Transfer::Kind::kPut;
  transfer->near.assign(1, from);
  transfer->far = into;
  return start(std::move(transfer));
}

TransferPtr Channel::share(const transport::RemoteKey& key) {
  auto transfer = std::make_shared<Transfer>();
  transfer->kind = Transfer::Kind::kShare;
  transfer->far.key = key;
  return start(std::move(transfer));
}

TransferPtr Channel::start(TransferPtr transfer) {
  std::lock_guard lock(write_mutex_);
  if (closed_) {
    transfer->state = Transfer::State::kFailed;
    return transfer;
  }
  const uint64_t context = next_transfer_++;
  transfers_.emplace(context, transfer);
  waiting_.push_back(context);
  issueWaiting();
  return transfer;
}

transport::Outcome Channel::issue(Transfer& transfer, uint64_t context) {
  const auto& near = transfer.near;
  constexpr auto kClass = transport::Class::kDemand;
  switch (transfer.kind) {
    case Transfer::Kind::kFetch:
      return link_->read(near, transfer.far, kClass, context);
    case Transfer::Kind::kPut:
      return link_->write(near, transfer.far, kClass, context);
    case Transfer::Kind::kShare:
      return link_->askMemory(transfer.far.key, context);
  }
  return Outcome::kBadRange;
}

// Under write_mutex_. Gives the link what it takes; the rest when something is over.
void Channel::issueWaiting() {
  while (attached_.load(std::memory_order_relaxed) && !waiting_.empty()) {
    Transfer& transfer = *transfers_.at(waiting_.front());
    const Outcome outcome = issue(transfer, waiting_.front());
    if (outcome == Outcome::kFull || outcome == Outcome::kLinkDown) return;
    transfer.state = outcome == Outcome::kOk ? Transfer::State::kIssued : Transfer::State::kFailed;
    if (outcome != Outcome::kOk) {
      transfer.why_ = transport::outcomeName(outcome);
      transfers_.erase(waiting_.front());
      transfer_over_.notify_all();
    }
    waiting_.pop_front();
  }
}

// Under write_mutex_. Also of a link before this one. Transfers that were under way over a lost
// link wait for the next.
void Channel::transferred(Completion& completion) {
  if (completion.kind != Completion::Kind::kRead && completion.kind != Completion::Kind::kWrite &&
      completion.kind != Completion::Kind::kMemory)
    return;
  const auto found = transfers_.find(completion.context);
  if (found == transfers_.end()) return;
  if (completion.outcome == Outcome::kLinkDown) {
    found->second->state = Transfer::State::kWaiting;
    waiting_.push_back(completion.context);
    return;
  }
  found->second->memory = std::move(completion.memory);
  found->second->why_ = transport::outcomeName(completion.outcome);
  found->second->state =
      completion.outcome == Outcome::kOk ? Transfer::State::kDone : Transfer::State::kFailed;
  transfers_.erase(found);
  transfer_over_.notify_all();
}

Channel::Over Channel::wait(const Transfer& transfer, std::chrono::microseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(write_mutex_);
  for (;;) {
    if (transfer.state == Transfer::State::kDone) return Over::kDone;
    if (transfer.state == Transfer::State::kFailed || closed_) return Over::kFailed;
    if (!attached_.load(std::memory_order_relaxed)) return Over::kDown;
    if (std::chrono::steady_clock::now() >= end) return Over::kNotYet;
    // A reader receives for all.
    if (readers_.load() == 0 && receiveMeanwhile(lock)) continue;
    if (transfer.state == Transfer::State::kIssued || transfer.state == Transfer::State::kWaiting)
      transfer_over_.wait_for(lock, kTurn);
  }
}

// --- records -------------------------------------------------------------------------------------

// The front message has been read to its end.
void Channel::frontTaken() {
  MessageHead head;
  std::memcpy(&head, inbox_.front().bytes().data(), sizeof head);
  bytes_since_ack_ += inbox_.front().bytes().size();
  ++messages_since_ack_;
  inbox_.pop_front();
  inbox_messages_.fetch_sub(1, std::memory_order_relaxed);
  front_offset_ = sizeof(MessageHead);
  taken_.store(head.number);
  if (bytes_since_ack_ < kAckBytes && messages_since_ack_ < kAckMessages) return;
  bytes_since_ack_ = 0;
  messages_since_ack_ = 0;
  std::lock_guard lock(write_mutex_);
  sendTaken();
}

// Up to `count` bytes of the stream; false when fewer are there, with *into advanced by the
// caller's own count.
bool Channel::takeBytes(std::byte* into, size_t count) {
  size_t have = 0;
  while (have < count && !inbox_.empty()) {
    const auto bytes = inbox_.front().bytes();
    const size_t there = std::min(count - have, bytes.size() - front_offset_);
    std::memcpy(into + have, bytes.data() + front_offset_, there);
    have += there;
    front_offset_ += there;
    if (front_offset_ == bytes.size()) frontTaken();
  }
  record_have_ = have;
  return have == count;
}

bool Channel::nextRecord(std::vector<std::byte>& record) {
  if (broken_) return false;
  if (length_have_ < sizeof record_length_) {
    auto* const into = reinterpret_cast<std::byte*>(&record_length_) + length_have_;
    const bool whole = takeBytes(into, sizeof record_length_ - length_have_);
    length_have_ += record_have_;
    if (!whole) return false;
    if (record_length_ > options_.record_bytes) {
      breach("a record above the limit");
      return false;
    }
    partial_.clear();
  }
  // The announced length is the peer's word: memory grows with what has come, not with what was
  // said.
  constexpr size_t kStep = 1 << 20;
  while (partial_.size() < record_length_) {
    const size_t before = partial_.size();
    const size_t step = std::min<size_t>(kStep, record_length_ - before);
    if (inbox_.empty()) return false;
    partial_.resize(before + step);
    const bool whole = takeBytes(partial_.data() + before, step);
    if (!whole) {
      partial_.resize(before + record_have_);
      return false;
    }
  }
  length_have_ = 0;
  record.swap(partial_);
  return true;
}

Channel::Read Channel::read(std::vector<std::byte>& record, std::chrono::microseconds timeout) {
  readers_.fetch_add(1);
  const std::lock_guard receiving(receive_mutex_);
  struct Leaves {
    std::atomic<uint32_t>& readers;
    ~Leaves() { readers.fetch_sub(1); }
  } const leaves{readers_};
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (nextRecord(record)) return Read::kRecord;
    // Messages that came before the link went down are read first.
    if (!attached_.load(std::memory_order_acquire)) return Read::kDown;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0 && timeout.count() > 0) return Read::kNothing;
    receive(std::max(left, std::chrono::microseconds(0)));
    if (timeout.count() <= 0) return nextRecord(record) ? Read::kRecord : Read::kNothing;
  }
}

}  // namespace olpager::calls
