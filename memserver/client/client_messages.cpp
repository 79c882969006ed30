// Requests, and what the memserver answers and says (client_core.h).
#include "memserver/client/client_core.h"

#include "base/format.h"
#include "base/log.h"

namespace olpager::memserver {

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
    greeted_ms_ = request->sent_ms;
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
    greeted(lock);
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
  // Issued transfers end with their operations.
  ++figures_.slabs_lost;
  happen(Event::Kind::kSlabLost, base::format("{} MiB are lost: {}", bytes >> 20, why), id, bytes);
}

void ClientCore::loseAll(Lock& lock, const std::string& why) {
  while (!slabs_.empty()) lose(lock, slabs_.begin()->first, why);
}

}  // namespace olpager::memserver
