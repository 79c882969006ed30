#include "coherence/transport/tcp/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace olpager::transport {
namespace {

constexpr size_t kControlBuffer = 64 << 10;
constexpr size_t kLaneBudget = 256 << 10;  // moved in one go before others get their turn
// Room for bytes that are for nobody: the longest slice fits a frame's parts.
constexpr size_t kScratch = wire::kMaxSlice / kMaxLocalRanges;

}  // namespace

struct TcpLink::Lane final {
  Stream stream;
  uint32_t number = 0;
  Reactor* reactor = nullptr;
  std::shared_ptr<Reactor::Source> source;

  // Receiving: the reactor's thread only.
  wire::Header header;
  size_t header_have = 0;
  iovec parts[kMaxLocalRanges + 1];  // the rest of the payload; room for the next header behind it
  size_t parts_first = 0, parts_count = 0;
  uint64_t payload_left = 0;
  Pin target;                      // kPush: the memory
  Outcome refused = Outcome::kOk;  // kPush: the payload is thrown away
  std::vector<std::byte> scratch;
  std::atomic<int64_t> moved_ms{
      0};  // when something of an unfinished frame arrived last; 0: none is unfinished

  // Sending: under `sending`.
  std::mutex sending;
  bool active = false;  // a frame has begun
  // EPOLLOUT is asked for. Looked at without the lock as well: who is so finds by itself what is
  // queued.
  std::atomic<bool> blocked{false};
  bool closed = false;
  AckWatch acks;
  wire::Header out_header;
  iovec out[kMaxLocalRanges + 1];
  size_t out_first = 0, out_count = 0;
  Pin out_pin;
};

class TcpLink::ControlSource final : public Reactor::Source, public Pollable {
 public:
  explicit ControlSource(std::shared_ptr<TcpLink> link) : link_(std::move(link)) {}
  void onEvents(uint32_t events) override {
    if ((events & EPOLLOUT) != 0) {
      std::lock_guard lock(link_->control_out_);
      link_->flushControl();
    }
    if ((events & ~uint32_t{EPOLLOUT}) != 0) link_->readControl();
  }
  int pollFd() const override { return link_->control_.fd(); }
  void drive() override { link_->readControl(); }
  bool transferring() const override { return link_->transferring(); }
  Reactor& reactor() const override { return *link_->control_reactor_; }
  void leaveToWaiter(bool leave) override {
    std::lock_guard lock(link_->control_out_);
    if (link_->left_to_waiter_ == leave) return;
    link_->left_to_waiter_ = leave;
    link_->watchControl();
  }

 private:
  const std::shared_ptr<TcpLink> link_;
};

namespace {

class LaneSource final : public Reactor::Source {
 public:
  explicit LaneSource(std::function<void(uint32_t)> events) : events_(std::move(events)) {}
  void onEvents(uint32_t events) override { events_(events); }

 private:
  const std::function<void(uint32_t)> events_;
};

}  // namespace

TcpLink::TcpLink(LinkSetup setup, Stream control)
    : LinkCore(std::move(setup)), control_(std::move(control)) {}
TcpLink::~TcpLink() = default;

std::shared_ptr<TcpLink> TcpLink::make(LinkSetup setup, Stream control, std::vector<Stream> lanes,
                                       const std::vector<Reactor*>& reactors) {
  std::shared_ptr<TcpLink> link(new TcpLink(std::move(setup), std::move(control)));
  link->adopt(std::move(lanes), reactors, 0);
  return link;
}

void TcpLink::adopt(std::vector<Stream> lanes, const std::vector<Reactor*>& reactors,
                    uint32_t parts) {
  const size_t first = setup_.id[0];  // links begin at different reactors
  control_reactor_ = reactors[first % reactors.size()];
  in_.resize(kControlBuffer + setup_.options.limits.message_bytes);
  for (size_t i = 0; i < lanes.size(); ++i) {
    auto lane = std::make_unique<Lane>();
    lane->stream = std::move(lanes[i]);
    lane->number = static_cast<uint32_t>(i);
    lane->reactor = reactors[(first + i) % reactors.size()];
    lanes_.push_back(std::move(lane));
  }
  running_ = static_cast<uint32_t>(lanes_.size()) + 1 + parts;
}

