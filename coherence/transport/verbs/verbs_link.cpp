// Long: the steps of one link share its rings, credits and lock.
#include "coherence/transport/verbs/verbs_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "base/log.h"

namespace olpager::transport::verbs {
namespace {

// In a request's number, beside its class: the last of a list.
constexpr uint64_t kLast = 1 << 8;

// True if a failed request is about memory, which would be so on any card.
bool isOfMemory(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
         status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR ||
         status == IBV_WC_MW_BIND_ERR;
}

constexpr const char* kMessagesLost = "the queue pair of messages is lost";
constexpr const char* kNoEvents = "the card gives no more events";
constexpr const char* kNoWindows = "the card opens no windows";

class Events final : public Reactor::Source {
 public:
  explicit Events(std::function<void()> events) : events_(std::move(events)) {}
  void onEvents(uint32_t) override { events_(); }

 private:
  const std::function<void()> events_;
};

// The words of the flushes as regions of the link's domain.
Result<RegionPtr> word(const DomainPtr& domain, uint64_t& bytes, uint32_t access) {
  Memory memory;
  memory.base = &bytes;
  memory.length = sizeof bytes;
  return registerMemory(domain, memory, access);
}

}  // namespace

Result<std::shared_ptr<VerbsLink>> VerbsLink::make(LinkSetup setup, Stream control,
                                                   std::vector<Stream> lanes,
                                                   std::vector<std::unique_ptr<QueuePairs>> rails,
                                                   const std::vector<Reactor*>& reactors) {
  std::shared_ptr<VerbsLink> link(
      new VerbsLink(std::move(setup), std::move(control), std::move(rails)));
  link->adopt(std::move(lanes), reactors, 1);
  if (MessagePair* const pair = link->messagePair(); pair != nullptr) {
    pair->settle();
    link->messages_on_rail_ = true;
    link->message_way_ = MessageWay::kRail;
  }
  for (auto& rail : link->rails_) {
    for (auto& queue : rail->queues) queue.room = rail->pairs->sizes().requests;
  }
  auto into = word(link->setup_.domain, link->flush_words_[0], kLocalOnly);
  if (!into.ok()) return into.error();
  auto from = word(link->setup_.domain, link->flush_words_[1], kRemoteRead);
  if (!from.ok()) return from.error();
  link->flushed_into_ = std::move(into.value());
  link->flushed_from_ = std::move(from.value());
  for (auto& rail : link->rails_) {
    for (const auto* each : {&link->flushed_into_, &link->flushed_from_}) {
      if (CardDomain::known(*(*each)->entry(), rail->pairs->card()) == nullptr) {
        return Error{base::format("card {}: no memory can be registered", rail->pairs->cardName())};
      }
    }
  }
  return link;
}

VerbsLink::~VerbsLink() = default;

void VerbsLink::begin() {
  auto self = std::static_pointer_cast<VerbsLink>(shared_from_this());
  setup_.domain->watch(std::static_pointer_cast<KeyWatcher>(self));
  for (auto& each : rails_) {
    Rail& rail = *each;
    home().add(rail.pairs->events()->fd, EPOLLIN,
               std::make_shared<Events>([self, &rail] { self->completionEvents(rail); }));
    home().add(rail.pairs->connectionEvents(), EPOLLIN,
               std::make_shared<Events>([self, &rail] { self->connectionEvents(rail); }));
  }
}

void VerbsLink::addStats(LinkStats& into) const {
  into.repeated_bytes = repeated_.load();
  for (auto& rail : rails_)
    into.rails.push_back(
        {rail->number, rail->device, rail->port, rail->up.load(), rail->moved.load()});
}

// ---- messages

class VerbsLink::MessageSource final : public Reactor::Source, public Pollable {
 public:
  explicit MessageSource(std::shared_ptr<VerbsLink> link, int fd)
      : link_(std::move(link)), fd_(fd) {}
  void onEvents(uint32_t) override {
    if (!link_->armMessages()) return;
    drive();
  }
  int pollFd() const override { return fd_; }
  void drive() override {
    link_->receiveMessages();
    link_->sendWaiting();
  }
  bool transferring() const override { return link_->transferring(); }
  bool onlyMessages() const override { return true; }
  Reactor& reactor() const override { return link_->home(); }
  bool prepareSleep() override {
    if (link_->receiveMessages()) return true;  // to arm takes two system calls
    if (!link_->armMessages()) return false;
    link_->sendWaiting();
    return link_->receiveMessages();
  }
  void rearm() override {
    if (link_->armMessages()) drive();
  }
  void leaveToWaiter(bool leave) override { link_->home().leave(fd_, leave, EPOLLIN); }

