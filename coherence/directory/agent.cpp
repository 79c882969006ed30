// Long: the steps of one table (agent_table.h), in the order of its events.
#include "coherence/directory/agent.h"

#include <algorithm>
#include <cassert>

#include "coherence/directory/seeded.h"

namespace olpager::directory {

// ---- extents that are retained

void Agent::link(ExtentId extent) {
  Extent& e = extents_[extent];
  e.previous = last_retained_;
  e.next = kNone;
  (last_retained_ == kNone ? first_retained_ : extents_[last_retained_].next) = extent;
  last_retained_ = extent;
  ++retained_;
}

void Agent::unlink(ExtentId extent) {
  Extent& e = extents_[extent];
  (e.previous == kNone ? first_retained_ : extents_[e.previous].next) = e.next;
  (e.next == kNone ? last_retained_ : extents_[e.next].previous) = e.previous;
  e.previous = e.next = kNone;
  --retained_;
}

Agent::Busy& Agent::busy(ExtentId extent) {
  Extent& e = extents_[extent];
  if (e.busy == kNone) e.busy = busy_.take({});
  return busy_[e.busy];
}

void Agent::calm(ExtentId extent) {
  Extent& e = extents_[extent];
  if (e.busy == kNone || !busy_[e.busy].idle()) return;
  busy_.give(e.busy);
  e.busy = kNone;
}

// ---- operations and their wants

uint32_t Agent::find(Age age) const {
  const auto found = std::lower_bound(order_.begin(), order_.end(), age, inOrder);
  return found != order_.end() && found->age == age ? found->operation : kNone;
}

bool Agent::submitted(Age age) const {
  const uint32_t operation = find(age);
  return operation != kNone && operations_[operation].progress == Progress::kSubmitted;
}

bool Agent::runnable(Age age) const {
  const uint32_t operation = find(age);
  return operation != kNone && operations_[operation].progress == Progress::kWaiting &&
         !operations_[operation].failed && operations_[operation].unclaimed == 0;
}

void Agent::list(uint32_t want) {
  Want& w = wants_[want];
  if (w.listed) return;
  Operation& operation = operations_[w.operation];
  w.open_previous = kNone;
  w.open_next = operation.open_wants;
  if (operation.open_wants != kNone) wants_[operation.open_wants].open_previous = want;
  operation.open_wants = want;
  w.listed = true;
  changed_ = true;
}

void Agent::unlist(uint32_t want) {
  Want& w = wants_[want];
  if (!w.listed) return;
  (w.open_previous == kNone ? operations_[w.operation].open_wants
                            : wants_[w.open_previous].open_next) = w.open_next;
  if (w.open_next != kNone) wants_[w.open_next].open_previous = w.open_previous;
  w.open_previous = w.open_next = kNone;
  w.listed = false;
}

bool Agent::needs(const Operation& operation, ExtentId extent) const {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    if (&operations_[wants_[want].operation] == &operation) return true;
  }
  return false;
}

/// A demand that waits lets no new younger claim in: else a stream of them could hold it up for
/// ever.
bool Agent::barred(const Want& want) const {
  const Extent& extent = at(want.extent);
  if (extent.busy == kNone || !holds(Rule::kPendingBars)) return false;
  const Busy& busy = busy_[extent.busy];
  if (!busy.waits || operations_[want.operation].age <= busy.demand.age) return false;
  return busy.demand.kind != MessageKind::kYield || busy.demand.mode != Mode::kShared ||
         want.mode != Mode::kShared;
}

void Agent::claim(uint32_t want, Actions& actions) {
  Want& w = wants_[want];
  unlist(want);
  w.asked = false;
  if (w.claimed) return;
  w.claimed = true;
  resume(w.extent, actions);
  Operation& operation = operations_[w.operation];
  if (--operation.unclaimed == 0 && !operation.failed)
    actions.push_back({.kind = ActionKind::kRunnable, .age = operation.age});
}

