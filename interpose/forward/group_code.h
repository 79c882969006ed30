// Code of a session with several executors (group.h): which modules, libraries and functions have
// variables that kernels change, and where each executor has the variables whose addresses the
// program was given. The program has the address of executor 0's copy, for each of them.
// Thread-safety: any thread. Lock: a leaf.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "interpose/forward/code_state.h"

namespace olpager::forward {

/// Code in a context: each executor has a copy of its variables.
struct CodeThere {
  std::shared_ptr<const CodeState> state;
  uint64_t context = 0;
};

/// A variable whose address the program has.
struct SharedVariable {
  CodeThere code;
  uint64_t address = 0;  // as the program knows it
  uint64_t bytes = 0;
  std::vector<uint64_t> at;  // by executor

  /// True if all executors have it at one address: then memory may hold that.
  bool isAlike() const {
    return std::all_of(at.begin(), at.end(), [&](uint64_t one) { return one == address; });
  }
  /// Executor `number`'s address for the program's `theirs`, in [address, + bytes).
  uint64_t there(uint64_t theirs, unsigned number) const { return at[number] + theirs - address; }
};

class GroupCode {
 public:
  /// A module, a library, or a function of one has these.
  void noteState(uint64_t handle, std::shared_ptr<const CodeState> state);
  /// Null: it has none.
  std::shared_ptr<const CodeState> stateOf(uint64_t handle) const;

  void share(std::shared_ptr<const SharedVariable> variable);
  /// Null: the address is in none of them.
  std::shared_ptr<const SharedVariable> variableAt(uint64_t address) const;

  bool anyShared() const { return end_.load(std::memory_order_relaxed) != 0; }
  /// True if a word of [words, + bytes), at multiples of 8, is an address of one of them that not
  /// all executors have at that address.
  bool names(const void* words, uint64_t bytes) const;

  /// The module or library is unloaded. True: it had variables.
  bool ownerGone(uint64_t owner);
  void contextGone(uint64_t context);

 private:
  template <typename Gone>
  void dropVariables(Gone gone);  // under the mutex

  std::atomic<bool> any_state_{false};
  std::atomic<uint64_t> lowest_{UINT64_MAX}, end_{0};  // of what is shared, or was
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const CodeState>> with_state_;
  std::map<uint64_t, std::shared_ptr<const SharedVariable>> shared_;  // by address
};

}  // namespace olpager::forward