 private:
  const std::shared_ptr<VerbsLink> link_;
  const int fd_;
};

void VerbsLink::listen() {
  if (!messages_on_rail_) return;
  message_source_ = std::make_shared<MessageSource>(
      std::static_pointer_cast<VerbsLink>(shared_from_this()), messagePair()->fd());
  home().add(message_source_->pollFd(), EPOLLIN, message_source_);
  setup_.queue->add(message_source_);
}

void VerbsLink::transmit(const wire::Header& header, std::span<const std::byte> head,
                         std::span<const std::byte> body) {
  const bool message =
      header.frame == wire::Frame::kMessage || header.frame == wire::Frame::kCredit;
  if (message && messages_on_rail_) {
    std::shared_lock posting(posting_);
    std::unique_lock lock(messages_out_);
    if (message_way_ != MessageWay::kControl) {
      MessagePair* const pair = messagePair();
      if (message_way_ == MessageWay::kRail && pair == nullptr) return;  // the link is down
      for (const auto& part : {std::as_bytes(std::span(&header, 1)), head, body}) {
        messages_.insert(messages_.end(), part.begin(), part.end());
        unread_.grow(part.size());
      }
      if (isReply(header)) replies_.push_back(messages_begin_ + messages_.size());
      const bool good = message_way_ == MessageWay::kNone || postMessages(*pair);
      const bool deaf =
          tooManyReplies(replies_.size()) || (!messages_.empty() && unread_.tooMuch());
      lock.unlock();
      posting.unlock();
      if (!good) setAside(*rails_.front(), kMessagesLost);
      if (deaf) fail(kDeaf);
      return;
    }
  }
  TcpLink::transmit(header, head, body);
}

// Under messages_out_.
void VerbsLink::messagesWent(size_t bytes) {
  messages_begin_ += bytes;
  unread_.shrink(bytes);
  while (!replies_.empty() && replies_.front() <= messages_begin_) replies_.pop_front();
}

// Under posting_ and messages_out_.
bool VerbsLink::postMessages(MessagePair& pair) {
  size_t put = 0;
  const bool good = pair.post(messages_, put);
  messages_.erase(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(put));
  messagesWent(put);
  messages_wait_.store(!messages_.empty());
  // The thread that keeps the queue pair may be away when it rings that there is room.
  if (good && !messages_.empty() && !std::exchange(pumping_, true)) {
    home().every(1, [weak = weak_from_this()] {
      const auto self = std::static_pointer_cast<VerbsLink>(weak.lock());
      if (!self || self->state() == LinkState::kDown) return false;
      self->sendWaiting();
      std::lock_guard lock(self->messages_out_);
      return self->pumping_ = !self->messages_.empty();
    });
  }
  return good;
}

void VerbsLink::sendWaiting() {
  if (!messages_wait_.load()) return;
  std::shared_lock posting(posting_);
  std::unique_lock lock(messages_out_);
  if (message_way_ != MessageWay::kRail || messagePair() == nullptr) return;
  const bool good = postMessages(*messagePair());
  lock.unlock();
  posting.unlock();
  if (!good) setAside(*rails_.front(), kMessagesLost);
}

// Or will never be.
bool VerbsLink::messagesSent() {
  std::shared_lock posting(posting_);
  std::lock_guard lock(messages_out_);
  MessagePair* const pair = messagePair();
  if (message_way_ != MessageWay::kRail || pair == nullptr) return true;
  return !postMessages(*pair) || (pair->reap() && messages_.empty());
}

bool VerbsLink::armMessages() {
  {
    std::shared_lock posting(posting_);
    MessagePair* const pair = messagePair();
    if (pair == nullptr) return false;
    std::lock_guard lock(messages_in_);
    if (pair->arm()) return true;
  }
  setAside(*rails_.front(), kNoEvents);
  return false;
}

// True if there were any. `why`: what the card says, `broke`: what rule the peer broke.
bool VerbsLink::takeMessages(std::string& why, std::string& broke) {
  std::vector<Completion> completions;  // go after the locks
  std::shared_lock posting(posting_);
  MessagePair* const pair = messagePair();
  if (pair == nullptr) return false;
  std::lock_guard lock(messages_in_);
  bool any = false;
  for (int count = 1; count > 0;) {
    count = pair->take(
        [&](std::span<const std::byte> piece) {
          message_bytes_taken_ += piece.size();
          takeMessageBytes(piece, broke, completions);
        },
        why);
    any = any || count > 0;
  }
  if (any) heard();
  setup_.queue->push(completions);
  return any;
}

// Under messages_in_.
void VerbsLink::takeMessageBytes(std::span<const std::byte> bytes, std::string& broke,
                                 std::vector<Completion>& completions) {
  const auto frames = [&](const wire::Header& header, std::span<const std::byte> payload) {
    if (header.frame == wire::Frame::kMessage || header.frame == wire::Frame::kCredit)
      return control(header, payload, completions);
    return base::format("a frame of kind {} among messages", static_cast<unsigned>(header.frame));
  };
  if (message_bytes_.empty()) bytes = bytes.subspan(takeFrames(bytes, broke, frames));
  message_bytes_.insert(message_bytes_.end(), bytes.begin(), bytes.end());
  const size_t taken = takeFrames(message_bytes_, broke, frames);
  message_bytes_.erase(message_bytes_.begin(),
                       message_bytes_.begin() + static_cast<ptrdiff_t>(taken));
}

bool VerbsLink::receiveMessages() {
  std::string why, broke;
  const bool any = takeMessages(why, broke);
  if (!broke.empty()) {
    fail("the peer broke the protocol: " + broke, true);
  } else if (!why.empty()) {
    setAside(*rails_.front(), why);
  }
  return any;
}

// ---- rails

// Under posting_. Null: messages take another way.
MessagePair* VerbsLink::messagePair() {
  const auto& pairs = rails_.front()->pairs;
  return pairs ? pairs->messages() : nullptr;
}

VerbsLink::Rail* VerbsLink::railOf(uint32_t number) {
  const auto found =
      std::ranges::find_if(rails_, [&](const auto& rail) { return rail->number == number; });
  return found == rails_.end() ? nullptr : found->get();
}

// The one with the fewest bytes under way, of those whose bit is not in `tried`; null: none is up.
VerbsLink::Rail* VerbsLink::emptiest(uint32_t tried) {
  Rail* best = nullptr;
  for (auto& rail : rails_) {
    if (!rail->up.load() || (tried >> rail->number & 1) != 0) continue;
    if (best == nullptr || rail->under_way.load() < best->under_way.load()) best = rail.get();
  }
  return best;
}

void VerbsLink::setAside(Rail& rail, const std::string& why) {
  if (!rail.up.exchange(false)) return;
  rails_up_.fetch_sub(1);
  home().post([self = std::static_pointer_cast<VerbsLink>(shared_from_this()), &rail, why] {
    self->endRail(rail, why);
  });
}

// On the home reactor. If other rails are up, one without a connection is not waited for until its
// transfers fail. One that comes back at once stays: nothing would bring it back later.
void VerbsLink::lookAtPorts(int64_t now_ms) {
  constexpr int64_t kLookMs = 250, kDownMs = 1000;
  if (rails_up_.load() < 2 || now_ms - ports_looked_at_ms_ < kLookMs) return;
  ports_looked_at_ms_ = now_ms;
  bool any_works = false;
  for (auto& rail : rails_) {
    if (!rail->up.load()) continue;
    if (!rail->pairs->portIsDown()) {
      rail->port_down_ms = 0;
      any_works = true;
    } else if (rail->port_down_ms == 0) {
      rail->port_down_ms = now_ms;
    }
  }
  if (!any_works) return;  // all wait for their transfers, as a single one does
  for (auto& rail : rails_) {
    if (rail->up.load() && rail->port_down_ms != 0 && now_ms - rail->port_down_ms >= kDownMs) {
      setAside(*rail, "the port of its card is down");
    }
  }
}

// On the home reactor.
void VerbsLink::endRail(Rail& rail, const std::string& why) {
  if (rail.ended || state() != LinkState::kUp) return;
  if (rails_up_.load() == 0) {
    broken(why);
    return;
  }
  readControl(true);  // the peer may have ended the link, and its rails with it
  if (state() != LinkState::kUp) return;
  rail.ended = true;
  base::logWarn("link to %s (%s): rail %u (card %s) is set aside: %s; %u of %zu left",
                peer().node.c_str(), peer().address.c_str(), rail.number + 1,
                rail.pairs->cardName(), why.c_str(), rails_up_.load(), rails_.size());
  const bool with_messages = rail.pairs->messages() != nullptr;
  {
    std::lock_guard started(starting_);
    home().remove(rail.pairs->events()->fd);
    home().remove(rail.pairs->connectionEvents());
    if (with_messages) {
      setup_.queue->remove(message_source_.get());
      home().remove(message_source_->pollFd());
      message_source_.reset();
    }
  }
  rail.pairs->halt();
  wire::Header ended;
  ended.frame = wire::Frame::kRailEnded;
  ended.index = rail.number;
  if (with_messages) {
    std::string unused, broke;
    takeMessages(unused, broke);
    if (!broke.empty()) {
      fail("the peer broke the protocol: " + broke, true);
      return;
    }
    std::scoped_lock locks(messages_in_, messages_out_);
    rail_had_messages_ = true;
    ended.offset = message_bytes_taken_;
    unsure_ = rail.pairs->messages()->unsure();
    message_way_ = MessageWay::kNone;
  }
  drain(rail);
  std::unique_ptr<QueuePairs> gone;
  {
    std::unique_lock posting(posting_);
    gone = std::move(rail.pairs);
  }
  gone.reset();
  dropOpenings(rail);
  if (with_messages) messagesByControlNow();
  transmit(ended, {}, {});
  overRail(rail);
}

// On the thread that reads the first connection.
std::string VerbsLink::railEnded(const wire::Header& header) {
  Rail* const rail = railOf(header.index);
  if (rail == nullptr || header.length != 0) return "the end of a rail that is not there";
  if (rails_.size() == 1) return "the end of a link's only rail";
  home().post(
      [self = std::static_pointer_cast<VerbsLink>(shared_from_this()), rail, took = header.offset] {
        if (self->state() != LinkState::kUp) return;
        if (rail->peer_took) {
          self->fail("the peer broke the protocol: a rail that ended twice", true);
          return;
        }
        rail->peer_took = took;
        if (rail->up.exchange(false)) self->rails_up_.fetch_sub(1);
        self->endRail(*rail, "the peer has set it aside");
        self->overRail(*rail);
      });
  return "";
}

// On the home reactor: both ends have destroyed the queue pairs.
void VerbsLink::overRail(Rail& rail) {
  if (!rail.ended || !rail.peer_took || std::exchange(rail.over, true)) return;
  if (messages_on_rail_ && &rail == rails_.front().get() && !resumeMessages(*rail.peer_took)) {
    fail("the peer broke the protocol: messages that were never sent, or were forgotten", true);
    return;
  }
  std::vector<Slice> again;
  for (auto& queue : rail.queues) {
    std::lock_guard lock(queue.mutex);
    for (const auto& flight : queue.flights) {
      again.push_back(flight.slice);
      repeated_.fetch_add(flight.slice.bytes);
    }
    again.insert(again.end(), queue.waiting.begin(), queue.waiting.end());
    queue.flights.clear();
    queue.waiting.clear();
  }
  rail.under_way.store(0);
  for (const Slice& slice : again) untakeSlice(slice.operation, slice.index);
  goOn(again);
}

// Windows that are not open yet will not be: the peer reaches the memory by other rails.
void VerbsLink::dropOpenings(Rail& rail) {
  std::vector<std::shared_ptr<Opening>> all;  // their pins go after the locks
  for (auto& queue : rail.queues) {
    std::lock_guard lock(queue.mutex);
    for (auto& flight : queue.flights) {
      if (flight.opening) all.push_back(std::move(flight.opening));
    }
    std::erase_if(queue.flights, [](const auto& flight) { return flight.slice.bytes == 0; });
    all.insert(all.end(), queue.openings.begin(), queue.openings.end());
    queue.openings.clear();
  }
  for (auto& opening : all) {
    if (opening->missing.exchange(0) == 0) continue;
    refuseReach(rail, opening->key, Outcome::kUnreachable);
    opening->pin.reset();
  }
}

// Bytes that the peer has not taken go by the first connection, and so do all messages from now on.
bool VerbsLink::resumeMessages(uint64_t peer_took) {
  std::lock_guard lock(messages_out_);
  auto& bytes = unsure_.bytes;
  if (peer_took < unsure_.from || peer_took - unsure_.from > bytes.size()) return false;
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(peer_took - unsure_.from));
  bytes.insert(bytes.end(), messages_.begin(), messages_.end());
  messagesWent(messages_.size());
  messages_.clear();
  for (std::span<const std::byte> rest = bytes; !rest.empty();) {
    const auto part = rest.first(std::min<size_t>(rest.size(), maxMessageBytes()));
    wire::Header header;
    header.frame = wire::Frame::kMessageRest;
    header.length = static_cast<uint32_t>(part.size());
    TcpLink::transmit(header, part, {});
    rest = rest.subspan(part.size());
  }
  bytes = {};
  message_way_ = MessageWay::kControl;
  return true;
}