/// Somebody keeps from the home what was to become quiet: that begins anew when its operation is
/// over.
void Agent::resume(ExtentId extent, Actions& actions) {
  if (at(extent).busy == kNone) return;
  Busy& b = busy(extent);
  const bool yields = b.waits && b.demand.kind == MessageKind::kYield;
  if (!b.stopping || !yields || !inTheWay(extent, b.demand.age, b.demand.mode)) return;
  b.stopping = b.stopped = false;
  actions.push_back({.kind = ActionKind::kGo, .extent = extent, .number = b.demand.number});
  // Asked for ahead only: it is declined.
  demand(Message(b.demand), actions);
}

void Agent::tryClaim(uint32_t want, Actions& actions) {
  const Want& w = wants_[want];
  if (usable(at(w.extent).state(), w.mode) && !barred(w)) claim(want, actions);
}

void Agent::addWant(uint32_t operation, Need need, Actions& actions) {
  for (uint32_t want = at(need.extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    Want& w = wants_[want];
    if (w.operation != operation) continue;
    if (w.mode == need.mode || w.mode == Mode::kOwn) return;
    // The operation reads the extent and is found to write it as well.
    w.mode = Mode::kOwn;
    if (w.claimed && usable(at(w.extent).state(), Mode::kOwn) && !barred(w)) return;
    if (w.claimed) ++operations_[operation].unclaimed;
    w.claimed = w.asked = false;
    list(want);
    tryClaim(want, actions);
    return;
  }
  Operation& op = operations_[operation];
  const uint32_t want = wants_.take({.extent = need.extent,
                                     .operation = operation,
                                     .mode = need.mode,
                                     .next_of_operation = op.wants,
                                     .next_of_extent = at(need.extent).wants});
  op.wants = extents_[need.extent].wants = want;
  ++op.unclaimed;
  list(want);
  if (holds(Rule::kClaimOnArrival)) tryClaim(want, actions);
}

void Agent::begin(Age age, std::span<const Need> needs, Age oldest, Actions& actions) {
  assert(find(age) == kNone);
  seen_.addBelow(oldest);
  seen_.add(age);
  const uint32_t operation = operations_.take({.age = age});
  const Key key{age, operation};
  order_.insert(std::lower_bound(order_.begin(), order_.end(), age, inOrder), key);
  waiting_.insert(std::lower_bound(waiting_.begin(), waiting_.end(), age, inOrder), key);
  for (const Need& need : needs) addWant(operation, need, actions);
  if (needs.empty()) actions.push_back({.kind = ActionKind::kRunnable, .age = age});
  heedAhead(actions);
  settle(actions);
}

/// An extent that was fetched before its operation arrived is claimed by the operation once that is
/// here, and by nobody if the operation does not come.
void Agent::heedAhead(Actions& actions) {
  for (size_t i = 0; i < ahead_.size();) {
    const ExtentId extent = ahead_[i];
    if (!known(busy(extent).ahead)) {
      ++i;
      continue;
    }
    busy(extent).ahead = kNobody;
    ahead_[i] = ahead_.back();
    ahead_.pop_back();
    if (busy(extent).waits) demand(Message(busy(extent).demand), actions);
    calm(extent);
  }
}

void Agent::reach(Age age, Need need, Actions& actions) {
  const uint32_t operation = find(age);
  assert(operation != kNone && operations_[operation].progress == Progress::kWaiting);
  addWant(operation, need, actions);
  settle(actions);
}

bool Agent::submit(Age age) {
  if (!runnable(age)) return false;
  operations_[find(age)].progress = Progress::kSubmitted;
  waiting_.erase(std::lower_bound(waiting_.begin(), waiting_.end(), age, inOrder));
  return true;
}

bool Agent::useAgain(Age age, ExtentId extent, Actions& actions) {
  const uint32_t operation = find(age);
  if (operation == kNone || operations_[operation].progress != Progress::kSubmitted ||
      !needs(operations_[operation], extent))
    return false;
  resume(extent, actions);
  return true;
}

void Agent::complete(Age age, Actions& actions) {
  const uint32_t operation = find(age);
  assert(operation != kNone && operations_[operation].progress == Progress::kSubmitted);
  for (uint32_t want = operations_[operation].wants; want != kNone;
       want = wants_[want].next_of_operation) {
    const Want& w = wants_[want];
    // Only the owner writes, and no two are owners by the same number: the number names what it
    // wrote. Another's bytes can't have that name.
    if (w.mode == Mode::kOwn) extents_[w.extent].content = at(w.extent).number;
  }
  send(MessageKind::kCompleted, {.age = age}, actions);
  end(operation, actions);
}

void Agent::cancel(Age age, Actions& actions) {
  const uint32_t operation = find(age);
  if (operation == kNone || operations_[operation].progress == Progress::kSubmitted) return;
  waiting_.erase(std::lower_bound(waiting_.begin(), waiting_.end(), age, inOrder));
  send(MessageKind::kCompleted, {.age = age}, actions);
  end(operation, actions);
}

void Agent::unneed(ExtentId extent, Actions& actions) {
  for (uint32_t want = at(extent).wants, next; want != kNone; want = next) {
    next = wants_[want].next_of_extent;
    Operation& operation = operations_[wants_[want].operation];
    if (operation.progress == Progress::kSubmitted) continue;
    uint32_t* link = &operation.wants;
    while (*link != want) link = &wants_[*link].next_of_operation;
    *link = wants_[want].next_of_operation;
    takeFromExtent(want);
    if (!wants_[want].claimed && --operation.unclaimed == 0 && !operation.failed)
      actions.push_back({.kind = ActionKind::kRunnable, .age = operation.age});
    wants_.give(want);
    changed_ = true;
  }
  if (at(extent).busy != kNone && busy(extent).waits) demand(Message(busy(extent).demand), actions);
  settle(actions);
}

void Agent::takeFromExtent(uint32_t want) {
  unlist(want);
  uint32_t* link = &extents_[wants_[want].extent].wants;
  while (*link != want) link = &wants_[*link].next_of_extent;
  *link = wants_[want].next_of_extent;
}

void Agent::end(uint32_t operation, Actions& actions) {
  const uint32_t first = operations_[operation].wants;
  const bool given_up = operations_[operation].progress == Progress::kWaiting;
  order_.erase(std::lower_bound(order_.begin(), order_.end(), operations_[operation].age, inOrder));
  for (uint32_t want = first; want != kNone; want = wants_[want].next_of_operation)
    takeFromExtent(want);
  operations_.give(operation);
  changed_ = true;
  for (uint32_t want = first; want != kNone;) {
    const ExtentId extent = wants_[want].extent;
    const uint32_t next = wants_[want].next_of_operation;
    // The home drops what this operation has asked for, and keeps no others' ages beside it.
    if (given_up) forgetAsks(extent);
    wants_.give(want);
    want = next;
    if (at(extent).busy != kNone && busy(extent).waits)
      demand(Message(busy(extent).demand), actions);
  }
  settle(actions);
}

/// Operations that need what is freed can't run; their pager gives them up.
void Agent::fail(ExtentId extent, Actions& actions) {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    Want& w = wants_[want];
    Operation& operation = operations_[w.operation];
    unlist(want);
    if (w.claimed) ++operation.unclaimed;
    w.asked = w.claimed = false;
    if (!operation.failed)
      actions.push_back({.kind = ActionKind::kFailed, .extent = extent, .age = operation.age});
    operation.failed = true;
  }
}

