#include "coherence/transport/core/link_core.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/format.h"
#include "base/log.h"
#include "coherence/transport/log_links.h"

namespace olpager::transport {
namespace {

bool bit(const std::vector<uint64_t>& bits, uint32_t index) {
  return (bits[index / 64] >> (index % 64) & 1) != 0;
}
void setBit(std::vector<uint64_t>& bits, uint32_t index) {
  bits[index / 64] |= 1ull << (index % 64);
}
int64_t nowUs() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
void clearBit(std::vector<uint64_t>& bits, uint32_t index) {
  bits[index / 64] &= ~(1ull << (index % 64));
}

}  // namespace

const char* outcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kLinkDown:
      return "link down";
    case Outcome::kFull:
      return "too many operations outstanding";
    case Outcome::kNoCredit:
      return "no room at the peer";
    case Outcome::kBadRange:
      return "a range that is not registered or granted";
    case Outcome::kTooLong:
      return "too long";
    case Outcome::kRevoked:
      return "the key was taken back";
    case Outcome::kUnreachable:
      return "memory without a CPU address that this link can't reach";
  }
  return "unknown";
}

const char* className(Class klass) {
  constexpr const char* kNames[] = {"control", "demand", "prefetch", "write-back"};
  return kNames[index(klass)];
}

const char* linkKindName(LinkKind kind) {
  constexpr const char* kNames[] = {"tcp", "shm", "verbs"};
  return kNames[static_cast<size_t>(kind)];
}

LinkCore::LinkCore(LinkSetup setup)
    : setup_(std::move(setup)),
      unread_(setup_.unread, setup_.options.limits.unread_bytes),
      scheduler_({setup_.options.demand_window, setup_.options.prefetch_window,
                  setup_.options.write_window, setup_.options.slice_bytes,
                  setup_.options.slice_bytes, setup_.peer_hello.slices}),
      operations_(setup_.options.operations) {
  free_.reserve(operations_.size());
  for (uint32_t slot = 0; slot < operations_.size(); ++slot) {
    free_.push_back(static_cast<uint32_t>(operations_.size()) - 1 - slot);
  }
  const auto room = [&](MessageClass klass, uint32_t here, uint32_t there) {
    auto& into = room_[index(klass)];
    into.here = into.window = here;
    into.there = there;
  };
  room(MessageClass::kNotice, setup_.options.notices, setup_.peer_hello.notices);
  room(MessageClass::kRequest, setup_.options.requests, setup_.peer_hello.requests);
  room(MessageClass::kStream, setup_.options.stream, setup_.peer_hello.stream);
  last_heard_ms_ = nowMs();
}

std::string LinkCore::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

std::string LinkCore::id() const {
  std::string text;
  for (const uint8_t byte : setup_.id) text += base::format("{:02x}", byte);
  return text;
}

LinkStats LinkCore::stats() const {
  std::lock_guard lock(mutex_);
  LinkStats all = stats_;
  const uint64_t out = served_out_.load(), in = served_in_.load();
  all.bytes_served = out + in;
  all.sent +=
      out + std::accumulate(std::begin(all.bytes_written), std::end(all.bytes_written), 0ull);
  all.received += in + std::accumulate(std::begin(all.bytes_read), std::end(all.bytes_read), 0ull);
  all.bounced_bytes = bounced_.load();
  addStats(all);
  return all;
}

Outcome LinkCore::read(std::span<const LocalRange> into, const RemoteRange& from, Class klass,
                       uint64_t context, OperationId* id) {
  return post(false, into, from, klass, context, id);
}

Outcome LinkCore::write(std::span<const LocalRange> from, const RemoteRange& into, Class klass,
                        uint64_t context, OperationId* id) {
  return post(true, from, into, klass, context, id);
}

