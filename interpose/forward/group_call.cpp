#include "interpose/forward/group_call.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "forwarding/tally.h"
#include "interpose/forward/allocation_book.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/session.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/threads.h"

namespace olpager::forward {
namespace {

CallHead& headOf(std::vector<std::byte>& record) {
  return *reinterpret_cast<CallHead*>(record.data());
}

// The most bytes of a call that is kept: a copy of it is made.
constexpr size_t kMostKeptBulk = 64 << 10;

// The executors for operations that have no function of their own. Operations not named here ask,
// or are in a stream.
Goes whereOperationGoes(Operation operation) {
  switch (operation) {
    case Operation::kLaunch:
    case Operation::kCopyIn:
    case Operation::kCopyOut:
    case Operation::kCopyDevice:
    case Operation::kCopyPeer:
      return Goes::kOperates;
    case Operation::kContextCreate:
    case Operation::kPrimaryRetain:
    case Operation::kHostAlloc:
    case Operation::kHostFree:
    case Operation::kNameKernel:
    case Operation::kGraphKernelNode:
    case Operation::kGraphHostNode:
    case Operation::kGraphMemcpyNode:
    case Operation::kGraphBatchNode:
    case Operation::kGraphNodeParameters:  // its answer names handles
    case Operation::kGraphKernelNodeAttribute:
      return Goes::kAll;
    case Operation::kLinkCreate:
    case Operation::kLinkAdd:
    case Operation::kLinkComplete:
    case Operation::kLinkDestroy:
    case Operation::kLogsListen:
    case Operation::kLogsDump:
      return Goes::kFirst;
    case Operation::kGreenContext:
    case Operation::kGreenDestroy:
    case Operation::kVariable:
    case Operation::kManagedBytes:
    case Operation::kManagedGone:
    case Operation::kLaunchOnDevices:
    case Operation::kUserObjectCreate:
    case Operation::kGraphAllocNode:
    case Operation::kGraphConditionalNode:
    case Operation::kAllocateAt:
    case Operation::kExportMemory:
    case Operation::kImportMemory:
      return Goes::kBound;
    default:
      return Goes::kActive;
  }
}

bool launchesGraph(uint16_t function) {
  return function == static_cast<uint16_t>(api::Symbol::kCuGraphLaunch) ||
         function == static_cast<uint16_t>(api::Symbol::kCuGraphLaunch_ptsz);
}

// True for launches of a kernel, or of a graph of them.
bool launches(uint16_t function) {
  return function == static_cast<uint16_t>(Operation::kLaunch) ||
         function == static_cast<uint16_t>(Operation::kLaunchOnDevices) || launchesGraph(function);
}

// The cause that binds the program, as it is told.
std::string whatBinds(uint16_t function) {
  switch (static_cast<Operation>(function)) {
    case Operation::kVariable:
      return "a variable that is managed, or whose code can't be read";
    case Operation::kGreenContext:
    case Operation::kGreenDestroy:
      return "a green context";
    case Operation::kUserObjectCreate:
      return "a user object";
    case Operation::kGraphAllocNode:
      return "memory that a graph allocates";
    case Operation::kGraphConditionalNode:
      return "a conditional node of a graph";
    case Operation::kLaunchOnDevices:
      return "cuLaunchCooperativeKernelMultiDevice";
    default:
      return functionName(function);
  }
}

}  // namespace

Goes whereGoes(uint16_t function) {
  return function < api::kSymbolCount ? whereFunctionGoes(static_cast<api::Symbol>(function))
                                      : whereOperationGoes(static_cast<Operation>(function));
}

GroupCall::GroupCall(Session& session, std::vector<std::byte>& record)
    : session_(session), group_(*session.group()), goes_(whereGoes(headOf(record).function)) {
  assert(record.size() == sizeof(CallHead));
  if (!mayName(goes_)) return;
  headOf(record).flags |= kAged;
  record.resize(record.size() + sizeof(Aged));
}

bool GroupCall::uses(uint64_t address, uint64_t bytes) {
  const Description& range = session_.executor().description();
  if (address - range.placed >= range.placed_bytes) {  // not in the group's memory
    if (auto variable = group_.code().variableAt(address); variable != nullptr)
      usesVariable(std::move(variable), address);
    return true;
  }
  if (!session_.parts().book->findKnown(address)) return false;
  named_.push_back({address, bytes});
  return true;
}

void GroupCall::usesAddresses(const void* words, uint64_t bytes) {
  const Description& range = session_.executor().description();
  const auto* const at = static_cast<const std::byte*>(words);
  for (uint64_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += 4) {
    uint64_t word = 0;
    std::memcpy(&word, at + offset, sizeof word);
    if (word - range.placed < range.placed_bytes) {
      named_.push_back({word, 0});
    } else if (auto variable = group_.code().variableAt(word); variable != nullptr) {
      usesVariable(std::move(variable), word);
    }
  }
}

void GroupCall::usesVariable(std::shared_ptr<const SharedVariable> variable, uint64_t address) {
  if (!group_.bound()) code_.push_back(variable->code);
  addresses_.add(std::move(variable), address);
}

void GroupCall::runs(uint64_t function, uint64_t context) {
  if (group_.bound()) return;
  if (auto state = group_.code().stateOf(function); state != nullptr)
    code_.push_back({std::move(state), context});
}

bool GroupCall::isManaged(std::span<const std::byte> bulk) const {
  const Description& range = session_.executor().description();
  const auto begin = reinterpret_cast<uint64_t>(bulk.data());
  return !bulk.empty() && begin - range.placed < range.placed_bytes &&
         group_.managedAt(begin).has_value();
}

// An address that goes into memory is nobody's to translate when a kernel finds it there.
void GroupCall::bindWhereNeeded(std::span<const std::byte> bulk) {
  if (group_.bound() || only_) return;
  if (mayOperate(goes_) && group_.code().names(bulk.data(), bulk.size()))
    return group_.bind("the address of a variable, which the program copies into memory,");
  for (const CodeThere& one : code_) {
    if (!one.state->readable) return group_.bind("code whose variables can't be told");
  }
}

Executor& GroupCall::executor(unsigned number) const { return *session_.executors()[number]; }

// A call about a stream that captures becomes part of a graph, which all executors have.
Goes GroupCall::whereNow() const {
  const bool in_stream = stream_ && (goes_ == Goes::kActive || goes_ == Goes::kOperates);
  if (!in_stream || !capturing()) return goes_;
  return joins_ || captures(*stream_, per_thread_) ? Goes::kAll : goes_;
}

// A record that is right for any executor: what it says of pinned memory holds at each of them, and
// what they get of that is there when all has moved (Executors). Calls about memory of graphs, and
// about bytes that come unasked to this process, go to the active one while the call is made.
bool GroupCall::mayBeKept(uint16_t function, std::span<const std::byte> bulk) const {
  if (!posted_ || only_ || at_ || capturing() || bulk.size() > kMostKeptBulk) return false;
  if (function < api::kSymbolCount)
    return goes_ != Goes::kFirst && goes_ != Goes::kBound && !launchesGraph(function);
  switch (static_cast<Operation>(function)) {
    case Operation::kLaunch:
    case Operation::kCopyDevice:
    case Operation::kGate:
      return true;
    case Operation::kCopyIn:
      return !bulk.empty();
    default:
      return false;
  }
}

void GroupCall::keep(Group::Turn& turn, std::vector<std::byte>& record,
                     std::span<const std::byte> bulk) {
  auto kept = std::make_unique<KeptCall>();
  headOf(record).thread = thisThread();
  kept->operates = mayOperate(goes_);
  kept->launches = launches(headOf(record).function);
  kept->again = kept->everywhere = goes_ == Goes::kAll;
  kept->record = std::move(record);
  kept->bulk.assign(bulk.begin(), bulk.end());
  kept->named = std::move(named_);
  kept->code = std::move(code_);
  kept->addresses = std::move(addresses_);
  turn.keep(std::move(kept));
}

// `send` writes the record to the executor of that number; the first that it goes to is first_.
template <typename Send>
bool GroupCall::send(std::vector<std::byte>& record, std::span<const std::byte> bulk, Send send) {
  const Goes goes = only_ ? Goes::kFirst : whereNow();
  const auto sendTo = [&](unsigned to) {
    addresses_.translate(record, to);
    return send(to, bulk);
  };
  // The memory is read while the order is held, which a thread that brings managed memory to the
  // CPU needs.
  std::vector<std::byte> own;
  if (isManaged(bulk)) bulk = own = {bulk.begin(), bulk.end()};
  bindWhereNeeded(bulk);
  if (goes == Goes::kBound && !group_.bound()) group_.bind(whatBinds(headOf(record).function));
  if (goes == Goes::kFirst) {
    first_ = only_.value_or(0);
    putAge(record, {});
    return sendTo(first_);
  }
  if (goes == Goes::kAll && (goes_ == Goes::kAll || !group_.bound())) {
    // In a turn, so that no operation is sent between two executors' hearing of it. If all is bound
    // it goes to the one: as an operation too, since it may make the worker touch memory.
    Group::Turn turn(
        group_,
        {.code = code_, .again = true, .may_be_kept = mayBeKept(headOf(record).function, bulk)});
    if (turn.isKept()) {
      keep(turn, record, bulk);
      return true;
    }
    const bool aged = hasAge(record), bound = group_.bound();
    first_ = bound ? turn.executor() : 0;
    const auto end = bound ? first_ + 1 : static_cast<unsigned>(session_.executors().size());
    bool sent = true;
    for (unsigned i = first_; i < end; ++i) {
      if (aged) putAge(record, turn.ageAt(i));
      sent = sendTo(i) && sent;
    }
    return sent;
  }
  if (mayOperate(goes_)) {
    const CUstream stream = stream_.value_or(nullptr);
    const CUresult given = group_.giveManaged(
        {.named = named_,
         .stream = per_thread_ && stream == nullptr ? CU_STREAM_PER_THREAD : stream_,
         .all = launchesGraph(headOf(record).function)});
    if (given != CUDA_SUCCESS) {
      refusal_ = given;
      return false;
    }
  }
  Group::Turn turn(group_, {.operates = mayOperate(goes_),
                            .launches = launches(headOf(record).function),
                            .named = named_,
                            .code = code_,
                            .at = at_,
                            .may_be_kept = mayBeKept(headOf(record).function, bulk)});
  if (turn.isKept()) {
    keep(turn, record, bulk);
    return true;
  }
  first_ = turn.executor();
  putAge(record, turn.aged());
  if (!sendTo(first_)) return false;
  turn.sent();
  return true;
}

bool GroupCall::begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
                      bool flush) {
  others_.clear();
  const bool sent = send(record, bulk, [&](unsigned to, std::span<const std::byte> bytes) {
    if (to == first_) return executor(to).begin(record, bytes, wait, flush);
    Other& other = others_.emplace_back(to, std::make_unique<Wait>());
    return other.waits = executor(to).begin(record, bytes, *other.wait, true);
  });
  if (!sent) leave(wait);  // one is lost: the answers of the others are nobody's
  return sent;
}

