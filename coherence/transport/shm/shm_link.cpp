// Long: the two ends of a link share its states, its ring and its lock.
#include "coherence/transport/shm/shm_link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/format.h"
#include "base/log.h"

namespace olpager::transport {
namespace {

constexpr uint32_t kInlineCopy = 64 << 10;  // copied by the caller's own thread
constexpr int kSlicesInOneGo = 16;
constexpr size_t kMostAsked = 64;  // askMemory() of one key that wait for their answers

// A quarter of the processors; half of the threads where somebody has said how many there are.
uint32_t mostPumps(const Options& options, size_t reactors) {
  const uint32_t wanted =
      options.io_threads != 0 ? options.io_threads / 2 : std::thread::hardware_concurrency() / 4;
  return std::clamp<uint32_t>(wanted, 1, static_cast<uint32_t>(reactors));
}

}  // namespace

class ShmLink::BellSource final : public Reactor::Source, public Pollable {
 public:
  explicit BellSource(std::shared_ptr<ShmLink> link) : link_(std::move(link)) {}
  void onEvents(uint32_t) override { link_->drive(); }
  int pollFd() const override { return link_->channel_->ownBell(); }
  void drive() override { link_->consume(); }
  bool transferring() const override { return link_->transferring(); }
  Reactor& reactor() const override { return *link_->home_; }
  bool pending() override {
    return link_->state() == LinkState::kUp && link_->channel_->in.available() != 0;
  }
  bool prepareSleep() override { return link_->arm(); }
  void rearm() override {
    if (link_->arm()) link_->channel_->ringOwn();
  }
  void leaveToWaiter(bool leave) override {
    link_->home_->modify(pollFd(), leave ? 0u : uint32_t{EPOLLIN});
  }

 private:
  const std::shared_ptr<ShmLink> link_;
};

class ShmLink::SocketSource final : public Reactor::Source {
 public:
  explicit SocketSource(std::shared_ptr<ShmLink> link) : link_(std::move(link)) {}
  void onEvents(uint32_t) override { link_->socketEvents(); }

