#include "interpose/unified/code_states.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/log.h"
#include "forwarding/wire/copies.h"
#include "interpose/forward/call.h"
#include "interpose/forward/session.h"

namespace olpager::unified {

using forward::Call;
using forward::CopyHead;
using forward::Operation;
using forward::Session;

namespace {

CopyHead headOf(uint64_t address, uint64_t bytes) {
  CopyHead head;
  head.device = address;
  head.bytes = bytes;
  return head;
}

// Calls to one executor, in one context, that are under way together.
class Together {
 public:
  Together(Session& session, unsigned executor, uint64_t context)
      : session_(session), executor_(executor), context_(context) {}
  Call& add(Operation operation) {
    Call& call = calls_.emplace_back(operation, &session_);
    call.only(executor_);
    call.inContext(context_);
    call.ofOurOwn();
    return call;
  }
  /// The last one that was added goes.
  bool send() { return calls_.back().begin(true) == CUDA_SUCCESS; }
  /// Waits for all; `each` gets each by its number, in their order. False: one has failed.
  template <typename Each>
  bool finish(Each each) {
    bool good = true;
    size_t number = 0;
    for (Call& call : calls_) {
      const CUresult result = call.finish();
      if (result != CUDA_SUCCESS || !call.answered() || !each(number, call)) good = false;
      ++number;
    }
    return good;
  }

 private:
  Session& session_;
  const unsigned executor_;
  const uint64_t context_;
  std::deque<Call> calls_;
};

}  // namespace

void CodeStates::use(const std::shared_ptr<const forward::CodeState>& state, uint64_t context) {
  One& one = all_[state->owner];
  if (one.state != state) one = {.state = state, .context = context};
  one.used = true;
}

// Where an executor has them; asked once.
bool CodeStates::find(Session& session, One& one, unsigned executor) {
  if (one.variables.empty()) one.variables.resize(one.state->names.size());
  if (one.variables.front().addresses.contains(executor)) return true;
  Together calls(session, executor, one.context);
  for (const std::string& name : one.state->names) {
    Call& call = calls.add(Operation::kVariable);
    call.value(one.state->kind);
    call.value(one.state->owner);
    call.string(name.c_str());
    if (!calls.send()) return false;
  }
  const bool good = calls.finish([&](size_t number, Call& call) {
    Variable& variable = one.variables[number];
    variable.addresses[executor] = call.reply().value<uint64_t>();
    const auto bytes = call.reply().value<uint64_t>();
    const auto memory = call.reply().value<forward::VariableMemory>();
    if (variable.bytes != 0 && variable.bytes != bytes) return false;
    variable.bytes = bytes;
    return memory == forward::VariableMemory::kDevice && bytes <= forward::kMostBytes;
  });
  // All of them, or none: the first one's tells of all.
  if (!good) one.variables.front().addresses.erase(executor);
  return good;
}

bool CodeStates::read(Session& session, One& one, unsigned executor) {
  Together calls(session, executor, one.context);
  for (const Variable& variable : one.variables) {
    Call& call = calls.add(Operation::kCopyOut);
    call.value(headOf(variable.addresses.at(executor), variable.bytes));
    call.mayWait();
    if (!calls.send()) return false;
  }
  bool changed = one.version == 0;
  const bool good = calls.finish([&](size_t number, Call& call) {
    Variable& variable = one.variables[number];
    const auto bytes = call.reply().raw(variable.bytes);
    if (bytes.size() != variable.bytes) return false;
    if (!std::equal(bytes.begin(), bytes.end(), variable.value.begin(), variable.value.end())) {
      variable.value.assign(bytes.begin(), bytes.end());
      changed = true;
    }
    return true;
  });
  if (!good) return false;
  if (changed) ++one.version;
  one.used = false;
  one.has[executor] = one.version;
  return true;
}

bool CodeStates::write(Session& session, const One& one, unsigned executor) {
  Together calls(session, executor, one.context);
  for (const Variable& variable : one.variables) {
    Call& call = calls.add(Operation::kCopyIn);
    call.value(headOf(variable.addresses.at(executor), variable.bytes));
    call.bulk(variable.value);
    call.mayWait();
    if (!calls.send()) return false;
  }
  return calls.finish([](size_t, Call&) { return true; });
}

bool CodeStates::bring(Session& session, unsigned from, unsigned to) {
  for (auto& [owner, one] : all_) {
    const bool there = find(session, one, from) && find(session, one, to) &&
                       (!one.used || read(session, one, from));
    if (there && one.has[to] == one.version) continue;
    if (there && write(session, one, to)) {
      one.has[to] = one.version;
      continue;
    }
    base::warnOnce("unified code",
                   "unified view: variables of a module can't be brought from one GPU to another: "
                   "all stays at gpunode %s",
                   session.executors()[from]->gpunode().c_str());
    return false;
  }
  return true;
}

}  // namespace olpager::unified