void TcpLink::start(bool announce) {
  auto self = std::static_pointer_cast<TcpLink>(shared_from_this());
  // Before anybody hears of the link: the program may end it at once.
  std::lock_guard lock(starting_);
  if (state() == LinkState::kDown) return;  // the endpoint has ended it already
  begin();
  if (announce) {
    Completion up;
    up.kind = Completion::Kind::kUp;
    up.link = self;
    setup_.queue->push(std::move(up));
  }
  for (auto& lane : lanes_) {
    // The program has heard of the link and may be sending already; the thread that ends it may
    // have closed some connections.
    std::lock_guard sending(lane->sending);
    if (lane->stream.fd() < 0) continue;
    lane->source = std::make_shared<LaneSource>(
        [self, raw = lane.get()](uint32_t events) { self->laneEvents(*raw, events); });
    lane->reactor->add(lane->stream.fd(), lane->blocked ? EPOLLIN | EPOLLOUT : EPOLLIN,
                       lane->source);
  }
  {
    std::lock_guard out(control_out_);
    if (control_.fd() < 0) return;
    control_source_ = std::make_shared<ControlSource>(self);
    control_reactor_->add(control_.fd(), out_blocked_ ? EPOLLIN | EPOLLOUT : EPOLLIN,
                          control_source_);
  }
  control_reactor_->addTicker(weak_from_this());
  if (messagesByControl()) setup_.queue->add(control_source_);
  listen();
}

uint32_t TcpLink::sliceBytes(bool /*write*/, Class klass, uint64_t length,
                             uint64_t under_way) const {
  const auto lanes = static_cast<uint32_t>(lanes_.size());
  // All lanes together carry at most one slice of what is not urgent; urgent operations use all
  // lanes at once. If all lanes are busy with others of their class for a while, that makes none of
  // them faster, and each slice has its price.
  uint64_t bytes = setup_.options.slice_bytes / lanes;
  if (klass <= Class::kDemand) {
    const bool all_busy = under_way >= uint64_t{setup_.options.slice_bytes} * lanes;
    bytes = all_busy ? wire::kMaxSlice
                     : std::min<uint64_t>((length + lanes - 1) / lanes, setup_.options.slice_bytes);
  }
  bytes = (bytes + wire::kMinSlice - 1) / wire::kMinSlice * wire::kMinSlice;
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes, wire::kMinSlice, wire::kMaxSlice));
}

void TcpLink::messagesByControlNow() { setup_.queue->add(control_source_); }

// ---- asking

void TcpLink::issue() {
  Slice slice;
  const auto next = [&]() -> const Slice* {
    while (nextSlice(slice)) {
      if (!take(slice)) return &slice;
    }
    return nullptr;
  };
  ask(next);
}

void TcpLink::byLanes(std::span<const Slice> slices) {
  ask([&]() -> const Slice* {
    if (slices.empty()) return nullptr;
    const Slice* const first = &slices.front();
    slices = slices.subspan(1);
    return first;
  });
}

template <typename Next>
void TcpLink::ask(Next&& next) {
  uint32_t pushes = 0;
  bool pulls = false;
  while (const Slice* const each = next()) {
    const Slice& slice = *each;
    Egress egress;
    egress.header.klass = static_cast<uint8_t>(slice.klass);
    egress.header.operation = slice.operation;
    egress.header.index = slice.index;
    egress.header.key = slice.key;
    egress.header.offset = slice.offset;
    egress.klass = slice.klass;
    if (slice.write) {
      egress.header.frame = wire::Frame::kPush;
      egress.header.length = slice.bytes;
      enqueue(egress);
      ++pushes;
    } else {
      egress.header.frame = wire::Frame::kPull;
      egress.header.bytes = slice.bytes;
      std::lock_guard lock(control_out_);
      append(&egress.header, sizeof egress.header);
      pulls = true;
    }
  }
  if (pulls) {
    std::lock_guard lock(control_out_);
    flushControl();
  }
  if (pushes != 0) sendOnLanes(pushes);
}

