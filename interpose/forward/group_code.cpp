#include "interpose/forward/group_code.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <utility>

namespace olpager::forward {

void GroupCode::noteState(uint64_t handle, std::shared_ptr<const CodeState> state) {
  const std::lock_guard lock(mutex_);
  with_state_[handle] = std::move(state);
  any_state_.store(true, std::memory_order_release);
}

std::shared_ptr<const CodeState> GroupCode::stateOf(uint64_t handle) const {
  if (!any_state_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = with_state_.find(handle);
  return found != with_state_.end() ? found->second : nullptr;
}

// The bounds are wide enough before the program has the address.
void GroupCode::share(std::shared_ptr<const SharedVariable> variable) {
  const std::lock_guard lock(mutex_);
  lowest_.store(std::min(lowest_.load(), variable->address));
  end_.store(std::max(end_.load(), variable->address + variable->bytes));
  shared_[variable->address] = std::move(variable);
}

std::shared_ptr<const SharedVariable> GroupCode::variableAt(uint64_t address) const {
  if (address < lowest_.load(std::memory_order_relaxed) ||
      address >= end_.load(std::memory_order_relaxed))
    return nullptr;
  const std::lock_guard lock(mutex_);
  const auto after = shared_.upper_bound(address);
  if (after == shared_.begin()) return nullptr;
  const auto& [base, variable] = *std::prev(after);
  return address - base < variable->bytes ? variable : nullptr;
}

bool GroupCode::names(const void* words, uint64_t bytes) const {
  if (!anyShared()) return false;
  const uint64_t lowest = lowest_.load(), span = end_.load() - lowest;
  const auto* const at = static_cast<const std::byte*>(words);
  for (uint64_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, at + offset, sizeof word);
    if (word - lowest >= span) continue;
    if (const auto variable = variableAt(word); variable != nullptr && !variable->isAlike())
      return true;
  }
  return false;
}

template <typename Gone>
void GroupCode::dropVariables(Gone gone) {
  std::erase_if(shared_, [&](const auto& one) { return gone(one.second->code); });
}

bool GroupCode::ownerGone(uint64_t owner) {
  const std::lock_guard lock(mutex_);
  const size_t before = with_state_.size() + shared_.size();
  std::erase_if(with_state_, [&](const auto& one) { return one.second->owner == owner; });
  dropVariables([&](const CodeThere& code) { return code.state->owner == owner; });
  return with_state_.size() + shared_.size() != before;
}

void GroupCode::contextGone(uint64_t context) {
  const std::lock_guard lock(mutex_);
  dropVariables([&](const CodeThere& code) { return code.context == context; });
}

}  // namespace olpager::forward
