// Variables of code that runs at several executors in turns. Each executor has a copy; the active
// one's is the newest. Before operations run elsewhere, kernels' changes here are brought there.
//
// Memory may hold the address of a variable or of a function, and goes from one executor to another
// as it is. So both are to be at the same address everywhere. A driver places what it is asked for
// in the order of these questions. So all executors are asked for a module's variables at one point
// of the program's order, before its first use (place), and their answers are compared (locate).
// Functions whose address is taken have places in a table, which drivers fill in the same order.
// If the executors' addresses differ, a line says so once, and addresses that the program passes on
// in calls and that variables hold are translated.
//
// A state (forward::CodeState) in a context: unknown -> used (a kernel of it is launched, or a call
// names one of its variables) -> read (its variables are here, as they were when all was complete)
// -> used again. One that a graph may use stays used. Before an executor gets a value it is asked
// what it has from its image, so only what kernels have changed is written, and a constant never.
// A value that is the address of a variable of the same code becomes the other executor's.
//
// All are read by one call or a few: code has hundreds of them, most of which are constants that
// nothing tells from others. Values that are read as they were known are not looked at again: an
// executor that has the newest values (One::brought) is asked for nothing and told nothing.
//
// Thread-safety: none; under the order of the group. The calls that it makes go to one executor
// whatever the group's order is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "interpose/forward/group_code.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

class CodeStates {
 public:
  /// The code is used where operations run now. `again`: also later, by a graph.
  void use(forward::Session& session, const forward::CodeThere& code, bool again);
  /// Finds a variable at each executor; also one that no kernel changes (__constant__). Null: they
  /// can't all have it.
  std::shared_ptr<const forward::SharedVariable> share(forward::Session& session,
                                                       const forward::CodeThere& code,
                                                       const std::string& name);
  /// The module or library is unloaded.
  void forget(uint64_t owner);
  void contextGone(uint64_t context);
  /// All that was launched at `from` is complete: its changes are at `to` as well. An Error: it
  /// can't be brought there, and operations have to stay at `from` for good. Names the executor
  /// that can't.
  [[nodiscard]] Status bring(forward::Session& session, unsigned from, unsigned to);

 private:
  using Values = std::vector<std::byte>;
  struct Variable {
    std::string name;
    uint64_t bytes = 0;
    std::vector<uint64_t> at;  // by executor; empty: not located
    size_t place = 0;          // in Values
  };
  struct One {
    forward::CodeThere code;
    bool used = false;   // since it was read
    bool again = false;  // a graph may use it at any time
    bool placed = false;
    bool located = false;
    std::vector<Variable> variables;
    uint64_t bytes = 0;              // of Values
    std::map<unsigned, Values> has;  // what executors have, as far as it is known
    unsigned newest = 0;             // who has the newest of these
    std::set<unsigned> brought;      // who have that, each with its own addresses
  };
  static void place(forward::Session& session, One& one);
  static bool locate(forward::Session& session, const std::vector<One*>& ones);
  static void compare(const forward::Session& session, const Variable& variable);
  static void arrange(One& one);
  static bool read(forward::Session& session, const std::vector<One*>& ones, unsigned executor);
  static Values valuesFor(const One& one, unsigned executor);
  static bool write(forward::Session& session, const std::vector<One*>& ones, unsigned executor);
  One& at(const forward::CodeThere& code);

  // By the handle of module or library, and the context. A module is in one context alone, and may
  // be used while another one is current: 0.
  std::map<std::pair<uint64_t, uint64_t>, One> all_;
};

}  // namespace olpager::unified