// A card cuts what it is given by itself. A slice may have to go by the lane. All rails carry a
// part of what is urgent.
uint32_t VerbsLink::sliceBytes(bool, Class klass, uint64_t length, uint64_t) const {
  if (klass <= Class::kDemand) {
    const uint64_t rails = std::max(rails_up_.load(), 1u);
    const uint64_t part = (length + rails - 1) / rails;
    const uint64_t whole = (part + wire::kMinSlice - 1) / wire::kMinSlice * wire::kMinSlice;
    return static_cast<uint32_t>(std::min<uint64_t>(whole, wire::kMaxSlice));
  }
  return std::clamp(setup_.options.slice_bytes, wire::kMinSlice, wire::kMaxSlice);
}

// ---- this side's operations

bool VerbsLink::take(const Slice& slice) {
  uint32_t tried = 0;  // rails whose card can't have the memory, or whose peer's can't
  while (Rail* const rail = emptiest(tried)) {
    wire::Reach reach;
    switch (rail->keys.find(slice.key, slice, reach)) {
      case Keys::Found::kAsk: {
        wire::Header header;
        header.frame = wire::Frame::kReach;
        header.index = rail->number;
        header.key = slice.key;
        transmit(header, {}, {});
        return true;
      }
      case Keys::Found::kWaits:
        return true;
      case Keys::Found::kReach:
        if (submit(*rail, slice, reach)) return true;
        break;
      case Keys::Found::kOtherwise:
        break;
    }
    tried |= 1u << rail->number;
  }
  if (tried == 0) return true;  // the link fails: stopped() answers for all
  return !fitsLane(slice);
}