// ---- who is in the way

/// Does an operation here keep the extent from one of that age? For a replica only writers do. An
/// extent fetched ahead is kept for its operation from other hints; an operation that needs it now
/// may have it, since the other may wait for that one.
bool Agent::inTheWay(ExtentId extent, Age age, Mode taken, bool submitted_only) const {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    const Want& w = wants_[want];
    if (taken == Mode::kShared && w.mode == Mode::kShared) continue;
    const Operation& operation = operations_[w.operation];
    if (operation.progress == Progress::kSubmitted) {
      if (holds(Rule::kSubmittedHolds)) return true;
      continue;
    }
    if (submitted_only || !w.claimed) continue;
    if (operation.age <= age ? holds(Rule::kOlderClaimHolds) : !holds(Rule::kYoungerClaimYields))
      return true;
  }
  if (submitted_only || at(extent).busy == kNone) return false;
  const Busy& busy = busy_[at(extent).busy];
  const bool holds_it = holds(Rule::kHintsYield) ? age == kNobody : busy.ahead <= age;
  return holds_it && busy.ahead != kNobody &&
         (taken == Mode::kOwn || busy.ahead_mode == Mode::kOwn);
}

/// Those that are younger lose their claims.
void Agent::wound(ExtentId extent, Age age, Mode taken, Actions& actions) {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    Want& w = wants_[want];
    if (!w.claimed || (taken == Mode::kShared && w.mode == Mode::kShared)) continue;
    w.claimed = false;
    ++operations_[w.operation].unclaimed;
    list(want);
    actions.push_back({.kind = ActionKind::kClaimLost,
                       .extent = extent,
                       .age = operations_[w.operation].age,
                       .to = age});
  }
  if (at(extent).busy == kNone) return;
  Busy& busy = busy_[at(extent).busy];
  if (busy.ahead != kNobody && (taken == Mode::kOwn || busy.ahead_mode == Mode::kOwn)) {
    busy.ahead = kNobody;
    std::erase(ahead_, extent);
    calm(extent);
  }
}

