#include "interpose/unified/code_states.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "base/result.h"
#include "forwarding/wire/copies.h"
#include "interpose/forward/call.h"
#include "interpose/forward/session.h"

namespace olpager::unified {

using forward::Call;
using forward::CodeState;
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

// Calls to one executor that are under way together.
class Together {
 public:
  Together(Session& session, unsigned executor) : session_(session), executor_(executor) {}
  Call& add(Operation operation, uint64_t context) {
    Call& call = calls_.emplace_back(operation, &session_);
    call.only(executor_);
    call.inContext(context);
    call.ofOurOwn();
    return call;
  }
  /// Makes all; `each` gets each by its number, in their order. False: one has failed.
  template <typename Each>
  bool make(Each each) {
    size_t begun = 0;
    while (begun < calls_.size() && calls_[begun].begin(begun + 1 == calls_.size()) == CUDA_SUCCESS)
      ++begun;
    bool good = begun == calls_.size();
    for (size_t i = 0; i < begun; ++i) {
      const CUresult result = calls_[i].finish();
      if (result != CUDA_SUCCESS || !calls_[i].answered() || !each(i, calls_[i])) good = false;
    }
    return good;
  }

 private:
  Session& session_;
  const unsigned executor_;
  std::deque<Call> calls_;
};

// The bytes of variables that one call brings. A larger one is brought by itself.
constexpr uint64_t kTogether = 256 << 10;

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

void CodeStates::use(Session& session, const forward::CodeThere& code, bool again) {
  One& one = at(code);
  if (!std::exchange(one.placed, true)) place(session, one);
  one.used = true;
  one.again |= again;
}

// Nobody waits for the answers: a driver may have to wait for a kernel before it loads code.
void CodeStates::place(Session& session, One& one) {
  const CodeState& state = *one.code.state;
  for (unsigned executor = 0; executor < session.executors().size(); ++executor) {
    Call call(Operation::kVariable, &session);
    call.only(executor);
    call.inContext(one.code.context);
    call.ofOurOwn();
    call.mayWait();
    call.value(state.kind);
    call.value(state.owner);
    call.string(state.names.empty() ? "" : state.names.front().c_str());
    (void)call.begin(true);
  }
}

void CodeStates::forget(uint64_t owner) {
  std::erase_if(all_, [owner](const auto& one) { return one.first.first == owner; });
}

void CodeStates::contextGone(uint64_t context) {
  std::erase_if(all_, [context](const auto& one) { return one.second.code.context == context; });
}

// Asks each executor where it has them.
bool CodeStates::locate(Session& session, const std::vector<One*>& ones) {
  const auto executors = static_cast<unsigned>(session.executors().size());
  std::vector<std::pair<One*, Variable*>> asked;
  for (One* const one : ones) {
    if (std::exchange(one->located, true)) continue;
    one->placed = true;
    for (Variable& variable : one->variables)
      if (variable.at.empty()) asked.emplace_back(one, &variable);
  }
  bool good = true;
  for (unsigned executor = 0; executor < executors && !asked.empty(); ++executor) {
    Together calls(session, executor);
    for (const auto& [one, variable] : asked) {
      Call& call = calls.add(Operation::kVariable, one->code.context);
      call.value(one->code.state->kind);
      call.value(one->code.state->owner);
      call.string(variable->name.c_str());
    }
    good &= calls.make([&](size_t number, Call& call) {
      Variable& variable = *asked[number].second;
      const auto address = call.reply().value<uint64_t>();
      const auto bytes = call.reply().value<uint64_t>();
      const auto memory = call.reply().value<forward::VariableMemory>();
      if ((executor != 0 && variable.bytes != bytes) || bytes > forward::kMostBytes ||
          memory != forward::VariableMemory::kDevice)
        return false;
      variable.at.push_back(address);
      variable.bytes = bytes;
      return true;
    });
  }
  for (const auto& [one, variable] : asked) {
    if (good) {
      compare(session, *variable);
      continue;
    }
    variable->at.clear();
    one->located = false;
  }
  for (One* const one : ones)
    if (one->located) arrange(*one);
  return good;
}

void CodeStates::compare(const Session& session, const Variable& variable) {
  for (size_t i = 1; i < variable.at.size(); ++i) {
    if (variable.at[i] == variable.at.front()) continue;
    base::warnOnce("unified variables",
                   "unified view: variable %s is at 0x%llx of gpunode %s and at 0x%llx of gpunode "
                   "%s (drivers of two versions?): where a kernel writes such an address or a "
                   "function's into memory, kernels at another GPU go wrong (name one gpunode)",
                   variable.name.c_str(), static_cast<unsigned long long>(variable.at.front()),
                   session.executors().front()->name().c_str(),
                   static_cast<unsigned long long>(variable.at[i]),
                   session.executors()[i]->name().c_str());
    return;
  }
}

void CodeStates::arrange(One& one) {
  size_t place = 0;
  for (Variable& variable : one.variables) {
    variable.place = place;
    place += variable.bytes;
  }
  one.bytes = place;
}

std::shared_ptr<const forward::SharedVariable> CodeStates::share(Session& session,
                                                                 const forward::CodeThere& code,
                                                                 const std::string& name) {
  One& one = at(code);
  const auto find = [&] {
    return std::find_if(one.variables.begin(), one.variables.end(),
                        [&](const Variable& variable) { return variable.name == name; });
  };
  const bool is_new = find() == one.variables.end();
  if (is_new) {
    one.variables.push_back({.name = name});
    one.located = false;
  }
  if (!locate(session, {&one})) {
    if (is_new) one.variables.erase(find());
    return nullptr;
  }
  // Known values of the others have other places now. The active executor has the newest.
  if (is_new) {
    one.has.clear();
    one.brought.clear();
    one.used = true;
  }
  const auto variable = find();
  auto shared = std::make_shared<forward::SharedVariable>();
  shared->code = code;
  shared->address = variable->at.front();
  shared->bytes = variable->bytes;
  shared->at = variable->at;
  return shared;
}

bool CodeStates::read(Session& session, const std::vector<One*>& ones, unsigned executor) {
  Together calls(session, executor);
  // The variables of one call: of one context, as many as go together.
  std::vector<std::vector<std::pair<One*, const Variable*>>> asked;
  uint64_t bytes = 0;
  for (One* const one : ones) {
    one->has[executor].resize(one->bytes);
    for (const Variable& variable : one->variables) {
      bytes += variable.bytes;
      if (asked.empty() || bytes > kTogether ||
          asked.back().front().first->code.context != one->code.context) {
        asked.emplace_back();
        bytes = variable.bytes;
      }
      asked.back().emplace_back(one, &variable);
    }
  }
  for (const auto& some : asked) {
    const uint64_t context = some.front().first->code.context;
    if (some.size() == 1) {
      Call& call = calls.add(Operation::kCopyOut, context);
      call.value(headOf(some.front().second->at[executor], some.front().second->bytes));
      call.mayWait();
      continue;
    }
    Call& call = calls.add(Operation::kVariableBytes, context);
    call.value(static_cast<uint32_t>(some.size()));
    for (const auto& [one, variable] : some) {
      call.value(variable->at[executor]);
      call.value(variable->bytes);
    }
    call.mayWait();
  }
  return calls.make([&](size_t number, Call& call) {
    for (const auto& [one, variable] : asked[number]) {
      const auto value = call.reply().raw(variable->bytes);
      if (value.size() != variable->bytes) return false;
      const auto its = one->has[executor].begin() + static_cast<ptrdiff_t>(variable->place);
      if (std::equal(value.begin(), value.end(), its)) continue;
      std::copy(value.begin(), value.end(), its);
      one->brought.clear();
    }
    return true;
  });
}

// The newest values, as that executor is to have them.
CodeStates::Values CodeStates::valuesFor(const One& one, unsigned executor) {
  Values values = one.has.at(one.newest);
  if (executor == one.newest) return values;
  const auto ofVariable = [&](uint64_t address) {
    return std::find_if(one.variables.begin(), one.variables.end(), [&](const Variable& variable) {
      return address - variable.at[one.newest] < variable.bytes;
    });
  };
  uint64_t lowest = UINT64_MAX, highest = 0;
  for (const Variable& variable : one.variables) {
    lowest = std::min(lowest, variable.at[one.newest]);
    highest = std::max(highest, variable.at[one.newest] + variable.bytes);
  }
  for (const Variable& variable : one.variables) {
    for (size_t offset = 0; offset + sizeof(uint64_t) <= variable.bytes;
         offset += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, values.data() + variable.place + offset, sizeof word);
      if (word < lowest || word >= highest) continue;  // most are
      const auto found = ofVariable(word);
      if (found == one.variables.end()) continue;
      word = found->at[executor] + (word - found->at[one.newest]);
      std::memcpy(values.data() + variable.place + offset, &word, sizeof word);
    }
  }
  return values;
}