// The lane needs addresses; the owner sees to its own. Without them the slice is answered here.
bool VerbsLink::fitsLane(const Slice& slice) {
  LocalRange parts[kMaxLocalRanges];
  const size_t count = localRanges(slice, parts);
  if (std::any_of(parts, parts + count,
                  [](const LocalRange& part) { return part.region->base() == nullptr; })) {
    answerSlice(slice.operation, slice.index, slice.write, Outcome::kUnreachable);
    return false;
  }
  countBounced(slice.bytes);
  return true;
}

// Slices whose keys are known now, or for which there is room.
void VerbsLink::goOn(const std::vector<Slice>& slices) {
  std::vector<Slice> others;
  for (const Slice& slice : slices) {
    if (!take(slice)) others.push_back(slice);
  }
  byLanes(others);
}

// False: the card can't, or may not: the owner says by the lane what is wrong.
bool VerbsLink::submit(Rail& rail, const Slice& slice, const wire::Reach& reach) {
  const uint32_t right = slice.write ? kRemoteWrite : kRemoteRead;
  if ((reach.access & right) == 0 || slice.bytes > reach.length ||
      slice.offset > reach.length - slice.bytes)
    return false;
  std::shared_lock posting(posting_);
  if (!rail.pairs) {
    posting.unlock();
    return rail.up.load() || take(slice);  // by another one
  }
  LocalRange parts[kMaxLocalRanges];
  const size_t count = localRanges(slice, parts);
  if (count == 0) return true;
  ibv_sge places[kMaxLocalRanges + 1];
  for (size_t i = 0; i < count; ++i) {
    const CardRegion* const known =
        CardDomain::known(*parts[i].region->entry(), rail.pairs->card());
    if (known == nullptr) return false;
    places[i] = {known->address() + parts[i].offset, static_cast<uint32_t>(parts[i].length),
                 known->lkey()};
  }
  const uint32_t most = rail.pairs->sizes().parts;
  const auto moves = static_cast<uint32_t>((count + most - 1) / most);
  const uint32_t requests = moves + (slice.write ? 1 : 0);
  ibv_send_wr list[kMaxLocalRanges + 1] = {};
  uint64_t there = reach.address + slice.offset;
  for (uint32_t i = 0; i < moves; ++i) {
    ibv_send_wr& request = list[i];
    request.wr_id = static_cast<uint64_t>(slice.klass);
    request.sg_list = places + size_t{i} * most;
    request.num_sge = static_cast<int>(std::min<size_t>(most, count - size_t{i} * most));
    request.opcode = slice.write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    request.wr.rdma.remote_addr = there;
    request.wr.rdma.rkey = reach.rkeys[index(slice.klass)];
    for (int each = 0; each < request.num_sge; ++each) there += request.sg_list[each].length;
    if (i + 1 < requests) request.next = &list[i + 1];
  }
  if (slice.write) {
    // Memory that may be read is read itself: what is behind another bridge than the host's memory
    // is flushed by nothing else.
    const bool readable = (reach.access & kRemoteRead) != 0;
    const auto* const into = CardDomain::known(*flushed_into_->entry(), rail.pairs->card());
    places[count] = {into->address(), readable ? 1u : static_cast<uint32_t>(sizeof(uint64_t)),
                     into->lkey()};
    ibv_send_wr& flush = list[moves];
    flush.wr_id = static_cast<uint64_t>(slice.klass);
    flush.sg_list = places + count;
    flush.num_sge = 1;
    flush.opcode = IBV_WR_RDMA_READ;
    flush.wr.rdma.remote_addr = readable ? there - 1 : reach.flush_address;
    flush.wr.rdma.rkey = readable ? reach.rkeys[index(slice.klass)] : reach.flush_rkey;
  }
  list[requests - 1].send_flags = IBV_SEND_SIGNALED;
  list[requests - 1].wr_id |= kLast;

  Queue& queue = rail.queues[index(slice.klass)];
  std::unique_lock lock(queue.mutex);
  if (queue.room < requests || !rail.up.load()) {  // of a rail that ends, another one takes it
    queue.waiting.push_back(slice);
    rail.under_way.fetch_add(slice.bytes);
    return true;
  }
  iovec unused[kMaxLocalRanges];
  size_t unused_count = 0;
  if (!slice.write && !takeSlice(slice.operation, slice.index, slice.bytes, unused, unused_count))
    return true;
  queue.room -= requests;
  queue.flights.push_back({slice, requests});
  rail.under_way.fetch_add(slice.bytes);
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(rail.pairs->of(slice.klass), list, &refused);
  // Before another flight is behind this one, which no completion belongs to.
  if (error != 0)
    setAside(rail, base::format("the card takes no requests: {}", std::strerror(error)));
  return true;
}