bool Agent::asked(ExtentId extent) const {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    if (wants_[want].asked) return true;
  }
  return false;
}

void Agent::forgetAsks(ExtentId extent) {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    if (!wants_[want].asked) continue;
    wants_[want].asked = false;
    list(want);
  }
}

/// Every operation here that waits for the extent claims it in the step in which it comes, as does
/// the one that it was fetched for even if that is still on its way.
void Agent::arrive(ExtentId extent, Age age, Mode mode, Actions& actions) {
  for (uint32_t want = at(extent).wants; want != kNone; want = wants_[want].next_of_extent) {
    const Want& w = wants_[want];
    if (mode == Mode::kShared && w.mode == Mode::kOwn) continue;
    const Operation& operation = operations_[w.operation];
    if (operation.progress == Progress::kSubmitted || operation.failed) continue;
    if (holds(Rule::kClaimOnArrival) && (holds(Rule::kAllClaimOnArrival) || operation.age == age)) {
      claim(want, actions);
    } else {
      wants_[want].asked = false;
      if (!w.claimed) list(want);
      put_off_ = true;
    }
  }
  if (age == kNobody || known(age) || !holds(Rule::kClaimAhead)) return;
  Busy& b = busy(extent);
  if (b.ahead == kNobody) ahead_.push_back(extent);
  b.ahead = age;
  b.ahead_mode = mode;
}

// ---- the table's steps

void Agent::send(MessageKind kind, const Message& cause, Actions& actions) const {
  Message message = cause;
  message.kind = kind;
  message.from = id_;
  message.to = kHome;
  checkEnds(actions.size());
  actions.push_back({.kind = ActionKind::kSend, .message = message});
}

