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

CodeStates::One& CodeStates::at(const forward::CodeThere& code) {
  const bool module = code.state->kind == forward::VariableKind::kModule;
  const auto [found, made] = all_.try_emplace({code.state->owner, module ? 0 : code.context});
  One& one = found->second;
  if (!made) return one;
  one.code = code;
  for (const std::string& name : code.state->names) one.variables.push_back({.name = name});
  return one;
}

void CodeStates::use(const forward::CodeThere& code, bool again) {
  One& one = at(code);
  one.used = true;
  one.again |= again;
}

void CodeStates::forget(uint64_t owner) {
  std::erase_if(all_, [owner](const auto& one) { return one.first.first == owner; });
}

void CodeStates::contextGone(uint64_t context) {
  std::erase_if(all_, [context](const auto& one) { return one.second.code.context == context; });
}

// Where an executor has them; each is asked for once.
bool CodeStates::find(Session& session, One& one, unsigned executor) {
  std::vector<Variable*> asked;
  Together calls(session, executor, one.code.context);
  for (Variable& variable : one.variables) {
    if (variable.addresses.contains(executor)) continue;
    Call& call = calls.add(Operation::kVariable);
    call.value(one.code.state->kind);
    call.value(one.code.state->owner);
    call.string(variable.name.c_str());
    if (!calls.send()) return false;
    asked.push_back(&variable);
  }
  return calls.finish([&](size_t number, Call& call) {
    Variable& variable = *asked[number];
    const auto address = call.reply().value<uint64_t>();
    const auto bytes = call.reply().value<uint64_t>();
    const auto memory = call.reply().value<forward::VariableMemory>();
    const bool alike = variable.addresses.empty() || variable.bytes == bytes;
    if (!alike || memory != forward::VariableMemory::kDevice || bytes > forward::kMostBytes)
      return false;
    variable.addresses[executor] = address;
    variable.bytes = bytes;
    return true;
  });
}

std::shared_ptr<const forward::SharedVariable> CodeStates::share(Session& session,
                                                                 const forward::CodeThere& code,
                                                                 const std::string& name) {
  One& one = at(code);
  const auto isNamed = [&](const Variable& variable) { return variable.name == name; };
  auto variable = std::find_if(one.variables.begin(), one.variables.end(), isNamed);
  const bool is_new = variable == one.variables.end();
  if (is_new) variable = one.variables.insert(variable, {.name = name});
  auto shared = std::make_shared<forward::SharedVariable>();
  shared->code = code;
  for (unsigned executor = 0; executor < session.executors().size(); ++executor) {
    if (!find(session, one, executor)) {
      if (is_new) one.variables.erase(variable);
      return nullptr;
    }
    shared->at.push_back(variable->addresses.at(executor));
  }
  // What executors have been given of the others says nothing of this one.
  if (is_new) ++one.version, one.used = true;
  shared->address = shared->at.front();
  shared->bytes = variable->bytes;
  return shared;
}

bool CodeStates::read(Session& session, One& one, unsigned executor) {
  Together calls(session, executor, one.code.context);
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
  one.used = one.again;
  one.has[executor] = one.version;
  return true;
}

bool CodeStates::write(Session& session, const One& one, unsigned executor) {
  Together calls(session, executor, one.code.context);
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
  for (auto& [where, one] : all_) {
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