CUresult GroupCall::finish(Wait& wait) {
  CUresult result = executor(first_).finish(wait);
  for (Other& other : others_) {
    const CUresult its = executor(other.executor).finish(*other.wait);
    other.waits = false;
    if (result != CUDA_SUCCESS || its == CUDA_SUCCESS) continue;
    base::logWarn(
        "%s succeeded at gpunode %s and failed at gpunode %s (CUDA error %d): it counts as failed",
        functionName(wait.function).c_str(), executor(first_).name().c_str(),
        executor(other.executor).name().c_str(), static_cast<int>(its));
    result = its;
  }
  return result;
}

void GroupCall::leave(const Wait& wait) {
  executor(first_).leave(wait);
  for (const Other& other : others_)
    if (other.waits) executor(other.executor).leave(*other.wait);
}

CUresult GroupCall::post(std::vector<std::byte>& record, std::span<const std::byte> bulk,
                         bool flush) {
  CUresult result = CUDA_SUCCESS;
  posted_ = true;
  const bool sent = send(record, bulk, [&](unsigned to, std::span<const std::byte> bytes) {
    const CUresult its = executor(to).post(record, bytes, flush);
    if (result == CUDA_SUCCESS) result = its;
    return its == CUDA_SUCCESS;
  });
  return !sent && result == CUDA_SUCCESS ? refusal_ : result;
}

}  // namespace olpager::forward