void Agent::step(ExtentId extent, AgentInput input, const Message& cause, Actions& actions) {
  const AgentCell cell = kAgentTable(at(extent).state(), input);
  if (cell.kind == AgentCell::kIgnored) return;
  if (cell.kind != AgentCell::kGoes) {
    actions.push_back({.kind = ActionKind::kViolation,
                       .extent = extent,
                       .number = cause.number,
                       .message = cause});
    return;
  }
  const uint32_t effects = cell.effects;
  const auto act = [&](ActionKind kind, Mode mode = Mode::kOwn) {
    actions.push_back({.kind = kind, .mode = mode, .extent = extent, .number = cause.number});
  };
  if ((effects & kWait) != 0) {
    Busy& b = busy(extent);
    b.waits = true;
    b.demand = cause;
    return;
  }
  if (cause.number > at(extent).number) extents_[extent].number = cause.number;
  const bool had = input == AgentInput::kRelease || input == AgentInput::kReleaseAsked;
  if (at(extent).lent != 0 && (had || cell.next != AgentState::kOwnedShared)) {
    extents_[extent].lent = 0;
    act(ActionKind::kLendOver);
  }
  if ((effects & kUnmapIt) != 0) act(ActionKind::kUnmap);
  if ((effects & kFetchBytes) != 0) {
    Busy& b = busy(extent);
    b.lands = true;
    b.coming = cause.content;
    b.fetched_for = cause.served;
    actions.push_back({.kind = ActionKind::kFetch,
                       .mode = cause.mode,
                       .peer = cause.from,
                       .extent = extent,
                       .number = cause.number,
                       .content = at(extent).content});
    extents_[extent].content = 0;
  }
  if ((effects & kClearFrame) != 0) {
    act(ActionKind::kClear);
    extents_[extent].content = cause.number;
  }
  if ((effects & kMapIt) != 0) act(ActionKind::kMap);
  if ((effects & kMapReadOnly) != 0) act(ActionKind::kMap, Mode::kShared);
  if ((effects & kFreeFrame) != 0) {
    act(ActionKind::kFree);
    extents_[extent].content = 0;
  }
  if (cell.next != at(extent).state()) {
    if (at(extent).state() == AgentState::kRetained) unlink(extent);
    extents_[extent].state_ = static_cast<uint64_t>(cell.next);
    if (cell.next == AgentState::kRetained) link(extent);
    changed_ = true;
  }
  if (at(extent).busy != kNone) {
    Busy& b = busy(extent);
    if ((effects & kEndWait) != 0 && b.waits) {
      b.waits = false;
      changed_ = true;
    }
    if (cell.next != AgentState::kLandingOwn && cell.next != AgentState::kLandingShared)
      b.lands = false;
    if (b.stopping && !b.waits) {
      if (cell.next == AgentState::kOwned) act(ActionKind::kGo);
      b.stopping = b.stopped = false;
    }
    calm(extent);
  }

  if ((effects & kSendGet) != 0) send(MessageKind::kGet, cause, actions);
  if ((effects & kSendReady) != 0) {
    if (cause.mode == Mode::kShared) {
      extents_[extent].lent = 1;
      act(ActionKind::kLend, Mode::kShared);
    }
    Message ready = cause;
    ready.kind = MessageKind::kReady;
    ready.from = id_;
    ready.to = cause.taker;
    ready.content = at(extent).content;
    actions.push_back({.kind = ActionKind::kSend, .message = ready});
  }
  if (input == AgentInput::kYieldOwn && !holds(Rule::kDoneBeforeRelease))
    step(extent, AgentInput::kRelease, cause, actions);
  if ((effects & kSendDone) != 0) send(MessageKind::kDone, cause, actions);
  if ((effects & kSendDeclined) != 0) send(MessageKind::kDeclined, cause, actions);
  if ((effects & kSendAcked) != 0) send(MessageKind::kAcked, cause, actions);
  if ((effects & kSendForgotten) != 0) send(MessageKind::kForgotten, cause, actions);
  if ((effects & kArrive) != 0) {
    const bool own = at(extent).state() == AgentState::kOwned;
    arrive(extent, cause.served, own ? Mode::kOwn : Mode::kShared, actions);
  }
  if ((effects & kFail) != 0) fail(extent, actions);
}