bool CodeStates::write(Session& session, const std::vector<One*>& ones, unsigned executor) {
  Together calls(session, executor);
  std::deque<Values> kept;  // until the calls have been made
  for (One* const one : ones) {
    if (!one->brought.insert(executor).second) continue;
    const Values& values = kept.emplace_back(valuesFor(*one, executor));
    Values& has = one->has[executor];
    for (const Variable& variable : one->variables) {
      const auto value = std::span(values).subspan(variable.place, variable.bytes);
      const auto its = std::span(has).subspan(has.empty() ? 0 : variable.place,
                                              has.empty() ? 0 : variable.bytes);
      if (std::equal(value.begin(), value.end(), its.begin(), its.end())) continue;
      Call& call = calls.add(Operation::kCopyIn, one->code.context);
      call.value(headOf(variable.at[executor], variable.bytes));
      call.bulk(value);
      call.mayWait();
    }
    has = values;
  }
  if (calls.make([](size_t, Call&) { return true; })) return true;
  for (One* const one : ones) one->brought.erase(executor);
  return false;
}

Status CodeStates::bring(Session& session, unsigned from, unsigned to) {
  std::vector<One*> used, unknown, known;
  for (auto& [where, one] : all_) {
    if (one.used) used.push_back(&one);
    if (one.used || !one.has.empty()) known.push_back(&one);
  }
  for (One* const one : known)
    if (!one->has.contains(to)) unknown.push_back(one);
  if (known.empty()) return {};
  const char* what = "located";
  const auto begun = std::chrono::steady_clock::now();
  bool good = locate(session, known);
  if (good) what = "read", good = read(session, used, from);
  const auto was_read = std::chrono::steady_clock::now();
  if (good && !read(session, unknown, to)) {
    for (One* const one : unknown) one->has.erase(to);  // it gets all
  }
  for (One* const one : used) {
    one->newest = from;
    one->brought.insert(from);
    one->used = one->again;
  }
  if (good) what = "written", good = write(session, known, to);
  const auto microseconds = [](auto time) {
    return static_cast<long long>(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  };
  base::logDebug("unified view: variables of %zu modules and libraries: %lld us to read, %lld more",
                 used.size(), microseconds(was_read - begun),
                 microseconds(std::chrono::steady_clock::now() - was_read));
  if (good) return {};
  return Error{base::format("code whose variables can't be {}", what)};
}

}  // namespace olpager::unified