Outcome LinkCore::post(bool write, std::span<const LocalRange> local, const RemoteRange& remote,
                       Class klass, uint64_t context, OperationId* id) {
  const uint64_t length = remote.length;
  if (length == 0 || remote.offset > remote.key.length ||
      length > remote.key.length - remote.offset) {
    return Outcome::kBadRange;
  }
  if (length > kMaxOperationBytes || local.size() > kMaxLocalRanges) return Outcome::kTooLong;
  uint64_t total = 0;
  for (const auto& range : local) {
    if (range.region == nullptr || range.length == 0 || range.length > range.region->length() ||
        range.offset > range.region->length() - range.length) {
      return Outcome::kBadRange;
    }
    total += range.length;
  }
  if (total != length) return Outcome::kBadRange;
  std::vector<Pin> pins;
  pins.reserve(local.size());
  for (const auto& range : local) {
    if (range.region->base() == nullptr && !reachesDevices()) return Outcome::kUnreachable;
    if (!range.region->entry()->pin()) return Outcome::kBadRange;
    pins.emplace_back(range.region->entry());
  }
  {
    std::lock_guard lock(mutex_);
    if (state_.load() != LinkState::kUp) return Outcome::kLinkDown;
    if (free_.empty()) return Outcome::kFull;
    const uint32_t slot = free_.back();
    free_.pop_back();
    outstanding_.fetch_add(1);
    Operation& operation = operations_[slot];
    operation.used = true;
    operation.write = write;
    operation.klass = klass;
    operation.outcome = Outcome::kOk;
    operation.context = context;
    operation.remote = remote;
    operation.local.assign(local.begin(), local.end());
    operation.pins = std::move(pins);
    operation.slice_bytes = sliceBytes(write, klass, length, scheduler_.outstanding(klass));
    operation.slices =
        static_cast<uint32_t>((length + operation.slice_bytes - 1) / operation.slice_bytes);
    operation.next = operation.answered = 0;
    operation.outstanding = 0;
    operation.open.assign((operation.slices + 63) / 64, 0);
    operation.taken.assign((operation.slices + 63) / 64, 0);
    operation.early.clear();
    operation.asked_us.assign(klass >= Class::kPrefetch ? operation.slices : 0, 0);
    scheduler_.enqueue(slot, klass);
    if (id != nullptr) *id = uint64_t{operation.generation} << 32 | slot;
    ++(write ? stats_.writes : stats_.reads);
  }
  issue();
  return Outcome::kOk;
}

void LinkCore::raise(OperationId id, Class klass) {
  {
    std::lock_guard lock(mutex_);
    Operation* operation = find(id);
    if (operation == nullptr || klass >= operation->klass || state_.load() != LinkState::kUp)
      return;
    scheduler_.move(static_cast<uint32_t>(id), operation->klass, klass, operation->outstanding,
                    operation->next < operation->slices);
    operation->klass = klass;
  }
  issue();
}

LinkCore::Operation* LinkCore::find(OperationId id) {
  const auto slot = static_cast<uint32_t>(id);
  if (slot >= operations_.size()) return nullptr;
  Operation& operation = operations_[slot];
  return operation.used && operation.generation == id >> 32 ? &operation : nullptr;
}

uint32_t LinkCore::bytesOf(const Operation& operation, uint32_t slice) {
  const uint64_t begin = uint64_t{slice} * operation.slice_bytes;
  return static_cast<uint32_t>(
      std::min<uint64_t>(operation.slice_bytes, operation.remote.length - begin));
}

bool LinkCore::tooManyAnswers(size_t waiting) const {
  // As many as the peer may have slices under way, and some pongs: more has not been asked for in
  // good faith.
  constexpr size_t kPongs = 1024;
  return waiting > setup_.options.limits.slices + kPongs;
}

bool LinkCore::tooManyReplies(size_t waiting) const {
  // A peer that asks more at once than there is room for has to have read what came back before.
  constexpr size_t kRounds = 4, kFew = 64;
  return waiting > std::max(kFew, kRounds * setup_.options.requests);
}

bool LinkCore::nextSlice(Slice& slice) {
  std::lock_guard lock(mutex_);
  if (state_.load() != LinkState::kUp) return false;
  const auto slot = scheduler_.pick();
  if (!slot) return false;
  Operation& operation = operations_[*slot];
  slice.operation = uint64_t{operation.generation} << 32 | *slot;
  slice.index = operation.next++;
  slice.write = operation.write;
  slice.klass = operation.klass;
  slice.key = operation.remote.key.key;
  slice.offset = operation.remote.offset + uint64_t{slice.index} * operation.slice_bytes;
  slice.bytes = bytesOf(operation, slice.index);
  setBit(operation.open, slice.index);
  if (!operation.asked_us.empty()) operation.asked_us[slice.index] = nowUs();
  operation.outstanding += slice.bytes;
  scheduler_.issued(operation.klass, slice.bytes);
  if (operation.next == operation.slices) scheduler_.exhausted(operation.klass);
  ++stats_.slices;
  return true;
}