void VerbsLink::completionEvents(Rail& rail) {
  {
    std::shared_lock posting(posting_);
    if (!rail.pairs) return;
    const Api& api = *verbs::api();
    ibv_cq* of = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (api.ibv_get_cq_event(rail.pairs->events(), &of, &context) == 0) ++events;
    if (events != 0) api.ibv_ack_cq_events(rail.pairs->completions(), events);
    if (ibv_req_notify_cq(rail.pairs->completions(), 0) != 0) {
      posting.unlock();
      setAside(rail, kNoEvents);
      return;
    }
  }
  drain(rail);
}

// On the home reactor. On a rail that is not up any more only successes count.
void VerbsLink::drain(Rail& rail) {
  std::vector<Slice> waited;
  std::string why;
  bool of_memory = false;
  for (;;) {
    ibv_wc done[32];
    std::vector<Slice> answered;
    std::vector<std::shared_ptr<Opening>> open_now;
    {
      std::shared_lock posting(posting_);
      if (!rail.pairs) break;
      const int count = ibv_poll_cq(rail.pairs->completions(), 32, done);
      if (count < 0) why = "the card's completions can't be read";
      if (count <= 0) break;
      for (int i = 0; i < count; ++i) {
        // Each request of a list that failed has a completion, the list itself has one flight.
        if (done[i].status != IBV_WC_SUCCESS) {
          if (!why.empty()) continue;
          of_memory = isOfMemory(done[i].status);
          why = done[i].status == IBV_WC_REM_ACCESS_ERR
                    ? "the peer took memory back, or its card does not let this one reach it"
                    : base::format("a card's transfer failed: {}",
                                   verbs::api()->ibv_wc_status_str(done[i].status));
          continue;
        }
        const auto klass = static_cast<Class>(done[i].wr_id & ~kLast);
        Queue& queue = rail.queues[index(klass)];
        std::unique_lock lock(queue.mutex);
        Queue::Flight& flight = queue.flights.front();
        queue.room += flight.requests;
        if (flight.opening) {
          open_now.push_back(std::move(flight.opening));
        } else {
          answered.push_back(flight.slice);
          rail.under_way.fetch_sub(flight.slice.bytes);
          rail.moved.fetch_add(flight.slice.bytes);
        }
        queue.flights.pop_front();
        if (!queue.openings.empty()) {
          const auto opening = std::move(queue.openings.front());
          queue.openings.pop_front();
          lock.unlock();
          if (!open(rail, opening, klass)) why = kNoWindows;
          continue;
        }
        // As many as there is room for; the rest finds itself here again.
        for (uint32_t room = queue.room; room > 8 && !queue.waiting.empty(); room -= 8) {
          waited.push_back(queue.waiting.front());
          rail.under_way.fetch_sub(queue.waiting.front().bytes);
          queue.waiting.pop_front();
        }
      }
    }
    for (const Slice& slice : answered)
      answerSlice(slice.operation, slice.index, slice.write, Outcome::kOk);
    for (const auto& opening : open_now) opened(rail, opening);
    if (!why.empty() && of_memory && rail.up.load()) break;
  }
  if (of_memory && rail.up.load()) {
    broken(why);
    return;
  }
  if (!why.empty()) setAside(rail, why);
  goOn(waited);
  issue();
}