/// Yield, Invalidate, Forget: now, if nobody is in the way; else when nobody is any more.
void Agent::demand(const Message& message, Actions& actions) {
  const ExtentId extent = message.extent;
  const bool yield = message.kind == MessageKind::kYield;
  const bool forget = message.kind == MessageKind::kForget;
  const Mode taken = yield ? message.mode : Mode::kOwn;
  const Age age = forget ? 0 : message.age;
  const bool mapped = usable(at(extent).state(), Mode::kShared);
  bool blocked =
      mapped && (forget ? underSubmitted(extent, Mode::kOwn) : inTheWay(extent, age, taken));
  if (message.kind == MessageKind::kInvalidate && !holds(Rule::kInvalidateHeedsAge)) {
    blocked = mapped && underSubmitted(extent, Mode::kOwn);
  }
  if (!blocked && !quieted(extent)) {
    Busy& b = busy(extent);
    if (!b.stopping)
      actions.push_back({.kind = ActionKind::kStop, .extent = extent, .number = at(extent).number});
    b.stopping = true;
    step(extent,
         yield    ? AgentInput::kYieldWait
         : forget ? AgentInput::kForgetWait
                  : AgentInput::kInvalidateWait,
         message, actions);
    return;
  }
  if (blocked) {
    // Ahead only, and claimed: not worth waiting for. A submitted operation will be over.
    if (yield && isAhead(message) && holds(Rule::kHintDeclined) && !underSubmitted(extent, taken)) {
      step(extent, AgentInput::kDecline, message, actions);
      return;
    }
    step(extent,
         yield    ? AgentInput::kYieldWait
         : forget ? AgentInput::kForgetWait
                  : AgentInput::kInvalidateWait,
         message, actions);
    return;
  }
  if (mapped) wound(extent, age, taken, actions);
  if (yield) {
    step(extent, message.mode == Mode::kShared ? AgentInput::kYieldShared : AgentInput::kYieldOwn,
         message, actions);
  } else if (forget) {
    step(extent, AgentInput::kForget, message, actions);
  } else {
    step(extent, asked(extent) ? AgentInput::kInvalidateAsked : AgentInput::kInvalidate, message,
         actions);
  }
}

void Agent::ready(const Message& message, Actions& actions) {
  const ExtentId extent = message.extent;
  const Extent& e = at(extent);
  const bool own = message.mode == Mode::kOwn;
  const bool same =
      e.content != 0 && (e.content == message.content || !holds(Rule::kRetainedEqual));
  step(extent,
       same ? (own ? AgentInput::kHaveOwn : AgentInput::kHaveShared)
            : (own ? AgentInput::kReadyOwn : AgentInput::kReadyShared),
       message, actions);
}

void Agent::landed(ExtentId extent, Number number, Actions& actions) {
  const Extent& e = at(extent);
  const bool own = e.state() == AgentState::kLandingOwn;
  if ((!own && e.state() != AgentState::kLandingShared) || e.number != number) return;
  const Busy& b = busy(extent);
  const Message cause{.mode = own ? Mode::kOwn : Mode::kShared,
                      .extent = extent,
                      .number = number,
                      .served = b.fetched_for};
  extents_[extent].content = b.coming;
  step(extent, AgentInput::kLanded, cause, actions);
  settle(actions);
}

/// True if no operation that the agent is not told of can be using the extent. Untold operations
/// use only extents that are mapped for writing.
bool Agent::quieted(ExtentId extent) const {
  const Extent& e = at(extent);
  if (!untold_ || e.state() != AgentState::kOwned || !holds(Rule::kUntoldHolds)) return true;
  return e.busy != kNone && busy_[e.busy].stopped;
}

void Agent::quiet(ExtentId extent, bool written, Actions& actions) {
  Extent& e = extents_[extent];
  if (e.busy == kNone || !busy_[e.busy].stopping || busy_[e.busy].stopped) return;
  busy_[e.busy].stopped = true;
  if (written) e.content = e.number;
  demand(Message(busy_[e.busy].demand), actions);
  settle(actions);
}

