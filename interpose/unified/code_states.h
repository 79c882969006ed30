// Variables of code that runs at several executors in turns. Each executor has a copy; the active
// one's is the newest. Before operations run elsewhere, what kernels changed here is brought there.
//
// A state (forward::CodeState), per program: unknown -> used (a kernel of it is launched) -> read
// (its variables are here, as they were when all was complete) -> used again. What an executor has
// of it is a version of what was read; one that has an older version gets the newest.
//
// Thread-safety: none; under the order of the group. The calls that it makes go to one executor
// whatever the group's order is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "interpose/forward/code_state.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

class CodeStates {
 public:
  /// A kernel of that code is launched in that context, where operations run now.
  void use(const std::shared_ptr<const forward::CodeState>& state, uint64_t context);
  /// The module or library is unloaded.
  void forget(uint64_t owner) { all_.erase(owner); }
  /// All that was launched at `from` is complete: what it changed is at `to` as well. False: it
  /// can't be brought there.
  [[nodiscard]] bool bring(forward::Session& session, unsigned from, unsigned to);

 private:
  struct Variable {
    uint64_t bytes = 0;
    std::vector<std::byte> value;            // as it was read last
    std::map<unsigned, uint64_t> addresses;  // by executor
  };
  struct One {
    std::shared_ptr<const forward::CodeState> state;
    uint64_t context = 0;
    bool used = true;      // since it was read
    uint64_t version = 0;  // of what was read
    std::vector<Variable> variables;
    std::map<unsigned, uint64_t> has;  // which version each executor has
  };
  static bool find(forward::Session& session, One& one, unsigned executor);
  static bool read(forward::Session& session, One& one, unsigned executor);
  static bool write(forward::Session& session, const One& one, unsigned executor);

  std::map<uint64_t, One> all_;  // by the handle of module or library
};

}  // namespace olpager::unified
