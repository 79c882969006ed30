#include "coherence/transport/verbs/verbs_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"

namespace olpager::transport::verbs {
namespace {

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
                                                   std::unique_ptr<QueuePairs> pairs,
                                                   const std::vector<Reactor*>& reactors) {
  std::shared_ptr<VerbsLink> link(
      new VerbsLink(std::move(setup), std::move(control), std::move(pairs)));
  link->adopt(std::move(lanes), reactors, 1);
  if (link->pairs_->messages() != nullptr) link->pairs_->messages()->settle();
  for (auto& queue : link->queues_) queue.room = link->pairs_->sizes().requests;
  auto into = word(link->setup_.domain, link->flush_words_[0], kLocalOnly);
  if (!into.ok()) return into.error();
  auto from = word(link->setup_.domain, link->flush_words_[1], kRemoteRead);
  if (!from.ok()) return from.error();
  link->flushed_into_ = std::move(into.value());
  link->flushed_from_ = std::move(from.value());
  for (const auto* each : {&link->flushed_into_, &link->flushed_from_}) {
    if (CardDomain::known(*(*each)->entry(), link->pairs_->card()) == nullptr) {
      return Error{base::format("card {}: no memory can be registered", link->pairs_->cardName())};
    }
  }
  return link;
}

VerbsLink::~VerbsLink() = default;

void VerbsLink::begin() {
  auto self = std::static_pointer_cast<VerbsLink>(shared_from_this());
  setup_.domain->watch(std::static_pointer_cast<KeyWatcher>(self));
  home().add(pairs_->events()->fd, EPOLLIN,
             std::make_shared<Events>([self] { self->completionEvents(); }));
  home().add(pairs_->connectionEvents(), EPOLLIN,
             std::make_shared<Events>([self] { self->connectionEvents(); }));
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
  if (pairs_->messages() == nullptr) return;
  message_source_ = std::make_shared<MessageSource>(
      std::static_pointer_cast<VerbsLink>(shared_from_this()), pairs_->messages()->fd());
  home().add(message_source_->pollFd(), EPOLLIN, message_source_);
  setup_.queue->add(message_source_);
}

void VerbsLink::transmit(const wire::Header& header, std::span<const std::byte> head,
                         std::span<const std::byte> body) {
  if (header.frame == wire::Frame::kMessage || header.frame == wire::Frame::kCredit) {
    std::shared_lock posting(posting_);
    if (!pairs_) return;
    if (MessagePair* const pair = pairs_->messages(); pair != nullptr) {
      bool good = false;
      {
        std::lock_guard lock(messages_out_);
        for (const auto& part : {std::as_bytes(std::span(&header, 1)), head, body})
          messages_.insert(messages_.end(), part.begin(), part.end());
        good = postMessages(*pair);
      }
      posting.unlock();
      if (!good) broken("the queue pair of messages is lost");
      return;
    }
  }
  TcpLink::transmit(header, head, body);
}

// Under posting_ and messages_out_.
bool VerbsLink::postMessages(MessagePair& pair) {
  const ssize_t put = pair.post(messages_);
  if (put > 0) messages_.erase(messages_.begin(), messages_.begin() + put);
  messages_wait_.store(!messages_.empty());
  // Whoever keeps the queue pair may be away when it rings that there is room.
  if (put >= 0 && !messages_.empty() && !std::exchange(pumping_, true)) {
    home().every(1, [weak = weak_from_this()] {
      const auto self = std::static_pointer_cast<VerbsLink>(weak.lock());
      if (!self || self->state() == LinkState::kDown) return false;
      self->sendWaiting();
      std::lock_guard lock(self->messages_out_);
      return self->pumping_ = !self->messages_.empty();
    });
  }
  return put >= 0;
}

void VerbsLink::sendWaiting() {
  if (!messages_wait_.load()) return;
  std::shared_lock posting(posting_);
  if (!pairs_) return;
  std::unique_lock lock(messages_out_);
  const bool good = postMessages(*pairs_->messages());
  lock.unlock();
  posting.unlock();
  if (!good) broken("the queue pair of messages is lost");
}

// Or will never be.
bool VerbsLink::messagesSent() {
  std::shared_lock posting(posting_);
  if (!pairs_ || pairs_->messages() == nullptr) return true;
  std::lock_guard lock(messages_out_);
  return !postMessages(*pairs_->messages()) || (pairs_->messages()->reap() && messages_.empty());
}

bool VerbsLink::armMessages() {
  {
    std::shared_lock posting(posting_);
    if (!pairs_) return false;
    std::lock_guard lock(messages_in_);
    if (pairs_->messages()->arm()) return true;
  }
  fail("the card gives no more events", true);
  return false;
}

// Whether there were any. `why`: what the card says, `broke`: what rule the peer broke.
bool VerbsLink::takeMessages(std::string& why, std::string& broke) {
  std::vector<Completion> completions;  // go after the locks
  std::shared_lock posting(posting_);
  if (!pairs_ || pairs_->messages() == nullptr) return false;
  std::lock_guard lock(messages_in_);
  const auto frames = [&](const wire::Header& header, std::span<const std::byte> payload) {
    if (header.frame == wire::Frame::kMessage || header.frame == wire::Frame::kCredit)
      return control(header, payload, completions);
    return base::format("a frame of kind {} among messages", static_cast<unsigned>(header.frame));
  };
  bool any = false;
  for (int count = 1; count > 0;) {
    count = pairs_->messages()->take(
        [&](std::span<const std::byte> piece) {
          if (message_bytes_.empty()) piece = piece.subspan(takeFrames(piece, broke, frames));
          message_bytes_.insert(message_bytes_.end(), piece.begin(), piece.end());
          const size_t taken = takeFrames(message_bytes_, broke, frames);
          message_bytes_.erase(message_bytes_.begin(),
                               message_bytes_.begin() + static_cast<ptrdiff_t>(taken));
        },
        why);
    any = any || count > 0;
  }
  if (any) heard();
  setup_.queue->push(completions);
  return any;
}

bool VerbsLink::receiveMessages() {
  std::string why, broke;
  const bool any = takeMessages(why, broke);
  if (!broke.empty()) {
    fail("the peer broke the protocol: " + broke, true);
  } else if (!why.empty()) {
    broken(why);
  }
  return any;
}

// A card cuts what it is given by itself. A slice may have to go by the lane.
uint32_t VerbsLink::sliceBytes(bool, Class klass, uint64_t, uint64_t) const {
  if (klass <= Class::kDemand) return wire::kMaxSlice;
  return std::clamp(setup_.options.slice_bytes, wire::kMinSlice, wire::kMaxSlice);
}

// ---- this side's operations

bool VerbsLink::take(const Slice& slice) {
  wire::Reach reach;
  switch (keys_.find(slice.key, slice, reach)) {
    case Keys::Found::kAsk: {
      wire::Header header;
      header.frame = wire::Frame::kReach;
      header.key = slice.key;
      transmit(header, {}, {});
      return true;
    }
    case Keys::Found::kWaits:
      return true;
    case Keys::Found::kReach:
      if (submit(slice, reach)) return true;
      break;
    case Keys::Found::kOtherwise:
      break;
  }
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
bool VerbsLink::submit(const Slice& slice, const wire::Reach& reach) {
  const uint32_t right = slice.write ? kRemoteWrite : kRemoteRead;
  if ((reach.access & right) == 0 || slice.bytes > reach.length ||
      slice.offset > reach.length - slice.bytes)
    return false;
  std::shared_lock posting(posting_);
  if (!pairs_) return true;  // stopped() answers for all
  LocalRange parts[kMaxLocalRanges];
  const size_t count = localRanges(slice, parts);
  if (count == 0) return true;
  ibv_sge places[kMaxLocalRanges + 1];
  for (size_t i = 0; i < count; ++i) {
    const CardRegion* const known = CardDomain::known(*parts[i].region->entry(), pairs_->card());
    if (known == nullptr) return false;
    places[i] = {known->address() + parts[i].offset, static_cast<uint32_t>(parts[i].length),
                 known->lkey()};
  }
  const uint32_t most = pairs_->sizes().parts;
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
    const auto* const into = CardDomain::known(*flushed_into_->entry(), pairs_->card());
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

  Queue& queue = queues_[index(slice.klass)];
  std::unique_lock lock(queue.mutex);
  if (queue.room < requests) {
    queue.waiting.push_back(slice);
    return true;
  }
  iovec unused[kMaxLocalRanges];
  size_t unused_count = 0;
  if (!slice.write && !takeSlice(slice.operation, slice.index, slice.bytes, unused, unused_count))
    return true;
  queue.room -= requests;
  queue.flights.push_back({slice, requests});
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pairs_->of(slice.klass), list, &refused);
  lock.unlock();
  posting.unlock();
  if (error != 0)
    fail(base::format("the card {} takes no requests: {}", peer().address, std::strerror(error)),
         true);
  return true;
}

void VerbsLink::completionEvents() {
  {
    std::shared_lock posting(posting_);
    if (!pairs_) return;
    const Api& api = *verbs::api();
    ibv_cq* of = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (api.ibv_get_cq_event(pairs_->events(), &of, &context) == 0) ++events;
    if (events != 0) api.ibv_ack_cq_events(pairs_->completions(), events);
    if (ibv_req_notify_cq(pairs_->completions(), 0) != 0) {
      posting.unlock();
      fail("the card gives no more events", true);
      return;
    }
  }
  drain();
}

void VerbsLink::drain() {
  std::vector<Slice> waited;
  std::string why;
  for (;;) {
    ibv_wc done[32];
    std::vector<Slice> answered;
    std::vector<std::shared_ptr<Opening>> open_now;
    {
      std::shared_lock posting(posting_);
      if (!pairs_) return;
      const int count = ibv_poll_cq(pairs_->completions(), 32, done);
      if (count < 0) why = "the card's completions can't be read";
      if (count <= 0) break;
      for (int i = 0; i < count && why.empty(); ++i) {
        if (done[i].status != IBV_WC_SUCCESS) {
          why = done[i].status == IBV_WC_REM_ACCESS_ERR
                    ? "the peer took memory back, or its card does not let this one reach it"
                    : base::format("a card's transfer failed: {}",
                                   verbs::api()->ibv_wc_status_str(done[i].status));
          break;
        }
        Queue& queue = queues_[done[i].wr_id];
        std::unique_lock lock(queue.mutex);
        Queue::Flight& flight = queue.flights.front();
        queue.room += flight.requests;
        if (flight.opening) {
          open_now.push_back(std::move(flight.opening));
        } else {
          answered.push_back(flight.slice);
        }
        queue.flights.pop_front();
        if (!queue.openings.empty()) {
          const auto opening = std::move(queue.openings.front());
          queue.openings.pop_front();
          lock.unlock();
          if (!open(opening, static_cast<Class>(done[i].wr_id))) why = "the card opens no windows";
          continue;
        }
        // As many as there is room for; the rest finds itself here again.
        for (uint32_t room = queue.room; room > 8 && !queue.waiting.empty(); room -= 8) {
          waited.push_back(queue.waiting.front());
          queue.waiting.pop_front();
        }
      }
    }
    for (const Slice& slice : answered)
      answerSlice(slice.operation, slice.index, slice.write, Outcome::kOk);
    for (const auto& opening : open_now) opened(opening);
    if (!why.empty()) break;
  }
  if (!why.empty()) {
    broken(why);
    return;
  }
  goOn(waited);
  issue();
}

// If the peer has said why, that is the reason.
void VerbsLink::broken(const std::string& why) {
  readControl(true);
  fail(why, true);
}

void VerbsLink::connectionEvents() {
  std::string ended;
  {
    std::shared_lock posting(posting_);
    if (!pairs_) return;
    while (pairs_->nextConnectionEvent(ended)) {
      if (ended.empty() || cut_ms_.load() != 0) continue;
      cut_why_ = ended;
      cut_ms_.store(nowMs());
    }
  }
}

// The peer's card has ended it, and the first connection does not say why: then that is the reason.
std::string VerbsLink::standstill(int64_t now_ms, bool late) {
  {
    // Nobody else hears that a message did not get through.
    std::shared_lock posting(posting_);
    if (pairs_ && pairs_->messages() != nullptr) {
      std::lock_guard lock(messages_out_);
      pairs_->messages()->reap();
      if (!postMessages(*pairs_->messages())) return "messages don't reach the peer's card";
    }
  }
  constexpr int64_t kPatienceMs = 1000;
  const int64_t cut = cut_ms_.load();
  if (cut != 0 && !late && now_ms - cut > kPatienceMs)
    return "the queue pairs are lost: " + cut_why_;
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
      keys_.takenBack(header.key);
      return "";
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
  wire::Reach reach;
  wire::Header answer;
  answer.frame = wire::Frame::kReached;
  answer.key = header.key;
  {
    Pin pin;
    Outcome outcome = setup_.domain->pin(header.key, 0, 0, kRemoteRead, pin);
    if (outcome == Outcome::kBadRange)
      outcome = setup_.domain->pin(header.key, 0, 0, kRemoteWrite, pin);
    if (outcome == Outcome::kBadRange) return "a key that was never granted";
    std::shared_lock posting(posting_);
    if (!pairs_) return "";
    const auto* const flush = CardDomain::known(*flushed_from_->entry(), pairs_->card());
    if (pin) {
      reach.length = pin->length;
      reach.access = pin->access;
      reach.flush_address = flush->address();
      reach.flush_rkey = flush->rkey();
    }
    if (pin && pin->whole && pairs_->card()->windows()) {
      if (Window* const window = Windows::known(*pin.operator->(), pairs_->windows())) {
        if (!window->begin()) return "a key that was asked for twice";
        pin->reachable.store(true);
        reach.address = reinterpret_cast<uint64_t>(pin->base);
        for (size_t i = 0; i < kClasses; ++i) reach.rkeys[i] = window->rkey(static_cast<Class>(i));
        const auto opening = std::make_shared<Opening>(std::move(pin), *window, header.key, reach);
        bool good = true;
        for (size_t i = 0; i < kClasses && good; ++i) good = open(opening, static_cast<Class>(i));
        posting.unlock();
        if (!good) fail("the card opens no windows", true);
        return "";
      }
    } else if (pin) {
      if (const auto* const known = CardDomain::known(*pin.operator->(), pairs_->card())) {
        pin->reachable.store(true);
        reach.address = known->address();
        std::fill(std::begin(reach.rkeys), std::end(reach.rkeys), known->rkey());
        posting.unlock();
        tellReach(header.key, reach);
        return "";
      }
    }
    answer.code = static_cast<uint32_t>(pin ? Outcome::kUnreachable : Outcome::kRevoked);
  }
  transmit(answer, {}, {});
  return "";
}

// The memory may have been taken back by who could not know yet that it has to be told.
void VerbsLink::tellReach(uint64_t key, const wire::Reach& reach) {
  wire::Header answer;
  answer.frame = wire::Frame::kReached;
  answer.key = key;
  answer.length = sizeof reach;
  transmit(answer, std::as_bytes(std::span(&reach, 1)), {});
  Pin still;
  if (setup_.domain->pin(key, 0, 0, kLocalOnly, still) != Outcome::kOk) tellTakenBack(key);
}

// Under posting_. A queue pair that is in error takes it and says so by a completion.
bool VerbsLink::open(const std::shared_ptr<Opening>& opening, Class klass) {
  Queue& queue = queues_[index(klass)];
  std::lock_guard lock(queue.mutex);
  if (queue.room == 0) {
    queue.openings.push_back(opening);
    return true;
  }
  --queue.room;
  queue.flights.push_back({{}, 1, opening});
  ibv_send_wr request = opening->window.opening(klass), *refused = nullptr;
  request.wr_id = static_cast<uint64_t>(klass);
  return ibv_post_send(pairs_->of(klass), &request, &refused) == 0;
}

void VerbsLink::opened(const std::shared_ptr<Opening>& opening) {
  if (opening->missing.fetch_sub(1) != 1) return;
  // Memory that has ended meanwhile waits for this pin, and its windows close with it.
  Pin still;
  if (setup_.domain->pin(opening->key, 0, 0, kLocalOnly, still) != Outcome::kOk) {
    wire::Header answer;
    answer.frame = wire::Frame::kReached;
    answer.key = opening->key;
    answer.code = static_cast<uint32_t>(Outcome::kRevoked);
    transmit(answer, {}, {});
  } else {
    tellReach(opening->key, opening->reach);
  }
  opening->pin.reset();
}

std::string VerbsLink::reachArrived(const wire::Header& header,
                                    std::span<const std::byte> payload) {
  std::optional<wire::Reach> reach;
  if (payload.size() == sizeof(wire::Reach)) {
    reach.emplace();
    std::memcpy(&*reach, payload.data(), sizeof *reach);
  } else if (!payload.empty() || !isRefusal(header.code)) {
    return "a bad answer about a key";
  }
  const bool taken_back = !reach && header.code == static_cast<uint32_t>(Outcome::kRevoked);
  std::vector<Slice> waited;
  if (!keys_.answer(header.key, reach, taken_back, waited))
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
    if (pairs_) pairs_->halt();
  }
  fail(why, true);
}

// ---- the end

// What was sent arrives before the peer hears of the end, if it takes it at all.
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
    self->home().remove(self->pairs_->events()->fd);
    self->home().remove(self->pairs_->connectionEvents());
    if (self->message_source_) {
      self->setup_.queue->remove(self->message_source_.get());
      self->home().remove(self->message_source_->pollFd());
      std::string why, broke;
      self->takeMessages(why, broke);
    }
    {
      std::unique_lock posting(self->posting_);
      self->pairs_.reset();
    }
    for (auto& queue : self->queues_) {
      std::deque<Queue::Flight> flights;  // with pins, which go after the lock
      std::deque<std::shared_ptr<Opening>> openings;
      std::lock_guard lock(queue.mutex);
      flights.swap(queue.flights);
      openings.swap(queue.openings);
    }
    // The domain's memory is no longer this link's; the words are taken from the card.
    self->flushed_into_.reset();
    self->flushed_from_.reset();
    self->message_source_.reset();  // it holds the link
    self->oneStopped();
  });
}

}  // namespace olpager::transport::verbs