void TcpLink::enqueue(Egress egress) {
  std::lock_guard lock(egress_mutex_);
  if (egress.header.frame == wire::Frame::kData) unread_.grow(sizeof egress);
  egress_.push(egress.klass, egress);
  egress_size_.store(egress_.size());
}

// Gives idle lanes something to do, no more of them than slices were queued: to wake one costs as
// much as to copy tens of KiB. A lane that is busy takes more when it is done; it is not waited
// for: it holds its lock while it copies.
void TcpLink::sendOnLanes(uint32_t queued) {
  const auto lanes = static_cast<uint32_t>(lanes_.size());
  const uint32_t first = next_lane_.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < lanes && queued != 0 && egress_size_.load() != 0; ++i) {
    Lane& lane = *lanes_[(first + i) % lanes];
    // A lane says that it is idle before it looks into the queue for the last time, and what is
    // queued was there before this look.
    if (lane.blocked.load()) continue;
    std::lock_guard lock(lane.sending);
    if (lane.blocked || lane.closed) continue;
    lane.blocked = true;  // its own thread begins at once: the socket is writable
    --queued;
    lane.reactor->modify(lane.stream.fd(), EPOLLIN | EPOLLOUT);
  }
}

// ---- the first connection

void TcpLink::transmit(const wire::Header& header, std::span<const std::byte> head,
                       std::span<const std::byte> body) {
  bool deaf = false;
  {
    std::lock_guard lock(control_out_);
    append(&header, sizeof header);
    append(head.data(), head.size());
    append(body.data(), body.size());
    flushControl();
    if (isAnswer(header.frame) && !out_.empty()) {
      out_answers_.push_back(out_begin_ + out_.size());
      deaf = tooManyAnswers(out_answers_.size()) || unread_.tooMuch();
    }
    if (isReply(header) && !out_.empty()) {
      out_replies_.push_back(out_begin_ + out_.size());
      deaf = tooManyReplies(out_replies_.size()) || unread_.tooMuch();
    }
  }
  if (deaf) fail(kDeaf);
}

void TcpLink::append(const void* bytes, size_t length) {
  const auto* from = static_cast<const std::byte*>(bytes);
  out_.insert(out_.end(), from, from + length);
  unread_.grow(length);
}

// Under control_out_. Bytes that the socket does not take now go out when it is writable. An error
// shows when reading.
void TcpLink::flushControl() {
  bool blocked = false;
  while (out_sent_ < out_.size() && control_.fd() >= 0) {
    const iovec part{out_.data() + out_sent_, out_.size() - out_sent_};
    const ssize_t put = control_.write(&part, 1);
    if (put > 0) {
      out_sent_ += static_cast<size_t>(put);
      unread_.shrink(static_cast<uint64_t>(put));
      continue;
    }
    blocked = put == -EAGAIN;
    if (blocked) break;
    unread_.shrink(out_.size() - out_sent_);
    out_sent_ = out_.size();
    break;
  }
  for (auto* const waiting : {&out_answers_, &out_replies_}) {
    while (!waiting->empty() && waiting->front() <= out_begin_ + out_sent_) waiting->pop_front();
  }
  if (out_sent_ == out_.size() || out_sent_ > kControlBuffer) {
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_sent_));
    out_begin_ += out_sent_;
    out_sent_ = 0;
  }
  if (blocked != out_blocked_) {
    out_blocked_ = blocked;
    watchControl();
  }
}

void TcpLink::watchControl() {
  const uint32_t in = left_to_waiter_ ? 0u : uint32_t{EPOLLIN};
  const uint32_t out = out_blocked_ ? uint32_t{EPOLLOUT} : 0u;
  control_reactor_->modify(control_.fd(), in | out);
}