// If the peer has said why, that is the reason.
void VerbsLink::broken(const std::string& why) {
  readControl(true);
  fail(why, true);
}

void VerbsLink::connectionEvents(Rail& rail) {
  std::string ended;
  std::shared_lock posting(posting_);
  while (rail.pairs && rail.pairs->nextConnectionEvent(ended)) {
    if (ended.empty() || rail.cut_ms != 0) continue;
    rail.cut_why = ended;
    rail.cut_ms = nowMs();
  }
}

// The peer's card has ended it, and the first connection does not say why: then that is the reason.
std::string VerbsLink::standstill(int64_t now_ms, bool late) {
  bool arrive = true;
  {
    // Nobody else hears that a message did not get through.
    std::shared_lock posting(posting_);
    std::lock_guard lock(messages_out_);
    if (MessagePair* const pair = messagePair(); message_way_ == MessageWay::kRail && pair) {
      pair->reap();
      arrive = postMessages(*pair);
    }
  }
  if (!arrive) setAside(*rails_.front(), "messages don't reach the peer's card");
  constexpr int64_t kPatienceMs = 1000;
  for (auto& rail : rails_) {
    if (rail->cut_ms != 0 && !late && now_ms - rail->cut_ms > kPatienceMs)
      setAside(*rail, "the queue pairs are lost: " + rail->cut_why);
  }
  lookAtPorts(now_ms);
  return TcpLink::standstill(now_ms, late);
}