 private:
  const std::shared_ptr<ShmLink> link_;
};

ShmLink::ShmLink(LinkSetup setup, base::UniqueFd socket, std::unique_ptr<Channel> channel,
                 const std::vector<Reactor*>& reactors)
    : LinkCore(std::move(setup)),
      socket_(std::move(socket)),
      channel_(std::move(channel)),
      reactors_(reactors),
      home_(reactors[setup_.id[0] % reactors.size()]),
      most_pumps_(mostPumps(setup_.options, reactors.size())) {}

ShmLink::~ShmLink() = default;

void ShmLink::start(bool announce) {
  auto self = std::static_pointer_cast<ShmLink>(shared_from_this());
  // Before anybody hears of the link: the program may end it at once.
  std::lock_guard lock(starting_);
  if (state() == LinkState::kDown) return;  // the endpoint has ended it already
  if (announce) {
    Completion up;
    up.kind = Completion::Kind::kUp;
    up.link = self;
    setup_.queue->push(std::move(up));
  }
  setup_.domain->watch(std::static_pointer_cast<KeyWatcher>(self));
  bell_ = std::make_shared<BellSource>(self);
  home_->add(socket_.get(), EPOLLIN, std::make_shared<SocketSource>(self));
  home_->add(channel_->ownBell(), EPOLLIN, bell_);
  home_->addTicker(weak_from_this());
  setup_.queue->add(bell_);
  channel_->ringOwn();  // the first look at the ring
}

uint32_t ShmLink::sliceBytes(bool, Class, uint64_t, uint64_t) const {
  return std::clamp<uint32_t>(setup_.options.slice_bytes, wire::kMinSlice, Channel::kSlotBytes);
}

// ---- shares

bool ShmLink::enter() {
  for (uint32_t now = shares_.load(); now != 0;) {
    if (shares_.compare_exchange_weak(now, now + 1)) return true;
  }
  return false;
}

void ShmLink::leave() {
  if (shares_.fetch_sub(1) != 1) return;
  auto self = std::static_pointer_cast<ShmLink>(shared_from_this());
  home_->post([self] { self->cleanUp(); });
}

void ShmLink::stop(bool tell) {
  if (tell) {
    wire::Header goodbye;
    goodbye.frame = wire::Frame::kGoodbye;
    const std::string text = reason().substr(0, wire::kMaxGoodbye);
    goodbye.length = static_cast<uint32_t>(text.size());
    transmit(goodbye, std::as_bytes(std::span(text)), {});
  }
  shutdown(socket_.get(), SHUT_RDWR);
  leave();
}

void ShmLink::cleanUp() {
  std::lock_guard started(starting_);
  setup_.queue->remove(bell_.get());
  home_->remove(channel_->ownBell());
  home_->remove(socket_.get());
  socket_.reset();
  {
    std::lock_guard lock(maps_mutex_);
    for (auto& [key, mapping] : maps_) {
      if (mapping.base != nullptr) munmap(mapping.base, mapping.mapped);
    }
    maps_.clear();
  }
  std::vector<Completion> unanswered;
  std::deque<Work> undone;  // its pins hold memory of the program's
  {
    std::lock_guard lock(maps_mutex_);
    undone.swap(work_);
    for (const auto& [key, contexts] : memory_asked_) {
      for (const uint64_t context : contexts) {
        Completion& completion = unanswered.emplace_back();
        completion.kind = Completion::Kind::kMemory;
        completion.outcome = Outcome::kLinkDown;
        completion.context = context;
        completion.link = shared_from_this();
      }
    }
    memory_asked_.clear();
  }
  setup_.queue->push(unanswered);
  stopped();
  bell_.reset();
}

// ---- operations

// A short slice is copied here and now; the rest is for the pumps.
void ShmLink::issue() {
  if (!enter()) return;
  for (Slice slice; nextSlice(slice);) {
    if (slice.bytes > kInlineCopy) {
      leaveToPumps(slice);
      break;
    }
    perform(slice);
  }
  leave();
}

// True for incoming bytes that take longer than the next should wait.
bool ShmLink::isLong(uint64_t bytes) const { return bytes > kInlineCopy && most_pumps_ > 1; }

void ShmLink::leaveToPumps(Work work) {
  {
    std::lock_guard lock(maps_mutex_);
    work_.push_back(std::move(work));
  }
  startPump();
}

bool ShmLink::nextWork(Work& work) {
  {
    std::lock_guard lock(maps_mutex_);
    if (!work_.empty()) {
      work = std::move(work_.front());
      work_.pop_front();
      return true;
    }
  }
  Slice slice;
  if (!nextSlice(slice)) return false;
  work = slice;
  return true;
}

// One more, unless there are enough: then one of those looks again after it has been taken off the
// count.
void ShmLink::startPump() {
  uint32_t now = pumps_.load();
  do {
    if (now >= most_pumps_) return;
  } while (!pumps_.compare_exchange_weak(now, now + 1));
  auto self = std::static_pointer_cast<ShmLink>(shared_from_this());
  reactors_[next_pump_.fetch_add(1) % reactors_.size()]->post([self] { self->pump(); });
}

void ShmLink::pump() {
  if (!enter()) return;
  bool idle = false;
  for (int i = 0; i < kSlicesInOneGo && state() == LinkState::kUp; ++i) {
    Work work;
    idle = !nextWork(work);
    if (idle) break;
    std::visit([&](auto& one) { perform(one); }, work);
    if (channel_->in.available() != 0) drive();
  }
  pumps_.fetch_sub(1);
  // Work posted while this one was counted has started no other.
  Work work;
  if (!idle) {
    startPump();
  } else if (nextWork(work)) {
    leaveToPumps(std::move(work));
  }
  leave();
}

void ShmLink::perform(const Slice& slice) {
  std::byte* there = nullptr;
  bool ask = false;
  Mapping::State state{};
  {
    std::lock_guard lock(maps_mutex_);
    auto [place, fresh] = maps_.try_emplace(slice.key);
    Mapping& mapping = place->second;
    ask = fresh;
    state = mapping.state;
    if (state == Mapping::State::kAsked) mapping.waiting.push_back(slice);
    if (state == Mapping::State::kMapped) {
      const uint32_t right = slice.write ? kRemoteWrite : kRemoteRead;
      if ((mapping.access & right) == 0 || slice.bytes > mapping.length ||
          slice.offset > mapping.length - slice.bytes) {
        state = Mapping::State::kBounced;  // the program's key claims more than the owner says: the
                                           // owner decides
      } else {
        ++mapping.users;
        there = mapping.bytes + slice.offset;
      }
    }
  }
  if (ask) {
    wire::Header header;
    header.frame = wire::Frame::kMap;
    header.key = slice.key;
    transmit(header, {}, {});
  }
  switch (state) {
    case Mapping::State::kAsked:
      return;
    case Mapping::State::kMapped: {
      copy(slice, there, false);
      std::lock_guard lock(maps_mutex_);
      const auto place = maps_.find(slice.key);
      --place->second.users;
      unmapIfIdle(place->second);
      return;
    }
    case Mapping::State::kBounced:
      bounce(slice);
      return;
    case Mapping::State::kRevoked:
      answerSlice(slice.operation, slice.index, slice.write, Outcome::kRevoked);
      return;
  }
}

// The one copy, and the answer.
void ShmLink::copy(const Slice& slice, std::byte* there, bool bounced) {
  iovec parts[kMaxLocalRanges];
  size_t count = 0;
  if (slice.write) {
    count = localBytes(slice, parts);
  } else if (!takeSlice(slice.operation, slice.index, slice.bytes, parts, count)) {
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (slice.write) {
      std::memcpy(there, parts[i].iov_base, parts[i].iov_len);
    } else {
      std::memcpy(parts[i].iov_base, there, parts[i].iov_len);
    }
    there += parts[i].iov_len;
  }
  if (!bounced) channel_->out.noteCopied(slice.bytes, slice.write);
  // A bounced write is done when the owner says so.
  if (!(bounced && slice.write))
    answerSlice(slice.operation, slice.index, slice.write, Outcome::kOk);
}

void ShmLink::bounce(const Slice& slice) {
  uint32_t number = Channel::kSlots;
  {
    std::lock_guard lock(maps_mutex_);
    for (uint32_t i = 0; i < Channel::kSlots && number == Channel::kSlots; ++i) {
      if (!slots_[i].used) number = i;
    }
    if (number == Channel::kSlots) {
      slot_waiting_.push_back(slice);
      return;
    }
    slots_[number] = {true, false, slice};
  }
  if (slice.write) copy(slice, channel_->ownSlot(number), true);
  {
    std::lock_guard lock(maps_mutex_);
    slots_[number].asked = true;
  }
  countBounced(slice.bytes);
  if (!told_bounced_.exchange(true))
    base::logInfo("shared memory: memory of %s is no memfd and is copied twice",
                  setup_.peer.node.c_str());
  wire::Header header;
  header.frame = slice.write ? wire::Frame::kBouncePush : wire::Frame::kBouncePull;
  header.klass = static_cast<uint8_t>(slice.klass);
  header.operation = slice.operation;
  header.index = slice.index;
  header.code = number;
  header.key = slice.key;
  header.offset = slice.offset;
  header.bytes = slice.bytes;
  transmit(header, {}, {});
}

// The answer is taken: there comes no second one.
void ShmLink::bounceAnswered(uint32_t number, Outcome outcome) {
  bool copies = false;
  {
    std::lock_guard lock(maps_mutex_);
    slots_[number].asked = false;
    copies = outcome == Outcome::kOk && !slots_[number].slice.write &&
             isLong(slots_[number].slice.bytes);
  }
  if (copies) {
    leaveToPumps(Arrived{number});
  } else {
    finishBounce(number, outcome);
  }
}

void ShmLink::finishBounce(uint32_t number, Outcome outcome) {
  Slice slice, next;
  bool more = false;
  {
    std::lock_guard lock(maps_mutex_);
    slice = slots_[number].slice;
  }
  if (outcome == Outcome::kOk && !slice.write) {
    copy(slice, channel_->ownSlot(number), true);
  } else {
    answerSlice(slice.operation, slice.index, slice.write, outcome);
  }
  {
    std::lock_guard lock(maps_mutex_);
    slots_[number].used = false;
    if (!slot_waiting_.empty()) {
      next = slot_waiting_.front();
      slot_waiting_.pop_front();
      more = true;
    }
  }
  if (more && next.write && isLong(next.bytes)) {
    leaveToPumps(next);
  } else if (more) {
    bounce(next);
  }
  issue();
}

void ShmLink::unmapIfIdle(Mapping& mapping) {
  if (mapping.state != Mapping::State::kRevoked || mapping.users != 0 || mapping.base == nullptr)
    return;
  munmap(mapping.base, mapping.mapped);
  mapping.base = nullptr;
}

// ---- the rings

void ShmLink::transmit(const wire::Header& header, std::span<const std::byte> head,
                       std::span<const std::byte> body) {
  std::unique_lock lock(out_mutex_);
  const uint64_t length = sizeof header + head.size() + body.size();
  bool bell = false, deaf = false;
  if (out_waiting_.empty() && channel_->out.fits(length)) {
    channel_->out.put(&header, sizeof header);
    channel_->out.put(head.data(), head.size());
    channel_->out.put(body.data(), body.size());
    bell = channel_->out.publish();
  } else {
    std::vector<std::byte> frame(length);
    std::memcpy(frame.data(), &header, sizeof header);
    if (!head.empty()) std::memcpy(frame.data() + sizeof header, head.data(), head.size());
    if (!body.empty())
      std::memcpy(frame.data() + sizeof header + head.size(), body.data(), body.size());
    out_waiting_.push_back(std::move(frame));
    unread_.grow(length);
    answers_waiting_ += isAnswer(header.frame) ? 1 : 0;
    replies_waiting_ += isReply(header) ? 1 : 0;
    bell = flush();
    deaf = tooManyAnswers(answers_waiting_) || tooManyReplies(replies_waiting_) ||
           (!out_waiting_.empty() && unread_.tooMuch());
  }
  if (bell) channel_->ringPeer();
  lock.unlock();
  if (deaf) fail(kDeaf);
}

bool ShmLink::flush() {
  bool bell = false;
  const auto move = [&] {
    while (!out_waiting_.empty() && channel_->out.fits(out_waiting_.front().size())) {
      const std::vector<std::byte>& frame = out_waiting_.front();
      wire::Header header;
      std::memcpy(&header, frame.data(), sizeof header);
      channel_->out.put(frame.data(), frame.size());
      answers_waiting_ -= isAnswer(header.frame) ? 1 : 0;
      replies_waiting_ -= isReply(header) ? 1 : 0;
      unread_.shrink(frame.size());
      out_waiting_.pop_front();
      bell = channel_->out.publish() || bell;
    }
  };
  move();
  if (!out_waiting_.empty()) {
    channel_->out.wantRoom();
    move();  // the consumer may have made room before it could see the wish
  }
  return bell;
}

// From now on the producer rings the bell; true when there is something already. Bytes in the ring
// of a link that is failing stay there.
bool ShmLink::arm() {
  if (state() != LinkState::kUp) return false;
  armed_.store(true);
  return !channel_->in.sleep();
}

// The bell is armed whenever this returns: somebody else may be asleep on it.
void ShmLink::drive() {
  while (consume() && arm()) {
  }
}

// False: somebody else is at it, who looks again before the bell is armed. `wait`: also then, so
// that what is in the ring has been looked at.
bool ShmLink::consume(bool wait) {
  std::unique_lock lock(in_mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return false;
  }
  if (!enter()) return false;
  if (armed_.exchange(false)) channel_->silenceOwn();
  std::vector<Completion> completions;
  std::string broken;
  bool any = false;
  while (broken.empty() && state() == LinkState::kUp) {
    const uint64_t available = channel_->in.available();
    if (available == 0) break;
    any = true;
    channel_->in.expect(available);
    wire::Header header;
    if (available > channel_->in.capacity() || available < sizeof header) {
      broken = "a ring whose indices can't be";
      break;
    }
    channel_->in.copyOut(&header, 0, sizeof header);
    if (header.format != wire::kFormat) {
      broken = base::format("a frame of format {}", header.format);
    } else if (header.length > std::max(setup_.options.limits.message_bytes, wire::kMaxGoodbye) ||
               header.length > available - sizeof header) {
      broken = base::format("a frame of {} bytes", header.length);
    } else {
      payload_.resize(header.length);
      channel_->in.copyOut(payload_.data(), sizeof header, header.length);
      if (channel_->in.consumed(sizeof header + header.length)) channel_->ringPeer();
      broken = frame(header, payload_, completions);
    }
  }
  if (any) heard();
  {
    std::lock_guard out_lock(out_mutex_);
    if (!out_waiting_.empty() && flush()) channel_->ringPeer();
  }
  setup_.queue->push(completions);  // before anybody else can receive what comes next
  lock.unlock();
  if (!broken.empty()) fail("the peer broke the protocol: " + broken, true);
  leave();
  return true;
}

std::string ShmLink::frame(const wire::Header& header, std::span<const std::byte> payload,
                           std::vector<Completion>& completions) {
  switch (header.frame) {
    case wire::Frame::kMap:
      return mapAsked(header);
    case wire::Frame::kMapped:
      return mapRefused(header.key, header.code);
    case wire::Frame::kUnmap: {
      std::lock_guard lock(maps_mutex_);
      const auto place = maps_.find(header.key);
      if (place == maps_.end() || place->second.state == Mapping::State::kAsked)
        return "";  // its answer is to come
      place->second.state = Mapping::State::kRevoked;
      unmapIfIdle(place->second);
      return "";
    }
    case wire::Frame::kBouncePull:
    case wire::Frame::kBouncePush:
      return bounceAsked(header);
    case wire::Frame::kAck:
    case wire::Frame::kRefuse: {
      const bool ack = header.frame == wire::Frame::kAck;
      if (header.bytes >= Channel::kSlots || (!ack && !isRefusal(header.code))) {
        return "a bad answer";
      }
      {
        std::lock_guard lock(maps_mutex_);
        const Slot& slot = slots_[header.bytes];
        if (!slot.asked || slot.slice.operation != header.operation ||
            slot.slice.index != header.index) {
          return "an answer to nothing";
        }
      }
      bounceAnswered(static_cast<uint32_t>(header.bytes),
                     ack ? Outcome::kOk : static_cast<Outcome>(header.code));
      return "";
    }
    default:
      return control(header, payload, completions);
  }
}

// ---- memory that the peer maps

std::string ShmLink::mapAsked(const wire::Header& header) {
  Pin pin;
  Outcome outcome = setup_.domain->pin(header.key, 0, 0, kRemoteRead, pin);
  if (outcome == Outcome::kBadRange)
    outcome = setup_.domain->pin(header.key, 0, 0, kRemoteWrite, pin);
  if (outcome == Outcome::kBadRange) return "a key that was never granted";
  wire::Header answer;
  answer.frame = wire::Frame::kMapped;
  answer.key = header.key;
  answer.code = static_cast<uint32_t>(outcome);
  if (outcome == Outcome::kOk && pin->fd) {
    // A peer that may only read gets a descriptor for reading: a guard against mistakes (the same
    // user can open it anew for writing).
    base::UniqueFd readable;
    int fd = pin->fd.get();
    if ((pin->access & kRemoteWrite) == 0) {
      readable =
          base::UniqueFd(open(base::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
      fd = readable.get();
    }
    if (fd >= 0) {
      pin->handed_out.store(true);
      const MapAnswer map{header.key, pin->length, pin->fd_offset, pin->access, 0};
      return sendWithFds(socket_.get(), &map, sizeof map, &fd, 1)
                 ? ""
                 : "it asks for mappings and does not take them";
    }
  }
  transmit(answer, {}, {});
  return "";
}

Outcome ShmLink::askMemory(const RemoteKey& key, uint64_t context) {
  if ((key.access & kRemoteReadWrite) != kRemoteReadWrite) return Outcome::kBadRange;
  if (!enter()) return Outcome::kLinkDown;
  bool full = false;
  {
    std::lock_guard lock(maps_mutex_);
    auto& waiting = memory_asked_[key.key];
    full = waiting.size() >= kMostAsked;
    if (!full) waiting.push_back(context);
  }
  if (!full) {
    wire::Header header;
    header.frame = wire::Frame::kMap;
    header.key = key.key;
    transmit(header, {}, {});
  }
  leave();
  return full ? Outcome::kFull : Outcome::kOk;
}

bool ShmLink::isAsked(uint64_t key) {
  std::lock_guard lock(maps_mutex_);
  const auto place = maps_.find(key);
  return place != maps_.end() && place->second.state == Mapping::State::kAsked;
}

// To one who asked for it; false: nobody did.
bool ShmLink::answerMemory(uint64_t key, Outcome outcome, PeerMemory memory) {
  Completion completion;
  {
    std::lock_guard lock(maps_mutex_);
    const auto place = memory_asked_.find(key);
    if (place == memory_asked_.end()) return false;
    completion.context = place->second.front();
    place->second.pop_front();
    if (place->second.empty()) memory_asked_.erase(place);
  }
  completion.kind = Completion::Kind::kMemory;
  completion.outcome = outcome;
  completion.bytes = memory.length;
  completion.memory = std::move(memory);
  completion.link = shared_from_this();
  setup_.queue->push(std::move(completion));
  return true;
}

std::string ShmLink::mapRefused(uint64_t key, uint32_t code) {
  if (!isAsked(key)) {
    const Outcome outcome =
        code == static_cast<uint32_t>(Outcome::kOk) ? Outcome::kBadRange : Outcome::kRevoked;
    return answerMemory(key, outcome, {}) ? "" : "an answer about a key not asked for";
  }
  settle(key, code == static_cast<uint32_t>(Outcome::kOk) ? Mapping::State::kBounced
                                                          : Mapping::State::kRevoked);
  return "";
}

// The owner of a key that this side's peer may have mapped takes it back.
void ShmLink::keyRevoked(uint64_t key) {
  if (!enter()) return;
  wire::Header header;
  header.frame = wire::Frame::kUnmap;
  header.key = key;
  transmit(header, {}, {});
  leave();
}

std::string ShmLink::bounceAsked(const wire::Header& header) {
  if (header.code >= Channel::kSlots || header.bytes == 0 || header.bytes > Channel::kSlotBytes)
    return "a bad slot";
  const bool push = header.frame == wire::Frame::kBouncePush;
  Pin pin;
  const Outcome outcome = setup_.domain->pin(header.key, header.offset, header.bytes,
                                             push ? kRemoteWrite : kRemoteRead, pin);
  if (outcome == Outcome::kBadRange)
    return base::format("a {} of memory that was never granted", push ? "write" : "read");
  {
    std::lock_guard lock(maps_mutex_);
    if (peer_busy_[header.code]) return "a slot that is in use";
    peer_busy_[header.code] = true;
  }
  const Outcome refused = pin && pin->base == nullptr ? Outcome::kUnreachable : Outcome::kRevoked;
  if (refused == Outcome::kUnreachable) pin.reset();
  Asked asked{header, std::move(pin), refused};
  if (asked.pin && isLong(header.bytes)) {
    leaveToPumps(std::move(asked));
  } else {
    perform(asked);
  }
  return "";
}

// Without a pin the memory has been taken back, or can't be copied.
void ShmLink::perform(Asked& asked) {
  const wire::Header& question = asked.question;
  wire::Header answer = question;
  answer.length = 0;
  answer.frame = asked.pin ? wire::Frame::kAck : wire::Frame::kRefuse;
  answer.code = static_cast<uint32_t>(asked.pin ? Outcome::kOk : asked.refused);
  answer.bytes = question.code;
  if (asked.pin) {
    const bool push = question.frame == wire::Frame::kBouncePush;
    std::byte* here = asked.pin->base + question.offset;
    std::byte* slot = channel_->peerSlot(question.code);
    std::memcpy(push ? here : slot, push ? slot : here, question.bytes);
    countServed(question.bytes, !push);
  }
  asked.pin.reset();
  {
    std::lock_guard lock(maps_mutex_);
    peer_busy_[question.code] = false;
  }
  transmit(answer, {}, {});
}

void ShmLink::socketEvents() {
  if (!enter()) return;
  std::string broken;
  ssize_t got = 0;
  while (broken.empty()) {
    MapAnswer answer;
    base::UniqueFd fd;
    got = receiveWithFds(socket_.get(), &answer, sizeof answer, &fd, 1);
    if (got <= 0) break;
    broken = got == sizeof answer && fd ? mapArrived(answer, std::move(fd))
                                        : "a piece of an answer on the socket";
  }
  if (!broken.empty()) {
    fail("the peer broke the protocol: " + broken, true);
  } else if (got == 0 || got != -EAGAIN) {
    consume(true);  // if the peer said why, that is the reason
    fail(got == 0
             ? "the connection is lost: the peer closed it"
             : base::format("the connection is lost: {}", std::strerror(static_cast<int>(-got))));
  }
  leave();
}

std::string ShmLink::mapArrived(const MapAnswer& answer, base::UniqueFd fd) {
  // A memfd that can shrink would kill this process; one that is too short would as well.
  struct stat about {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  const auto size = fstat(fd.get(), &about) == 0 ? static_cast<uint64_t>(about.st_size) : 0;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || answer.length > size ||
      answer.fd_offset > size - answer.length) {
    return "a memfd that is not sealed, or shorter than it says";
  }
  if (!isAsked(answer.key)) {
    const bool granted = (answer.access & kRemoteReadWrite) == kRemoteReadWrite;
    PeerMemory memory;
    if (granted) memory = {std::move(fd), answer.fd_offset, answer.length};
    return answerMemory(answer.key, granted ? Outcome::kOk : Outcome::kBadRange, std::move(memory))
               ? ""
               : "a mapping that was not asked for";
  }
  const uint64_t skip = answer.fd_offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const int rights = (answer.access & kRemoteWrite) != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = mmap(nullptr, answer.length + skip, rights, MAP_SHARED, fd.get(),
                    static_cast<off_t>(answer.fd_offset - skip));
  if (base == MAP_FAILED) {
    base::logWarn("shared memory: %s's memory can't be mapped: %s", setup_.peer.node.c_str(),
                  std::strerror(errno));
    settle(answer.key, Mapping::State::kBounced);
    return "";
  }
  madvise(base, answer.length + skip, MADV_DONTFORK);
  madvise(base, answer.length + skip, MADV_DONTDUMP);
  {
    std::lock_guard lock(maps_mutex_);
    Mapping& mapping = maps_[answer.key];
    mapping.base = base;
    mapping.mapped = answer.length + skip;
    mapping.bytes = static_cast<std::byte*>(base) + skip;
    mapping.length = answer.length;
    mapping.access = answer.access;
  }
  settle(answer.key, Mapping::State::kMapped);
  return "";
}

// A key's mapping is settled: slices that waited go on.
void ShmLink::settle(uint64_t key, Mapping::State state) {
  std::vector<Slice> waiting;
  {
    std::lock_guard lock(maps_mutex_);
    Mapping& mapping = maps_[key];
    mapping.state = state;
    waiting.swap(mapping.waiting);
    for (const Slice& slice : waiting) work_.emplace_back(slice);
  }
  if (!waiting.empty()) startPump();
}

}  // namespace olpager::transport