void TcpLink::readControl(bool wait) {
  std::unique_lock lock(control_in_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;  // somebody is at it; what is left rings again
  }
  std::vector<Completion> completions;
  std::string broken;
  ssize_t got = 1;
  while (broken.empty() && control_.fd() >= 0) {
    const iovec part{in_.data() + in_used_, in_.size() - in_used_};
    got = control_.read(&part, 1);
    if (got <= 0) break;
    heard();
    in_used_ += static_cast<size_t>(got);
    const size_t done =
        takeFrames({in_.data(), in_used_}, broken,
                   [&](const wire::Header& header, std::span<const std::byte> payload) {
                     return controlFrame(header, payload, completions);
                   });
    std::memmove(in_.data(), in_.data() + done, in_used_ - done);
    in_used_ -= done;
    // In the clear a short read has emptied the socket; more would ring again.
    if (!control_.encrypted() && static_cast<size_t>(got) < part.iov_len) break;
  }
  setup_.queue->push(completions);  // before anybody else can receive what comes next
  const bool is_lost = broken.empty() && got <= 0 && got != -EAGAIN;
  const std::string why =
      is_lost ? control_.errorText(got) : "";  // stop() ends the stream under the lock
  lock.unlock();
  if (!broken.empty()) {
    fail("the peer broke the protocol: " + broken, true);
  } else if (is_lost) {
    fail("the connection is lost: " + why);
  }
}

std::string TcpLink::controlFrame(const wire::Header& header, std::span<const std::byte> payload,
                                  std::vector<Completion>& completions) {
  switch (header.frame) {
    case wire::Frame::kPull: {
      if (header.length != 0) return "a request with a payload";
      if (header.klass >= kClasses) return base::format("a read of unknown class {}", header.klass);
      if (header.bytes == 0 || header.bytes > wire::kMaxSlice)
        return base::format("a slice of {} bytes", header.bytes);
      if (egress_size_.load() >= setup_.options.limits.slices + setup_.options.operations ||
          unread_.tooMuch())
        return "too many slices asked for";
      Pin pin;
      Outcome outcome =
          setup_.domain->pin(header.key, header.offset, header.bytes, kRemoteRead, pin);
      if (outcome == Outcome::kBadRange) return "a read of memory that was never granted";
      if (pin && pin->base == nullptr) outcome = Outcome::kUnreachable;
      Egress egress;
      egress.header = header;
      egress.klass = static_cast<Class>(header.klass);
      if (outcome != Outcome::kOk) {
        egress.header.frame = wire::Frame::kRefuse;
        egress.header.code = static_cast<uint32_t>(outcome);
        transmit(egress.header, {}, {});
        return "";
      }
      egress.header.frame = wire::Frame::kData;
      egress.header.length = static_cast<uint32_t>(header.bytes);
      enqueue(egress);
      sendOnLanes(1);
      return "";
    }
    case wire::Frame::kAck:
    case wire::Frame::kRefuse: {
      const bool ack = header.frame == wire::Frame::kAck;
      if (header.length != 0 || (!ack && !isRefusal(header.code))) return "a bad answer";
      // A refusal can answer either; kAck only a write.
      const Outcome outcome = ack ? Outcome::kOk : static_cast<Outcome>(header.code);
      if (!answerSlice(header.operation, header.index, true, outcome) &&
          (ack || !answerSlice(header.operation, header.index, false, outcome))) {
        return "an answer to nothing";
      }
      issue();
      return "";
    }
    default:
      return frame(header, payload, completions);
  }
}

// ---- lanes: receiving