// ---- keys

std::string VerbsLink::frame(const wire::Header& header, std::span<const std::byte> payload,
                             std::vector<Completion>& completions) {
  switch (header.frame) {
    case wire::Frame::kReach:
      return header.length == 0 ? reachAsked(header) : "a question with a payload";
    case wire::Frame::kReached:
      return reachArrived(header, payload);
    case wire::Frame::kUnmap:
      for (auto& rail : rails_) rail->keys.takenBack(header.key);
      return "";
    case wire::Frame::kRailEnded:
      return railEnded(header);
    case wire::Frame::kMessageRest: {
      std::string broke;
      std::lock_guard lock(messages_in_);
      if (!rail_had_messages_) return "a rest of messages that are on their way";
      takeMessageBytes(payload, broke, completions);
      return broke;
    }
    case wire::Frame::kGoodbye: {
      // Messages that the peer sent before it ended the link come first.
      std::string why, broke;
      takeMessages(why, broke);
      return control(header, payload, completions);
    }
    default:
      return control(header, payload, completions);
  }
}

std::string VerbsLink::reachAsked(const wire::Header& header) {
  Rail* const rail = railOf(header.index);
  if (rail == nullptr) return "a question about a rail that is not there";
  wire::Reach reach;
  Outcome refused = Outcome::kUnreachable;
  {
    Pin pin;
    Outcome outcome = setup_.domain->pin(header.key, 0, 0, kRemoteRead, pin);
    if (outcome == Outcome::kBadRange)
      outcome = setup_.domain->pin(header.key, 0, 0, kRemoteWrite, pin);
    if (outcome == Outcome::kBadRange) return "a key that was never granted";
    std::shared_lock posting(posting_);
    if (!pin) {
      refused = Outcome::kRevoked;
    } else if (rail->pairs) {
      const auto* const flush = CardDomain::known(*flushed_from_->entry(), rail->pairs->card());
      reach.length = pin->length;
      reach.access = pin->access;
      reach.flush_address = flush->address();
      reach.flush_rkey = flush->rkey();
    }
    if (!pin || !rail->pairs) {
      // refused
    } else if (Windows::lend(*pin.operator->()) && rail->pairs->card()->windows()) {
      if (Window* const window = Windows::known(*pin.operator->(), rail->pairs->windows())) {
        if (!window->begin()) return "a key that was asked for twice";
        pin->reachable.store(true);
        reach.address = reinterpret_cast<uint64_t>(pin->base);
        for (size_t i = 0; i < kClasses; ++i) reach.rkeys[i] = window->rkey(static_cast<Class>(i));
        const auto opening = std::make_shared<Opening>(std::move(pin), *window, header.key, reach);
        bool good = true;
        for (size_t i = 0; i < kClasses && good; ++i)
          good = open(*rail, opening, static_cast<Class>(i));
        posting.unlock();
        if (!good) setAside(*rail, kNoWindows);
        return "";
      }
    } else {
      if (const auto* const known = CardDomain::known(*pin.operator->(), rail->pairs->card())) {
        pin->reachable.store(true);
        reach.address = known->address();
        std::fill(std::begin(reach.rkeys), std::end(reach.rkeys), known->rkey());
        posting.unlock();
        tellReach(*rail, header.key, reach);
        return "";
      }
    }
  }
  refuseReach(*rail, header.key, refused);
  return "";
}

void VerbsLink::refuseReach(const Rail& rail, uint64_t key, Outcome outcome) {
  wire::Header answer;
  answer.frame = wire::Frame::kReached;
  answer.index = rail.number;
  answer.key = key;
  answer.code = static_cast<uint32_t>(outcome);
  transmit(answer, {}, {});
}

// The memory may have been taken back by an owner that could not know yet that it has to be told.
void VerbsLink::tellReach(const Rail& rail, uint64_t key, const wire::Reach& reach) {
  wire::Header answer;
  answer.frame = wire::Frame::kReached;
  answer.index = rail.number;
  answer.key = key;
  answer.length = sizeof reach;
  transmit(answer, std::as_bytes(std::span(&reach, 1)), {});
  Pin still;
  if (setup_.domain->pin(key, 0, 0, kLocalOnly, still) != Outcome::kOk) tellTakenBack(key);
}

