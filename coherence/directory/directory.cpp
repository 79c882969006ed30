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
  return record.rest == kAtRest           ? Phase::kRest
         : record.rest == kAtRestPoisoned ? Phase::kPoisoned
                                          : Phase::kGone;
}

Directory::Open& Directory::open(ExtentId extent) {
  Record& record = records_[extent];
  if (record.busy == 0) {
    record.link = open_.take({.extent = extent, .version = record.link, .phase = phase(extent)});
    record.busy = 1;
  }
  return open_[record.link];
}

void Directory::rest(ExtentId extent) {
  Record& record = records_[extent];
  const Open& o = open_[record.link];
  record.rest = o.phase == Phase::kRest       ? kAtRest
                : o.phase == Phase::kPoisoned ? kAtRestPoisoned
                                              : kAtRestGone;
  const uint32_t slot = record.link;
  record.link = o.version;
  record.busy = 0;
  open_.give(slot);
}

void Directory::tell(MessageKind kind, AgentId agent, Message message, Actions& actions) const {
  if (!live(agent)) return;
  message.kind = kind;
  message.from = kHome;
  message.to = agent;
  message.epoch = members_[agent].epoch;
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

/// Where the operation of the least age goes without the extent, its agent asks again for the
/// others (Agent::end); what the home asked for ahead they ask for themselves.
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

/// What an agent asked for before it got the extent in that mode is what it has now.
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
  o.push_age = kNobody;
}

void Directory::request(ExtentId extent, const Request& asked, Actions& actions) {
  const Phase at = phase(extent);
  if (at == Phase::kPoisoned || at == Phase::kGone || at == Phase::kFreeing) {
    // A free tells everybody by itself.
    if (at == Phase::kFreeing) return;
    Record& record = records_[extent];
    ++record.number;
    tell(at == Phase::kGone ? MessageKind::kForget : MessageKind::kPoison, asked.agent,
         {.extent = extent, .number = record.number}, actions);
    return;
  }
  if (complete(asked.age) && holds(Rule::kDropCompleted)) return;
  addRequest(open(extent), asked);
  if (!asked.hint || !holds(Rule::kHintsYield)) older(extent, asked.age, actions);
  openNext(extent, actions);
}

void Directory::push(ExtentId extent, AgentId agent, Age age, Actions& actions) {
  if (records_[extent].owner != agent || phase(extent) == Phase::kFreeing) return;
  Open& o = open(extent);
  o.push_age = std::min(o.push_age, age);
  older(extent, age, actions);
  openNext(extent, actions);
}

void Directory::older(ExtentId extent, Age age, Actions& actions) {
  Open& o = open(extent);
  if (age >= o.age || !holds(Rule::kUrge)) return;
  if (o.phase != Phase::kRecalling && o.phase != Phase::kYielding) return;
  o.age = age;
  step(extent, HomeInput::kOlder, actions);
}

/// Where the owner's extent goes for want of room: the first spill that has not refused it and
/// comes after the owner, where that is one.
AgentId Directory::spillFor(ExtentId extent) const {
  const Record& record = records_[extent];
  auto from = std::find(spills_.begin(), spills_.end(), static_cast<AgentId>(record.owner));
  from = from == spills_.end() ? spills_.begin() : from + 1;
  const auto found = std::find_if(from, spills_.end(), [&](AgentId spill) {
    return live(spill) && (open_[record.link].full & bit(spill)) == 0;
  });
  return found == spills_.end() ? kNoAgent : *found;
}

void Directory::openNext(ExtentId extent, Actions& actions) {
  Open& o = open(extent);
  if (o.opening) return;
  o.opening = true;
  while (openOne(extent, actions)) {
  }
  Open& after = open(extent);
  after.opening = false;
  const bool still =
      after.phase == Phase::kRest || after.phase == Phase::kPoisoned || after.phase == Phase::kGone;
  if (still && !after.free && after.waiting == kNone && after.push_age == kNobody) rest(extent);
}