void TcpLink::laneEvents(Lane& lane, uint32_t events) {
  // Between any two pieces of bulk: what is asked for on the first connection may be more urgent.
  if (!left_to_waiter_.load(std::memory_order_relaxed)) readControl();
  if ((events & EPOLLOUT) != 0) sendOnLane(lane);
  if ((events & ~uint32_t{EPOLLOUT}) != 0 && !readLane(lane)) {
    // Encrypted bytes may wait inside TLS, where epoll does not see them.
    auto self = std::static_pointer_cast<TcpLink>(shared_from_this());
    lane.reactor->post([self, &lane] { self->laneEvents(lane, EPOLLIN); });
  }
}

// False: stopped for the sake of others although there may be more that epoll does not know of.
bool TcpLink::readLane(Lane& lane) {
  size_t budget = kLaneBudget;
  while (state() == LinkState::kUp) {
    // The rest of the payload and the next header in one call.
    iovec* parts = lane.parts + lane.parts_first;
    size_t count = lane.parts_count - lane.parts_first;
    parts[count++] = {reinterpret_cast<std::byte*>(&lane.header) + lane.header_have,
                      sizeof lane.header - lane.header_have};
    const bool whole_header = lane.header_have == 0 && lane.payload_left != 0;
    wire::Header next;
    if (whole_header) parts[count - 1] = {&next, sizeof next};
    const ssize_t got = lane.stream.read(parts, count);
    if (got <= 0) {
      if (got != -EAGAIN) lost(lane.stream, got, "a lane");
      return true;
    }
    heard();
    auto bytes = static_cast<uint64_t>(got);
    size_t asked = 0;
    for (size_t i = 0; i < count; ++i) asked += parts[i].iov_len;
    if (lane.payload_left != 0) {
      const uint64_t payload = std::min(bytes, lane.payload_left);
      lane.parts_first = advance(lane.parts, lane.parts_first, lane.parts_count, payload);
      lane.payload_left -= payload;
      bytes -= payload;
      if (lane.payload_left == 0) {
        laneDone(lane);
        lane.parts_first = lane.parts_count = 0;
        if (whole_header) std::memcpy(&lane.header, &next, bytes);
        lane.header_have = bytes;
      }
    } else {
      lane.header_have += bytes;
    }
    if (lane.payload_left == 0 && lane.header_have == sizeof lane.header) {
      lane.header_have = 0;
      if (const std::string broken = laneFrame(lane); !broken.empty()) {
        fail("the peer broke the protocol: " + broken, true);
        return true;
      }
    }
    lane.moved_ms.store(lane.payload_left != 0 || lane.header_have != 0 ? nowMs() : 0,
                        std::memory_order_relaxed);
    if (!lane.stream.encrypted() && static_cast<size_t>(got) < asked) return true;
    if (budget <= static_cast<size_t>(got)) return !lane.stream.encrypted();
    budget -= static_cast<size_t>(got);
  }
  return true;
}

std::string TcpLink::standstill(int64_t now_ms, bool late) {
  std::string why = setup_.options.silent_ms != 0 ? halfSent(now_ms, late) : "";
  return why.empty() ? deadHost(now_ms, late) : why;
}

// A peer that answers pings but leaves a frame half sent would hold on to the memory that it goes
// to. A byte is progress: however slow a network is, it is not the clock that ends a transfer. A
// peer that sends bytes apart on purpose holds memory that was granted to him; whose it is decides
// how long (memserver/server/service.h: kEndMs).
std::string TcpLink::halfSent(int64_t now_ms, bool late) {
  for (auto& lane : lanes_) {
    int64_t moved = lane->moved_ms.load(std::memory_order_relaxed);
    if (moved == 0) continue;
    if (late) {
      lane->moved_ms.compare_exchange_strong(moved, now_ms);
    } else if (now_ms - moved > setup_.options.silent_ms) {
      return base::format("the peer has left a slice half sent for {} ms", now_ms - moved);
    }
  }
  return "";
}