template <typename Take>
void LinkCore::forEachPart(const Operation& operation, uint32_t slice, Take&& take) {
  uint64_t skip = uint64_t{slice} * operation.slice_bytes;
  uint64_t left = bytesOf(operation, slice);
  for (const auto& range : operation.local) {
    if (left == 0) break;
    if (skip >= range.length) {
      skip -= range.length;
      continue;
    }
    const uint64_t length = std::min(left, range.length - skip);
    take(LocalRange{range.region, range.offset + skip, length});
    left -= length;
    skip = 0;
  }
}

size_t LinkCore::localRanges(const Slice& slice, LocalRange* into) {
  std::lock_guard lock(mutex_);
  const Operation* operation = find(slice.operation);
  if (operation == nullptr) return 0;
  size_t parts = 0;
  forEachPart(*operation, slice.index, [&](const LocalRange& part) { into[parts++] = part; });
  return parts;
}

size_t LinkCore::localParts(const Operation& operation, uint32_t slice, iovec* into) const {
  size_t parts = 0;
  forEachPart(operation, slice, [&](const LocalRange& part) {
    into[parts++] = {part.region->base() + part.offset, part.length};
  });
  return parts;
}

size_t LinkCore::localBytes(const Slice& slice, iovec* into) {
  std::lock_guard lock(mutex_);
  const Operation* operation = find(slice.operation);
  return operation == nullptr ? 0 : localParts(*operation, slice.index, into);
}

bool LinkCore::takeSlice(OperationId id, uint32_t slice, uint32_t bytes, iovec* into,
                         size_t& parts) {
  std::lock_guard lock(mutex_);
  Operation* operation = find(id);
  if (operation == nullptr || operation->write || slice >= operation->slices ||
      !bit(operation->open, slice) || bytes != bytesOf(*operation, slice)) {
    return false;
  }
  clearBit(operation->open, slice);
  setBit(operation->taken, slice);
  parts = localParts(*operation, slice, into);
  return true;
}

void LinkCore::untakeSlice(OperationId id, uint32_t slice) {
  std::lock_guard lock(mutex_);
  Operation* operation = find(id);
  if (operation == nullptr || operation->write || slice >= operation->slices ||
      !bit(operation->taken, slice))
    return;
  clearBit(operation->taken, slice);
  setBit(operation->open, slice);
}

bool LinkCore::answerSlice(OperationId id, uint32_t slice, bool write, Outcome outcome) {
  Completion completion;
  std::vector<Pin> pins;
  {
    std::lock_guard lock(mutex_);
    Operation* operation = find(id);
    if (operation == nullptr || operation->write != write || slice >= operation->slices)
      return false;
    // Data that arrived was taken before; everything else answers a slice that is still open.
    auto& bits = !write && outcome == Outcome::kOk ? operation->taken : operation->open;
    if (!bit(bits, slice)) return false;
    clearBit(bits, slice);
    if (write &&
        bit(operation->taken, slice)) {  // the lane is not done with the memory: endSend() goes on
      operation->early.emplace_back(slice, outcome);
      return true;
    }
    if (!finishSlice(*operation, static_cast<uint32_t>(id), slice, outcome)) return true;
    pins = std::move(operation->pins);
    completion = complete(static_cast<uint32_t>(id));
  }
  pins.clear();
  setup_.queue->push(std::move(completion));
  return true;
}

size_t LinkCore::beginSend(const Slice& slice, iovec* into) {
  std::lock_guard lock(mutex_);
  Operation* operation = find(slice.operation);
  if (operation == nullptr || slice.index >= operation->slices ||
      !bit(operation->open, slice.index))
    return 0;
  setBit(operation->taken, slice.index);
  return localParts(*operation, slice.index, into);
}

void LinkCore::endSend(OperationId id, uint32_t slice) {
  Completion completion;
  std::vector<Pin> pins;
  {
    std::lock_guard lock(mutex_);
    Operation* operation = find(id);
    if (operation == nullptr || slice >= operation->slices) return;
    clearBit(operation->taken, slice);
    const auto early = std::find_if(operation->early.begin(), operation->early.end(),
                                    [&](const auto& each) { return each.first == slice; });
    if (early == operation->early.end()) return;
    const Outcome outcome = early->second;
    operation->early.erase(early);
    if (!finishSlice(*operation, static_cast<uint32_t>(id), slice, outcome)) return;
    pins = std::move(operation->pins);
    completion = complete(static_cast<uint32_t>(id));
  }
  pins.clear();
  setup_.queue->push(std::move(completion));
}