/// Opens the transaction of the oldest request, of hints behind all else. False: there is none, or
/// it takes time.
bool Directory::openOne(ExtentId extent, Actions& actions) {
  Open& o = open(extent);
  Record& record = records_[extent];
  if (o.free && (o.phase == Phase::kRest || o.phase == Phase::kPoisoned)) {
    // What a lost agent owned is settled first.
    if (record.owner != kNoAgent && !live(record.owner)) return false;
    dropAllRequests(o);
    o.free = false;
    o.pending = live_;
    ++record.number;
    step(extent, HomeInput::kFree, actions);
    if (o.pending == 0) step(extent, HomeInput::kForgottenLast, actions);
    return false;
  }
  if (o.phase != Phase::kRest) {
    if (o.phase == Phase::kPoisoned || o.phase == Phase::kGone) dropAllRequests(o);
    return false;
  }
  uint32_t* oldest = nullptr;
  for (uint32_t* link = &o.waiting; *link != kNone;) {
    const uint32_t r = *link;
    const Request& one = requests_[r];
    if (!live(one.agent) || (complete(one.age) && holds(Rule::kDropCompleted))) {
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
  if (record.owner != kNoAgent && !live(record.owner)) return false;
  const bool only_hints = oldest != nullptr && requests_[*oldest].hint && holds(Rule::kHintsYield);
  if (o.push_age != kNobody &&
      (oldest == nullptr || only_hints || o.push_age < requests_[*oldest].age)) {
    const Age age = o.push_age;
    o.push_age = kNobody;
    if (record.owner == kNoAgent) return true;
    const AgentId spill = spillFor(extent);
    if (spill != kNoAgent) {
      begin(extent, {.agent = spill, .mode = Mode::kOwn, .age = age}, true, actions);
      return o.phase == Phase::kRest;
    }
    // There is no room: the owner may ask again, for this extent or another.
    o.full = 0;
    tell(MessageKind::kKeep, record.owner, {.extent = extent, .number = record.number}, actions);
    return true;
  }
  if (oldest == nullptr) return false;
  const uint32_t r = *oldest;
  const Request chosen = requests_[r];
  *oldest = chosen.next;
  requests_.give(r);
  // Who reads it may read on for as long as the operation waits that it is asked for.
  if (chosen.hint && chosen.mode == Mode::kOwn && holds(Rule::kHintsYield) &&
      (replicasOf(record) & live_ & ~bit(chosen.agent)) != 0)
    return true;
  if (record.owner == chosen.agent) {
    if (chosen.mode == Mode::kShared) return true;
    if (!holds(Rule::kGrantOwner) && replicasOf(record) == 0) return true;
  }
  begin(extent, chosen, false, actions);
  return o.phase == Phase::kRest;
}

void Directory::begin(ExtentId extent, const Request& chosen, bool for_room, Actions& actions) {
  Record& record = records_[extent];
  Open& o = open(extent);
  ++record.number;
  const AgentId taker = o.taker = chosen.agent;
  o.mode = record.owner == kNoAgent ? Mode::kOwn : chosen.mode;
  o.hint = chosen.hint;
  o.served = chosen.age;
  o.age = o.hint && holds(Rule::kHintsYield) ? kNobody : chosen.age;
  o.push = for_room;
  o.pending = o.mode == Mode::kOwn ? replicasOf(record) & live_ & ~bit(taker) : 0;
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
    yield.push = o.push;
    yield.taker = o.taker;
    yield.taker_epoch = members_[o.taker].epoch;
    tell(MessageKind::kYield, record.owner, yield, actions);
  }
  if ((effects & kTellGrant) != 0) tell(MessageKind::kGrant, o.taker, about, actions);
  if ((effects & kTellFirst) != 0) tell(MessageKind::kFirst, o.taker, about, actions);
  if ((effects & kTellUrge) != 0) {
    tellAll(MessageKind::kUrge, before == Phase::kRecalling ? o.pending : bit(record.owner), about);
  }
  if ((effects & kTellRelease) != 0) tell(MessageKind::kRelease, record.owner, about, actions);
  if ((effects & kTellKeep) != 0 && holds(Rule::kBackToGiver))
    tell(MessageKind::kKeep, record.owner, about, actions);
  if ((effects & kTellAdopt) != 0) {
    Message adopt = about;
    adopt.content = o.version;
    tell(MessageKind::kAdopt, o.taker, adopt, actions);
  }
  if ((effects & kTellPoison) != 0) {
    tellAll(MessageKind::kPoison, live_, about);
    actions.push_back({.kind = ActionKind::kPoisoned, .extent = extent});
  }
  if ((effects & kTellForget) != 0) tellAll(MessageKind::kForget, live_, about);
  if ((effects & kAddReplica) != 0) setReplicas(record, replicasOf(record) | bit(o.taker));
  if ((effects & kNoReplicas) != 0) setReplicas(record, 0);
  if ((effects & (kAddReplica | kTakerOwns)) != 0 && record.owner != kNoAgent)
    members_[record.owner].gave_away = next_;
  if ((effects & kTakerOwns) != 0) {
    record.owner = o.taker;
    setReplicas(record, replicasOf(record) & ~bit(o.taker));
    record.written = 0;
    o.version = static_cast<uint32_t>(record.number);
    o.push_age = kNobody;
    o.full = 0;
  }
  if ((effects & kNobodyOwns) != 0) {
    record.owner = kNoAgent;
    record.written = 0;
  }
  if ((effects & kDropAsks) != 0) dropRequests(o, o.taker, o.mode);
  if (cell.next == Phase::kGone)
    actions.push_back({.kind = ActionKind::kReleased, .extent = extent});
  if ((effects & kClose) != 0) {
    o.taker = kNoAgent;
    o.age = o.served = kNobody;
    o.push = o.hint = false;
    o.mode = Mode::kShared;
    o.pending = o.candidates = 0;
    openNext(extent, actions);
  }
}

/// An agent of `pending` has answered, or won't.
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
  // Of an earlier transaction, or a duplicate.
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
    case MessageKind::kRefused:
      if (message.from != o.taker) return;
      if (o.push) {
        o.full |= bit(o.taker);
        if (spillFor(extent) != kNoAgent) o.push_age = std::min(o.push_age, o.age);
      }
      step(extent, HomeInput::kRefused, actions);
      break;
    case MessageKind::kDeclined:
      if (message.from == record.owner) step(extent, HomeInput::kDeclined, actions);
      break;
    case MessageKind::kAdopted: {
      if (o.phase != Phase::kAdopting || message.from != o.taker) return;
      if (o.mode == Mode::kOwn) reverted(extent, static_cast<AgentId>(record.owner), actions);
      const auto lost = static_cast<AgentId>(record.owner);
      step(extent, HomeInput::kAdopted, actions);
      settled(lost, actions);
      break;
    }
    case MessageKind::kNotHere:
      if (o.phase == Phase::kAdopting && message.from == o.taker) {
        adopt(extent, HomeInput::kNotHereMore, HomeInput::kNotHereLast, actions);
      }
      break;
    default:
      actions.push_back({.kind = ActionKind::kViolation, .extent = extent, .message = message});
  }
}

