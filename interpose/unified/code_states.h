// Variables of code that runs at several executors in turns. Each executor has a copy; the active
// one's is the newest. Before operations run elsewhere, what kernels changed here is brought there.
//
// A state (forward::CodeState) in a context: unknown -> used (a kernel of it is launched, or a call
// names one of its variables) -> read (its variables are here, as they were when all was complete)
// -> used again. One that a graph may use stays used. What an executor has of it is a version of
// what was read; one that has an older version gets the newest.
//
// Thread-safety: none; under the order of the group. The calls that it makes go to one executor
// whatever the group's order is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "interpose/forward/group_code.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

class CodeStates {
 public:
  /// It is used where operations run now. `again`: also later, by a graph.
  void use(const forward::CodeThere& code, bool again);
  /// Finds a variable at each executor; also one that no kernel changes (__constant__). Null: they
  /// can't all have it.
  std::shared_ptr<const forward::SharedVariable> share(forward::Session& session,
                                                       const forward::CodeThere& code,
                                                       const std::string& name);
  /// The module or library is unloaded.
  void forget(uint64_t owner);
  void contextGone(uint64_t context);
  /// All that was launched at `from` is complete: what it changed is at `to` as well. False: it
  /// can't be brought there.
  [[nodiscard]] bool bring(forward::Session& session, unsigned from, unsigned to);

 private:
  struct Variable {
    std::string name;
    uint64_t bytes = 0;
    std::vector<std::byte> value;            // as it was read last
    std::map<unsigned, uint64_t> addresses;  // by executor
  };
  struct One {
    forward::CodeThere code;
    bool used = false;     // since it was read
    bool again = false;    // a graph may use it at any time
    uint64_t version = 0;  // of what was read
    std::vector<Variable> variables;
    std::map<unsigned, uint64_t> has;  // which version each executor has
  };
  static bool find(forward::Session& session, One& one, unsigned executor);
  static bool read(forward::Session& session, One& one, unsigned executor);
  static bool write(forward::Session& session, const One& one, unsigned executor);

  One& at(const forward::CodeThere& code);

  // By the handle of module or library, and the context. A module is in one context alone, and may
  // be used while another one is current: 0.
  std::map<std::pair<uint64_t, uint64_t>, One> all_;
};

}  // namespace olpager::unified