// Under mutex_. True when it was the operation's last.
bool LinkCore::finishSlice(Operation& operation, uint32_t slot, uint32_t slice, Outcome outcome) {
  const uint32_t bytes = bytesOf(operation, slice);
  operation.outstanding -= bytes;
  scheduler_.answered(operation.klass, bytes);
  if (!operation.asked_us.empty()) {
    const int64_t now = nowUs();
    scheduler_.measured(operation.klass, bytes,
                        static_cast<uint32_t>(now - operation.asked_us[slice]), now);
  }
  if (outcome != Outcome::kOk) {
    operation.outcome = outcome;
    if (operation.next < operation.slices) {  // what was not asked for need not be
      scheduler_.drop(slot, operation.klass);
      operation.slices = operation.next;
    }
  } else {
    (operation.write ? stats_.bytes_written : stats_.bytes_read)[index(operation.klass)] += bytes;
  }
  return ++operation.answered == operation.slices;
}

Completion LinkCore::complete(uint32_t slot) {
  Operation& operation = operations_[slot];
  Completion completion;
  completion.kind = operation.write ? Completion::Kind::kWrite : Completion::Kind::kRead;
  completion.outcome = operation.outcome;
  completion.context = operation.context;
  completion.bytes = operation.remote.length;
  completion.link = shared_from_this();
  operation.used = false;
  ++operation.generation;
  operation.pins.clear();
  free_.push_back(slot);
  outstanding_.fetch_sub(1);
  return completion;
}

Outcome LinkCore::send(MessageClass klass, std::span<const std::byte> head,
                       std::span<const std::byte> body) {
  const size_t length = head.size() + body.size();
  if (length > setup_.peer_hello.message_bytes) return Outcome::kTooLong;
  {
    std::lock_guard lock(mutex_);
    if (state_.load() != LinkState::kUp) return Outcome::kLinkDown;
    Room& room = room_[index(klass)];
    bool allowed = false;
    if (klass == MessageClass::kReply) {
      allowed = replies_due_ != 0;
      if (allowed) --replies_due_;
    } else {
      allowed = room.there != 0 &&
                (klass != MessageClass::kRequest || unanswered_ < setup_.options.requests);
      if (allowed) --room.there;
      if (allowed && klass == MessageClass::kRequest) ++unanswered_, ++replies_expected_;
    }
    if (!allowed) {
      room.refused = klass != MessageClass::kReply;
      ++stats_.no_credit;
      return Outcome::kNoCredit;
    }
    ++stats_.messages_sent;
    stats_.sent += head.size() + body.size();
  }
  wire::Header header;
  header.frame = wire::Frame::kMessage;
  header.klass = static_cast<uint8_t>(klass);
  header.length = static_cast<uint32_t>(length);
  transmit(header, head, body);
  return Outcome::kOk;
}

void LinkCore::messageTaken(MessageClass klass, size_t bytes) {
  if (klass == MessageClass::kRequest) unread_.shrink(bytes);
  wire::Header header;
  bool refused = false;
  {
    std::lock_guard lock(mutex_);
    if (state_.load() != LinkState::kUp) return;
    Room& room = room_[index(klass)];
    if (klass == MessageClass::kReply) {
      --unanswered_;
      Room& requests = room_[index(MessageClass::kRequest)];
      refused = requests.refused && requests.there != 0;
      if (refused) requests.refused = false;
    } else if (++room.taken * 2 >= room.window) {
      header.frame = wire::Frame::kCredit;
      header.klass = static_cast<uint8_t>(klass);
      header.code = room.taken;
      room.here += room.taken;
      room.taken = 0;
    }
  }
  if (header.code != 0) transmit(header, {}, {});
  if (refused) {
    Completion completion;
    completion.kind = Completion::Kind::kCredit;
    completion.message_class = MessageClass::kRequest;
    completion.link = shared_from_this();
    setup_.queue->push(std::move(completion));
  }
}