void Directory::receive(const Message& message, Actions& actions) {
  const AgentId from = message.from;
  const bool of_extent =
      message.kind != MessageKind::kFenced && message.kind != MessageKind::kCompleted;
  if (message.to != kHome || from >= kMostAgents ||
      (of_extent && message.extent >= records_.size())) {
    actions.push_back({.kind = ActionKind::kViolation, .message = message});
    return;
  }
  // From an agent that has been lost since.
  if (!live(from) || message.epoch != members_[from].epoch) return;
  switch (message.kind) {
    case MessageKind::kGet:
      request(message.extent, {.agent = from, .mode = message.mode, .age = message.age}, actions);
      break;
    case MessageKind::kPush:
      push(message.extent, from, message.age, actions);
      break;
    case MessageKind::kFenced: {
      // Of this loss, not of an earlier one.
      const bool known =
          message.taker < kMostAgents && message.taker_epoch == members_[message.taker].epoch + 1;
      if (known) fencedBy(message.taker, from, actions);
      break;
    }
    case MessageKind::kWrote:
      if (records_[message.extent].owner == from) records_[message.extent].written = 1;
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
    records_[extent].rest = kAtRest;
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

// ---- agents that come and go

void Directory::join(AgentId agent, Epoch epoch) {
  assert(!live(agent) && (fencing_ & bit(agent)) == 0);
  live_ |= bit(agent);
  members_[agent] = {.live = true, .epoch = epoch};
}

void Directory::lost(AgentId agent, Actions& actions) {
  if (!live(agent)) return;
  live_ &= ~bit(agent);
  fencing_ |= bit(agent);
  Member& member = members_[agent];
  member.live = false;
  member.fenced_by = live_;
  const Message fence{.taker = agent, .taker_epoch = static_cast<Epoch>(member.epoch + 1)};
  for (AgentId other = 0; other < kMostAgents; ++other)
    tell(MessageKind::kFence, other, fence, actions);
  for (AgentId other = 0; other < kMostAgents; ++other) {
    if (other != agent && (fencing_ & bit(other)) != 0) fencedBy(other, agent, actions);
  }
  if (member.fenced_by == 0 || !holds(Rule::kFenceFirst)) settle(agent, actions);
}

void Directory::fencedBy(AgentId lost, AgentId by, Actions& actions) {
  if (lost >= kMostAgents || (fencing_ & bit(lost)) == 0) return;
  Member& member = members_[lost];
  if ((member.fenced_by & bit(by)) == 0) return;
  member.fenced_by &= ~bit(by);
  if (member.fenced_by == 0) settle(lost, actions);
}

/// Nobody hears the lost agent any more, and what others said before that is known here: it decides
/// about each extent.
void Directory::settle(AgentId lost, Actions& actions) {
  Member& member = members_[lost];
  if (member.settling) return;
  member.settling = true;
  member.adopting = 1;  // this walk
  member.exposed = std::any_of(routes_.begin(), routes_.end(), [&](const Route& one) {
    return one.agent == lost && one.age < member.gave_away;
  });
  for (size_t i = routes_.size(); i-- > 0;) {
    if (routes_[i].agent == lost) finished(routes_[i].age);
  }
  for (ExtentId extent = 0; extent < records_.size(); ++extent) {
    const Record& record = records_[extent];
    if (record.owner == lost || record.busy != 0 || (replicasOf(record) & bit(lost)) != 0)
      settleExtent(extent, lost, actions);
  }
  settled(lost, actions);
}

/// What the lost agent may have written of the extent is gone. Something else that the same
/// operation wrote may have left in time.
void Directory::reverted(ExtentId extent, AgentId lost, Actions& actions) const {
  actions.push_back({.kind = ActionKind::kReverted, .peer = lost, .extent = extent});
  if (!members_[lost].exposed || !holds(Rule::kAllOrNothing)) return;
  actions.push_back({.kind = ActionKind::kBroken, .peer = lost, .extent = extent});
}

/// An extent of a lost agent has found its place. With the last of them the agent may join again.
void Directory::settled(AgentId lost, Actions& actions) {
  Member& member = members_[lost];
  if (--member.adopting != 0) return;
  fencing_ &= ~bit(lost);
  actions.push_back({.kind = ActionKind::kSettled, .peer = lost});
}

void Directory::settleExtent(ExtentId extent, AgentId lost, Actions& actions) {
  Record& record = records_[extent];
  setReplicas(record, replicasOf(record) & ~bit(lost));
  if (record.owner == lost) {
    Open& o = open(extent);
    dropRequests(o, lost, Mode::kOwn);
    o.push_age = kNobody;
    if (o.phase == Phase::kRest || o.phase == Phase::kRecalling || o.phase == Phase::kYielding) {
      adopt(extent, HomeInput::kOwnerLost, HomeInput::kOwnerLostBare, actions);
    } else {
      answered(extent, lost, actions);
    }
    return;
  }
  if (record.busy == 0) return;
  Open& o = open(extent);
  dropRequests(o, lost, Mode::kOwn);
  if (o.taker == lost && o.phase == Phase::kAdopting) {
    adopt(extent, HomeInput::kNotHereMore, HomeInput::kNotHereLast, actions);
  } else if (o.taker == lost) {
    // It may have had the extent already, and written it: the giver has what was before.
    const bool had = o.phase == Phase::kFirsting ||
                     (o.phase == Phase::kYielding && o.mode == Mode::kOwn && !o.push);
    if (had) reverted(extent, lost, actions);
    step(extent, HomeInput::kTakerLost, actions);
  } else {
    answered(extent, lost, actions);
  }
  if (record.busy != 0) openNext(extent, actions);
}

/// Asks the next agent that may have the lost owner's bytes: a replica, else who gave them to it if
/// nothing was written since.
void Directory::adopt(ExtentId extent, HomeInput more, HomeInput last, Actions& actions) {
  Record& record = records_[extent];
  Open& o = open(extent);
  const bool first = more == HomeInput::kOwnerLost;
  if (first) {
    if (o.phase != Phase::kRest && !o.push && live(o.taker))
      addRequest(o, {.agent = o.taker, .mode = o.mode, .hint = o.hint, .age = o.served});
    const bool written = record.written != 0 && holds(Rule::kAdoptUnwritten);
    o.candidates = written ? 0 : live_;
    o.pending = 0;
    o.push = false;
  } else if (o.mode == Mode::kShared) {
    setReplicas(record, replicasOf(record) & ~bit(o.taker));
  } else {
    o.candidates &= ~bit(o.taker);
  }
  const AgentSet replicas = holds(Rule::kPromote) ? replicasOf(record) & live_ : 0;
  const AgentSet kept = o.candidates & live_;
  const auto lost = static_cast<AgentId>(record.owner);
  ++record.number;
  if (replicas == 0 && kept == 0) {
    step(extent, last, actions);
    if (!first) settled(lost, actions);
    return;
  }
  if (first) ++members_[lost].adopting;
  o.mode = replicas != 0 ? Mode::kShared : Mode::kOwn;
  o.taker = static_cast<AgentId>(std::countr_zero(replicas != 0 ? replicas : kept));
  o.age = o.served = kNobody;
  step(extent, more, actions);
}

}  // namespace olpager::directory
