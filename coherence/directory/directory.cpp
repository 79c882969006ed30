#include "coherence/directory/directory.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "coherence/directory/seeded.h"

namespace olpager::directory {

// ---- records

Phase Directory::phase(ExtentId extent) const {
  const Record& record = records_[extent];
  if (record.busy != 0) return open_[record.link].phase;
  return record.gone != 0 ? Phase::kGone : Phase::kRest;
}

Directory::Open& Directory::open(ExtentId extent) {
  Record& record = records_[extent];
  if (record.busy == 0) {
    record.link = open_.take({.phase = phase(extent)});
    record.busy = 1;
  }
  return open_[record.link];
}

void Directory::rest(ExtentId extent) {
  Record& record = records_[extent];
  record.gone = open_[record.link].phase == Phase::kGone ? 1 : 0;
  open_.give(record.link);
  record.link = kNone;
  record.busy = 0;
}

void Directory::tell(MessageKind kind, AgentId agent, Message message, Actions& actions) const {
  message.kind = kind;
  message.from = kHome;
  message.to = agent;
  actions.push_back({.kind = ActionKind::kSend, .message = message});
}

void Directory::setReplicas(Record& record, AgentSet agents) {
  constexpr unsigned kInRecord = 32;
  if (agents >> kInRecord == 0) {
    if (record.wide != 0) wide_.give(record.replicas);
    record.wide = 0;
    record.replicas = static_cast<uint32_t>(agents);
  } else if (record.wide != 0) {
    wide_[record.replicas] = agents;
  } else {
    record.wide = 1;
    record.replicas = wide_.take(agents);
  }
}

// ---- operations

Age Directory::operation() {
  routes_.push_back({.age = next_, .agent = kNoAgent});
  return next_++;
}

std::deque<Directory::Route>::iterator Directory::placeOf(Age age) {
  return std::lower_bound(routes_.begin(), routes_.end(), age,
                          [](const Route& one, Age wanted) { return one.age < wanted; });
}

Directory::Route* Directory::route(Age age) {
  const auto found = placeOf(age);
  return found != routes_.end() && found->age == age ? &*found : nullptr;
}

void Directory::sent(Age age, AgentId agent) {
  if (Route* const found = route(age)) found->agent = agent;
}

void Directory::finished(Age age) {
  complete_.add(age);
  if (const auto found = placeOf(age); found != routes_.end() && found->age == age)
    routes_.erase(found);
}

void Directory::cancel(Age age, Actions& actions) {
  const Route* const found = route(age);
  if (found == nullptr) return;
  const AgentSet told = found->asked_for;
  finished(age);
  for (AgentId agent = 0; agent < kMostAgents; ++agent) {
    if ((told & bit(agent)) != 0)
      tell(MessageKind::kOver, agent, {.age = age, .served = oldest()}, actions);
  }
}

void Directory::ask(Age age, AgentId agent, ExtentId first, ExtentId count, Mode mode,
                    Actions& actions) {
  Route* const found = route(age);
  if (found == nullptr) return;
  found->asked_for |= bit(agent);
  for (ExtentId extent = first; extent < first + count; ++extent)
    request(extent, {.agent = agent, .mode = mode, .hint = true, .age = age}, actions);
}

// ---- requests

/// If the operation of the least age goes without the extent, its agent asks again for the others
/// (Agent::end); operations that the home asked ahead for ask for themselves.
void Directory::addRequest(Open& o, const Request& asked) {
  for (uint32_t r = o.waiting; r != kNone; r = requests_[r].next) {
    Request& one = requests_[r];
    if (one.agent != asked.agent || one.mode != asked.mode || one.hint != asked.hint) continue;
    one.age = complete(one.age) ? asked.age : std::min(one.age, asked.age);
    return;
  }
  Request added = asked;
  added.next = o.waiting;
  o.waiting = requests_.take(added);
}

/// Requests of an agent from before it got the extent in that mode are met.
void Directory::dropRequests(Open& o, AgentId agent, Mode mode) {
  for (uint32_t* link = &o.waiting; *link != kNone;) {
    const uint32_t r = *link;
    if (requests_[r].agent == agent && (mode == Mode::kOwn || requests_[r].mode == Mode::kShared)) {
      *link = requests_[r].next;
      requests_.give(r);
    } else {
      link = &requests_[r].next;
    }
  }
}

void Directory::dropAllRequests(Open& o) {
  while (o.waiting != kNone) {
    const uint32_t r = o.waiting;
    o.waiting = requests_[r].next;
    requests_.give(r);
  }
}

void Directory::request(ExtentId extent, const Request& asked, Actions& actions) {
  const Phase at = phase(extent);
  if (at == Phase::kFreeing) return;  // a free tells everybody by itself
  if (at == Phase::kGone) {
    Record& record = records_[extent];
    ++record.number;
    tell(MessageKind::kForget, asked.agent, {.extent = extent, .number = record.number}, actions);
    return;
  }
  if (complete(asked.age) && holds(Rule::kDropCompleted)) return;
  addRequest(open(extent), asked);
  if (!asked.hint || !holds(Rule::kHintsYield)) older(extent, asked.age, actions);
  openNext(extent, actions);
}

void Directory::older(ExtentId extent, Age age, Actions& actions) {
  Open& o = open(extent);
  if (age >= o.age || !holds(Rule::kUrge)) return;
  if (o.phase != Phase::kRecalling && o.phase != Phase::kYielding) return;
  o.age = age;
  step(extent, HomeInput::kOlder, actions);
}

void Directory::openNext(ExtentId extent, Actions& actions) {
  Open& o = open(extent);
  if (o.opening) return;
  o.opening = true;
  while (openOne(extent, actions)) {
  }
  Open& after = open(extent);
  after.opening = false;
  const bool still = after.phase == Phase::kRest || after.phase == Phase::kGone;
  if (still && !after.free && after.waiting == kNone) rest(extent);
}

/// Opens the transaction of the oldest request, of hints behind all else. False: there is none, or
/// it takes time.
bool Directory::openOne(ExtentId extent, Actions& actions) {
  Open& o = open(extent);
  Record& record = records_[extent];
  if (o.free && o.phase == Phase::kRest) {
    dropAllRequests(o);
    o.free = false;
    o.pending = joined_;
    ++record.number;
    step(extent, HomeInput::kFree, actions);
    if (o.pending == 0) step(extent, HomeInput::kForgottenLast, actions);
    return false;
  }
  if (o.phase != Phase::kRest) {
    if (o.phase == Phase::kGone) dropAllRequests(o);
    return false;
  }
  uint32_t* oldest = nullptr;
  for (uint32_t* link = &o.waiting; *link != kNone;) {
    const uint32_t r = *link;
    const Request& one = requests_[r];
    if (complete(one.age) && holds(Rule::kDropCompleted)) {
      *link = one.next;
      requests_.give(r);
      continue;
    }
    const auto before = [&](const Request& other) {
      if (one.hint != other.hint && holds(Rule::kHintsYield)) return other.hint;
      return holds(Rule::kOldestFirst) ? one.age < other.age : one.age > other.age;
    };
    if (oldest == nullptr || before(requests_[*oldest])) oldest = link;
    link = &requests_[r].next;
  }
  if (oldest == nullptr) return false;
  const uint32_t r = *oldest;
  const Request chosen = requests_[r];
  *oldest = chosen.next;
  requests_.give(r);
  // Readers may read on for as long as the operation waits that it is asked for.
  if (chosen.hint && chosen.mode == Mode::kOwn && holds(Rule::kHintsYield) &&
      (replicasOf(record) & ~bit(chosen.agent)) != 0)
    return true;
  if (record.owner == chosen.agent) {
    if (chosen.mode == Mode::kShared) return true;
    if (!holds(Rule::kGrantOwner) && replicasOf(record) == 0) return true;
  }
  begin(extent, chosen, actions);
  return o.phase == Phase::kRest;
}

void Directory::begin(ExtentId extent, const Request& chosen, Actions& actions) {
  Record& record = records_[extent];
  Open& o = open(extent);
  ++record.number;
  const AgentId taker = o.taker = chosen.agent;
  o.mode = record.owner == kNoAgent ? Mode::kOwn : chosen.mode;
  o.hint = chosen.hint;
  o.served = chosen.age;
  o.age = o.hint && holds(Rule::kHintsYield) ? kNobody : chosen.age;
  o.pending = o.mode == Mode::kOwn ? replicasOf(record) & ~bit(taker) : 0;
  if (!holds(Rule::kAcksBeforeYield)) o.pending = 0;
  const bool recall = o.pending != 0;
  if (record.owner == kNoAgent) {
    step(extent, HomeInput::kOpenFirst, actions);
  } else if (record.owner == taker) {
    step(extent, recall ? HomeInput::kOpenUpgradeRecall : HomeInput::kOpenUpgrade, actions);
  } else if (o.mode == Mode::kShared) {
    step(extent, HomeInput::kOpenShared, actions);
  } else {
    step(extent, recall ? HomeInput::kOpenOwnRecall : HomeInput::kOpenOwn, actions);
  }
}

// ---- the table's steps

void Directory::step(ExtentId extent, HomeInput input, Actions& actions) {
  Record& record = records_[extent];
  Open& o = open(extent);
  const HomeCell cell = kHomeTable(o.phase, input);
  if (cell.kind == HomeCell::kIgnored) return;
  if (cell.kind != HomeCell::kGoes) {
    actions.push_back({.kind = ActionKind::kViolation, .extent = extent, .number = record.number});
    return;
  }
  const uint32_t effects = cell.effects;
  const Message about{
      .mode = o.mode, .extent = extent, .number = record.number, .age = o.age, .served = o.served};
  const auto tellAll = [&](MessageKind kind, AgentSet agents, const Message& message) {
    for (AgentSet left = agents; left != 0; left &= left - 1) {
      tell(kind, static_cast<AgentId>(std::countr_zero(left)), message, actions);
    }
  };
  const Phase before = o.phase;
  o.phase = cell.next;
  if ((effects & kTellInvalidate) != 0) tellAll(MessageKind::kInvalidate, o.pending, about);
  if ((effects & kTellYield) != 0) {
    Message yield = about;
    yield.taker = o.taker;
    tell(MessageKind::kYield, record.owner, yield, actions);
  }
  if ((effects & kTellGrant) != 0) tell(MessageKind::kGrant, o.taker, about, actions);
  if ((effects & kTellFirst) != 0) tell(MessageKind::kFirst, o.taker, about, actions);
  if ((effects & kTellUrge) != 0) {
    tellAll(MessageKind::kUrge, before == Phase::kRecalling ? o.pending : bit(record.owner), about);
  }
  if ((effects & kTellRelease) != 0) tell(MessageKind::kRelease, record.owner, about, actions);
  if ((effects & kTellForget) != 0) tellAll(MessageKind::kForget, joined_, about);
  if ((effects & kAddReplica) != 0) setReplicas(record, replicasOf(record) | bit(o.taker));
  if ((effects & kNoReplicas) != 0) setReplicas(record, 0);
  if ((effects & kTakerOwns) != 0) {
    record.owner = o.taker;
    setReplicas(record, replicasOf(record) & ~bit(o.taker));
  }
  if ((effects & kNobodyOwns) != 0) record.owner = kNoAgent;
  if ((effects & kDropAsks) != 0) dropRequests(o, o.taker, o.mode);
  if (cell.next == Phase::kGone)
    actions.push_back({.kind = ActionKind::kReleased, .extent = extent});
  if ((effects & kClose) != 0) {
    o.taker = kNoAgent;
    o.age = o.served = kNobody;
    o.hint = false;
    o.mode = Mode::kShared;
    o.pending = 0;
    openNext(extent, actions);
  }
}

/// An agent of `pending` has answered.
void Directory::answered(ExtentId extent, AgentId agent, Actions& actions) {
  Open& o = open(extent);
  if ((o.pending & bit(agent)) == 0) return;
  o.pending &= ~bit(agent);
  const bool last = o.pending == 0;
  if (o.phase == Phase::kRecalling) {
    Record& record = records_[extent];
    setReplicas(record, replicasOf(record) & ~bit(agent));
    step(extent,
         !last                     ? HomeInput::kAckMore
         : o.taker == record.owner ? HomeInput::kAckLastUpgrade
                                   : HomeInput::kAckLast,
         actions);
  } else if (o.phase == Phase::kFreeing) {
    step(extent, last ? HomeInput::kForgottenLast : HomeInput::kForgottenMore, actions);
  }
}

void Directory::answer(const Message& message, Actions& actions) {
  const ExtentId extent = message.extent;
  Record& record = records_[extent];
  // A message of an earlier transaction, or a duplicate.
  if (record.busy == 0 || (message.number != record.number && holds(Rule::kOldNumberIgnored)))
    return;
  Open& o = open(extent);
  switch (message.kind) {
    case MessageKind::kAcked:
    case MessageKind::kForgotten:
      answered(extent, message.from, actions);
      break;
    case MessageKind::kDone:
      if (message.from != o.taker) return;
      step(extent, o.mode == Mode::kOwn ? HomeInput::kDoneOwn : HomeInput::kDoneShared, actions);
      break;
    case MessageKind::kDeclined:
      if (message.from == record.owner) step(extent, HomeInput::kDeclined, actions);
      break;
    default:
      actions.push_back({.kind = ActionKind::kViolation, .extent = extent, .message = message});
  }
}

void Directory::receive(const Message& message, Actions& actions) {
  const AgentId from = message.from;
  const bool of_extent = message.kind != MessageKind::kCompleted;
  if (message.to != kHome || from >= kMostAgents ||
      (of_extent && message.extent >= records_.size())) {
    actions.push_back({.kind = ActionKind::kViolation, .message = message});
    return;
  }
  if (!joined(from)) return;
  switch (message.kind) {
    case MessageKind::kGet:
      request(message.extent, {.agent = from, .mode = message.mode, .age = message.age}, actions);
      break;
    case MessageKind::kCompleted: {
      const Route* const found = route(message.age);
      if (found != nullptr && found->agent == from) finished(message.age);
      break;
    }
    default:
      answer(message, actions);
  }
}

// ---- regions

void Directory::allocate(ExtentId first, ExtentId count) {
  if (records_.size() < size_t{first} + count) records_.resize(size_t{first} + count);
  for (ExtentId extent = first; extent < first + count; ++extent) {
    assert(phase(extent) == Phase::kGone);
    records_[extent].gone = 0;
  }
}

void Directory::free(ExtentId first, ExtentId count, Actions& actions) {
  for (ExtentId extent = first; extent < first + count; ++extent) {
    const Phase at = phase(extent);
    if (at == Phase::kGone || at == Phase::kFreeing) continue;
    open(extent).free = true;
    openNext(extent, actions);
  }
}

void Directory::join(AgentId agent) {
  assert(!joined(agent));
  joined_ |= bit(agent);
}

}  // namespace olpager::directory