std::string LinkCore::control(const wire::Header& header, std::span<const std::byte> payload,
                              std::vector<Completion>& into) {
  switch (header.frame) {
    case wire::Frame::kPing: {
      wire::Header pong;
      pong.frame = wire::Frame::kPong;
      transmit(pong, {}, {});
      return "";
    }
    case wire::Frame::kPong:
      return "";
    case wire::Frame::kGoodbye: {
      std::string text(reinterpret_cast<const char*>(payload.data()),
                       std::min<size_t>(payload.size(), wire::kMaxGoodbye));
      for (char& c : text) {
        if (c < ' ' || c > '~') c = '?';
      }
      fail("the peer ended it: " + text);
      return "";
    }
    case wire::Frame::kMessage: {
      if (header.klass >= kMessageClasses)
        return base::format("a message of unknown class {}", header.klass);
      const auto klass = static_cast<MessageClass>(header.klass);
      {
        std::lock_guard lock(mutex_);
        if (klass == MessageClass::kReply) {
          if (replies_expected_ == 0) return "a reply to nothing";
          --replies_expected_;
        } else {
          Room& room = room_[header.klass];
          if (room.here == 0)
            return base::format("a message of class {} for which there was no room", header.klass);
          --room.here;
          if (klass == MessageClass::kRequest) ++replies_due_;
        }
        ++stats_.messages_received;
        stats_.received += payload.size();
      }
      if (klass == MessageClass::kRequest) {
        unread_.grow(payload.size());
        if (unread_.tooMuch()) {
          unread_.shrink(payload.size());
          return "with others of its key it asks more than it waits for";
        }
      }
      Completion completion;
      completion.kind = Completion::Kind::kMessage;
      completion.message_class = klass;
      completion.link = shared_from_this();
      completion.bytes = payload.size();
      completion.message = Message(completion.link, klass, {payload.begin(), payload.end()});
      into.push_back(std::move(completion));
      return "";
    }
    case wire::Frame::kCredit: {
      if (header.klass >= kMessageClasses || header.klass == index(MessageClass::kReply))
        return "credit of no class";
      std::lock_guard lock(mutex_);
      Room& room = room_[header.klass];
      const uint32_t granted[] = {setup_.peer_hello.notices, setup_.peer_hello.requests, 0,
                                  setup_.peer_hello.stream};
      if (header.code > granted[header.klass] - room.there) return "credit above what was sent";
      room.there += header.code;
      const bool open =
          header.klass != index(MessageClass::kRequest) || unanswered_ < setup_.options.requests;
      if (room.refused && open) {
        room.refused = false;
        Completion completion;
        completion.kind = Completion::Kind::kCredit;
        completion.message_class = static_cast<MessageClass>(header.klass);
        completion.link = shared_from_this();
        into.push_back(std::move(completion));
      }
      return "";
    }
    default:
      return base::format("a frame of unknown kind {}", static_cast<unsigned>(header.frame));
  }
}

void LinkCore::fail(const std::string& reason, bool tell) {
  {
    std::lock_guard lock(mutex_);
    if (state_.load() != LinkState::kUp) return;
    state_.store(LinkState::kFailing);
    reason_ = reason;
  }
  stop(tell);
}

void LinkCore::stopped() {
  std::vector<Completion> completions;
  std::vector<Pin> pins;
  {
    std::lock_guard lock(mutex_);
    state_.store(LinkState::kDown);
    for (uint32_t slot = 0; slot < operations_.size(); ++slot) {
      Operation& operation = operations_[slot];
      if (!operation.used) continue;
      operation.outcome = Outcome::kLinkDown;
      for (auto& pin : operation.pins) pins.push_back(std::move(pin));
      completions.push_back(complete(slot));
    }
  }
  pins.clear();
  Completion down;
  down.kind = Completion::Kind::kDown;
  down.outcome = Outcome::kLinkDown;
  down.link = shared_from_this();
  completions.push_back(std::move(down));
  base::log(linkLogLevel(), "link to %s (%s) is down: %s", setup_.peer.node.c_str(),
            setup_.peer.address.c_str(), reason().c_str());
  setup_.queue->push(completions);
}

void LinkCore::onTick(bool late) {
  if (state_.load() != LinkState::kUp) return;
  const int64_t now = nowMs();
  // The peer's messages from while this process did not run are still to be read.
  const bool heard = heard_.exchange(false, std::memory_order_relaxed);
  if (heard) pinged_ = false;
  if (heard || late) last_heard_ms_ = now;
  const int64_t silence = now - last_heard_ms_;
  if (setup_.options.silent_ms != 0 && silence > setup_.options.silent_ms) {
    fail(base::format("the peer has not answered for {} ms", silence), true);
    return;
  }
  if (const std::string why = standstill(now, late); !why.empty()) {
    fail(why, true);
    return;
  }
  // One is enough, none is lost: a peer that is stopped finds no heap of them.
  if (silence < setup_.options.ping_ms || pinged_) return;
  pinged_ = true;
  wire::Header ping;
  ping.frame = wire::Frame::kPing;
  transmit(ping, {}, {});
}

}  // namespace olpager::transport