void Agent::shed(uint64_t keep, Actions& actions) {
  while (retained_ > keep)
    step(first_retained_, AgentInput::kDrop, {.extent = first_retained_}, actions);
  settle(actions);
}

void Agent::receive(const Message& message, Actions& actions) {
  if (message.to != id_) {
    actions.push_back({.kind = ActionKind::kViolation, .message = message});
    return;
  }
  if (message.kind == MessageKind::kOver) {
    if (message.served != kNobody) seen_.addBelow(message.served);
    seen_.add(message.age);
    heedAhead(actions);
    settle(actions);
    return;
  }
  if (message.extent >= extents_.size()) resize(message.extent + 1);
  const ExtentId extent = message.extent;
  const Extent& e = at(extent);
  if ((message.kind == MessageKind::kReady && message.from >= kMostAgents) ||
      (message.kind == MessageKind::kYield && message.taker >= kMostAgents)) {
    actions.push_back({.kind = ActionKind::kViolation, .extent = extent, .message = message});
    return;
  }
  // Late, or a duplicate. A number that waits here is known as well.
  const bool waits = e.busy != kNone && busy(extent).waits;
  const bool known_number =
      message.number <= e.number || (waits && message.number <= busy(extent).demand.number);
  switch (message.kind) {
    case MessageKind::kUrge: {
      if (!waits || busy(extent).demand.number != message.number ||
          message.age >= busy(extent).demand.age)
        return;
      Message& demanded = busy(extent).demand;
      const bool ahead = isAhead(demanded) && demanded.kind == MessageKind::kYield;
      demanded.age = message.age;
      // Somebody needs what was asked for ahead for another: that one is not waited for.
      if (ahead && inTheWay(extent, message.age, demanded.mode) && holds(Rule::kHintsYield)) {
        step(extent, AgentInput::kDecline, Message(demanded), actions);
      } else {
        demand(Message(demanded), actions);
      }
      break;
    }
    case MessageKind::kRelease: {
      if (e.number != message.number && holds(Rule::kReleaseMatches)) return;
      step(extent, asked(extent) ? AgentInput::kReleaseAsked : AgentInput::kRelease, message,
           actions);
      break;
    }
    default: {
      if (known_number && holds(Rule::kOldNumberIgnored)) return;
      switch (message.kind) {
        case MessageKind::kYield:
        case MessageKind::kInvalidate:
        case MessageKind::kForget:
          demand(message, actions);
          break;
        case MessageKind::kReady:
          ready(message, actions);
          break;
        case MessageKind::kGrant:
          step(extent, AgentInput::kGrant, message, actions);
          break;
        case MessageKind::kFirst:
          step(extent, AgentInput::kFirst, message, actions);
          break;
        default:
          actions.push_back({.kind = ActionKind::kViolation, .extent = extent, .message = message});
      }
    }
  }
  settle(actions);
}

// ---- what operations lack

void Agent::settle(Actions& actions) {
  if (put_off_) {
    put_off_ = false;
    return;
  }
  while (changed_) {
    changed_ = false;
    pump(actions);
  }
}

/// Asks for what waiting operations lack, the oldest first.
void Agent::pump(Actions& actions) {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const uint32_t index = waiting_[i].operation;
    if (operations_[index].failed) continue;
    for (uint32_t want = operations_[index].open_wants, next; want != kNone; want = next) {
      next = wants_[want].open_next;
      const ExtentId extent = wants_[want].extent;
      const AgentState state = at(extent).state();
      if (usable(state, wants_[want].mode)) {
        tryClaim(want, actions);
        continue;
      }
      if (state == AgentState::kLandingOwn || state == AgentState::kLandingShared) continue;
      unlist(want);
      wants_[want].asked = true;
      step(extent, AgentInput::kAsk,
           {.mode = wants_[want].mode,
            .extent = extent,
            .number = at(extent).number,
            .age = operations_[index].age},
           actions);
    }
  }
}

}  // namespace olpager::directory