// Under posting_. A queue pair that is in error takes it and says so by a completion.
bool VerbsLink::open(Rail& rail, const std::shared_ptr<Opening>& opening, Class klass) {
  Queue& queue = rail.queues[index(klass)];
  std::lock_guard lock(queue.mutex);
  if (queue.room == 0 || !rail.up.load()) {
    queue.openings.push_back(opening);
    return true;
  }
  --queue.room;
  queue.flights.push_back({{}, 1, opening});
  ibv_send_wr request = opening->window.opening(klass), *refused = nullptr;
  request.wr_id = static_cast<uint64_t>(klass) | kLast;
  if (ibv_post_send(rail.pairs->of(klass), &request, &refused) == 0) return true;
  setAside(rail, "the card takes no requests");  // as in submit()
  return false;
}

void VerbsLink::opened(const Rail& rail, const std::shared_ptr<Opening>& opening) {
  if (opening->missing.fetch_sub(1) != 1) return;
  // Memory that has ended meanwhile waits for this pin, and its windows close with it.
  Pin still;
  if (setup_.domain->pin(opening->key, 0, 0, kLocalOnly, still) != Outcome::kOk) {
    refuseReach(rail, opening->key, Outcome::kRevoked);
  } else {
    tellReach(rail, opening->key, opening->reach);
  }
  opening->pin.reset();
}

std::string VerbsLink::reachArrived(const wire::Header& header,
                                    std::span<const std::byte> payload) {
  Rail* const rail = railOf(header.index);
  if (rail == nullptr) return "an answer about a rail that is not there";
  std::optional<wire::Reach> reach;
  if (payload.size() == sizeof(wire::Reach)) {
    reach.emplace();
    std::memcpy(&*reach, payload.data(), sizeof *reach);
  } else if (!payload.empty() || !isRefusal(header.code)) {
    return "a bad answer about a key";
  }
  const bool taken_back = !reach && header.code == static_cast<uint32_t>(Outcome::kRevoked);
  std::vector<Slice> waited;
  if (!rail->keys.answer(header.key, reach, taken_back, waited))
    return "an answer about a key not asked for";
  if (taken_back) {
    std::erase_if(waited, [&](const Slice& slice) { return !fitsLane(slice); });
    byLanes(waited);  // the owner answers each
  } else {
    goOn(waited);
  }
  return "";
}

void VerbsLink::tellTakenBack(uint64_t key) {
  if (state() != LinkState::kUp) return;
  wire::Header header;
  header.frame = wire::Frame::kUnmap;
  header.key = key;
  transmit(header, {}, {});
}

// The owner of a key that this side's peer may reach takes it back.
void VerbsLink::keyRevoked(uint64_t key) { tellTakenBack(key); }

void VerbsLink::cutOff(const std::string& why) {
  {
    std::shared_lock posting(posting_);
    for (auto& rail : rails_) {
      if (rail->pairs) rail->pairs->halt();
    }
  }
  fail(why, true);
}

// ---- the end

// Messages sent arrive before the peer hears of the end, if it takes them at all.
void VerbsLink::stop(bool tell) {
  constexpr int64_t kLastMs = 100;
  if (messagesSent()) {
    finish(tell);
    return;
  }
  home().every(1, [self = std::static_pointer_cast<VerbsLink>(shared_from_this()), tell,
                   until = nowMs() + kLastMs] {
    if (!self->messagesSent() && nowMs() < until) return true;
    self->finish(tell);
    return false;
  });
}

void VerbsLink::finish(bool tell) {
  TcpLink::stop(tell);
  home().post([self = std::static_pointer_cast<VerbsLink>(shared_from_this())] {
    std::lock_guard started(self->starting_);
    for (auto& rail : self->rails_) {
      if (!rail->pairs) continue;
      self->home().remove(rail->pairs->events()->fd);
      self->home().remove(rail->pairs->connectionEvents());
    }
    if (self->message_source_) {
      self->setup_.queue->remove(self->message_source_.get());
      self->home().remove(self->message_source_->pollFd());
      std::string why, broke;
      self->takeMessages(why, broke);
    }
    {
      std::unique_lock posting(self->posting_);
      for (auto& rail : self->rails_) {
        rail->up.store(false);  // nobody takes it for one that a slice may go by
        rail->pairs.reset();
      }
    }
    for (auto& rail : self->rails_) {
      for (auto& queue : rail->queues) {
        std::deque<Queue::Flight> flights;  // with pins, which go after the lock
        std::deque<std::shared_ptr<Opening>> openings;
        std::lock_guard lock(queue.mutex);
        flights.swap(queue.flights);
        openings.swap(queue.openings);
      }
    }
    // The domain's memory is no longer this link's; the words are taken from the card.
    self->flushed_into_.reset();
    self->flushed_from_.reset();
    self->message_source_.reset();  // it holds the link
    self->oneStopped();
  });
}

}  // namespace olpager::transport::verbs