// A host that is gone while bytes are on their way to it, on any of the connections. One without is
// found by the system's probes.
std::string TcpLink::deadHost(int64_t now_ms, bool late) {
  constexpr uint32_t kLooks = 8;  // while it may be dead
  if (!late && now_ms - acks_seen_ms_ < setup_.options.dead_ms / kLooks) return "";
  acks_seen_ms_ = now_ms;
  int64_t longest = control_acks_.unansweredMs(control_.fd(), now_ms, late);
  for (auto& lane : lanes_) {
    std::lock_guard lock(lane->sending);
    longest = std::max(longest, lane->acks.unansweredMs(lane->stream.fd(), now_ms, late));
  }
  if (longest <= setup_.options.dead_ms) return "";
  return base::format("the peer's host has acknowledged nothing for {} ms", longest);
}

// A header is complete: where does its payload go?
std::string TcpLink::laneFrame(Lane& lane) {
  const wire::Header& header = lane.header;
  if (header.format != wire::kFormat) return base::format("a frame of format {}", header.format);
  if (header.length == 0 || header.length > wire::kMaxSlice)
    return base::format("a slice of {} bytes", header.length);
  lane.refused = Outcome::kOk;
  lane.parts_first = 0;
  if (header.frame == wire::Frame::kData) {
    if (!takeSlice(header.operation, header.index, header.length, lane.parts, lane.parts_count)) {
      return "bytes that nobody asked for";
    }
  } else if (header.frame == wire::Frame::kPush) {
    if (header.klass >= kClasses) return base::format("a write of unknown class {}", header.klass);
    lane.refused =
        setup_.domain->pin(header.key, header.offset, header.length, kRemoteWrite, lane.target);
    if (lane.refused == Outcome::kBadRange) return "a write to memory that was never granted";
    if (lane.target && lane.target->base == nullptr) {
      lane.refused = Outcome::kUnreachable;
      lane.target.reset();
    }
    lane.parts_count = 0;
    if (lane.refused == Outcome::kOk) {
      lane.parts[lane.parts_count++] = {lane.target->base + header.offset, header.length};
    } else {
      lane.scratch.resize(kScratch);
      for (size_t left = header.length; left != 0; left -= lane.parts[lane.parts_count++].iov_len)
        lane.parts[lane.parts_count] = {lane.scratch.data(), std::min(left, kScratch)};
    }
  } else {
    return base::format("a frame of kind {} on a lane", static_cast<unsigned>(header.frame));
  }
  lane.payload_left = header.length;
  return "";
}

// A payload is complete.
void TcpLink::laneDone(Lane& lane) {
  if (lane.header.frame == wire::Frame::kData) {
    answerSlice(lane.header.operation, lane.header.index, false, Outcome::kOk);
    issue();
    return;
  }
  lane.target.reset();
  lane.scratch = {};
  wire::Header answer;
  answer.frame = lane.refused == Outcome::kOk ? wire::Frame::kAck : wire::Frame::kRefuse;
  answer.code = static_cast<uint32_t>(lane.refused);
  answer.operation = lane.header.operation;
  answer.index = lane.header.index;
  countServed(lane.header.length, false);
  transmit(answer, {}, {});
}

// ---- lanes: sending

// Takes the next frame; false when there is none. Under lane.sending.
bool TcpLink::beginFrame(Lane& lane) {
  for (;;) {
    Egress next;
    {
      std::lock_guard lock(egress_mutex_);
      if (egress_.empty()) return false;
      next = egress_.pop();
      egress_size_.store(egress_.size());
      if (next.header.frame == wire::Frame::kData) unread_.shrink(sizeof next);
    }
    lane.out_header = next.header;
    lane.out[0] = {&lane.out_header, sizeof lane.out_header};
    lane.out_first = 0;
    if (next.header.frame == wire::Frame::kPush) {
      Slice slice;
      slice.operation = next.header.operation;
      slice.index = next.header.index;
      lane.out_count = 1 + beginSend(slice, lane.out + 1);
      if (lane.out_count == 1)
        continue;  // nobody waits for it: the operation ended, or was answered unsent
    } else {
      const Outcome outcome = setup_.domain->pin(next.header.key, next.header.offset,
                                                 next.header.length, kRemoteRead, lane.out_pin);
      if (outcome != Outcome::kOk) {  // taken back since it was asked for
        next.header.frame = wire::Frame::kRefuse;
        next.header.code = static_cast<uint32_t>(Outcome::kRevoked);
        next.header.length = 0;
        transmit(next.header, {}, {});
        continue;
      }
      lane.out[1] = {lane.out_pin->base + next.header.offset, next.header.length};
      lane.out_count = 2;
      countServed(next.header.length, true);
    }
    lane.active = true;
    return true;
  }
}

void TcpLink::sendOnLane(Lane& lane) {
  std::lock_guard lock(lane.sending);
  if (lane.closed) return;
  for (size_t sent = 0; sent < kLaneBudget;) {  // the rest when the socket is writable again
    if (!lane.active && !beginFrame(lane)) {
      // The lane is idle from here on; what was queued meanwhile has to find it so, or be found
      // now.
      lane.blocked = false;
      lane.reactor->modify(lane.stream.fd(), EPOLLIN);
      if (egress_size_.load() == 0) return;
      lane.blocked = true;
      lane.reactor->modify(lane.stream.fd(), EPOLLIN | EPOLLOUT);
      continue;
    }
    const ssize_t put =
        lane.stream.write(lane.out + lane.out_first, lane.out_count - lane.out_first);
    if (put <= 0) {
      if (put != -EAGAIN) lane.closed = true;  // reading tells why
      return;
    }
    sent += static_cast<size_t>(put);
    lane.out_first = advance(lane.out, lane.out_first, lane.out_count, static_cast<size_t>(put));
    if (lane.out_first == lane.out_count) {
      lane.active = false;
      lane.out_pin.reset();
      if (lane.out_header.frame == wire::Frame::kPush)
        endSend(lane.out_header.operation, lane.out_header.index);
    }
  }
}

// ---- the end

// A connection is gone; if the peer said why, that is the reason.
void TcpLink::lost(const Stream& stream, ssize_t result, const char* which) {
  readControl(true);
  fail(base::format("{} is lost: {}", which, stream.errorText(result)));
}

// Each connection is closed on its reactor's thread, when nobody else is at it; the last one
// reports.
void TcpLink::stop(bool tell) {
  auto self = std::static_pointer_cast<TcpLink>(shared_from_this());
  if (tell) {
    wire::Header goodbye;
    goodbye.frame = wire::Frame::kGoodbye;
    const std::string text = reason().substr(0, wire::kMaxGoodbye);
    goodbye.length = static_cast<uint32_t>(text.size());
    transmit(goodbye, std::as_bytes(std::span(text)), {});
  }
  for (auto& lane : lanes_) {
    shutdown(lane->stream.fd(), SHUT_RDWR);
    lane->reactor->post([self, raw = lane.get()] {
      std::lock_guard started(self->starting_);
      raw->reactor->remove(raw->stream.fd());
      std::lock_guard lock(raw->sending);
      raw->closed = true;
      raw->out_pin.reset();
      raw->target.reset();
      // Unsent bytes are dropped.
      const linger now{1, 0};
      setsockopt(raw->stream.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      raw->stream.close();
      self->oneStopped();
    });
  }
  control_reactor_->post([self] {
    std::lock_guard started(self->starting_);
    self->setup_.queue->remove(self->control_source_.get());
    self->control_reactor_->remove(self->control_.fd());
    {
      std::scoped_lock locks(self->control_in_, self->control_out_);
      shutdown(self->control_.fd(), SHUT_WR);
      self->control_.close();
    }
    self->oneStopped();
  });
}

void TcpLink::oneStopped() {
  if (running_.fetch_sub(1) != 1) return;
  stopped();
  // The sources hold the link, the link holds the sources.
  control_source_.reset();
  for (auto& lane : lanes_) lane->source.reset();
}

}  // namespace olpager::transport
