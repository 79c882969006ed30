// /proc tells of this user's processes what their counters do not. Each call reads it anew: a
// process may end meanwhile. Thread-safety: any thread. Errors: what can't be read is not there.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace olpager::tools {

/// The script that an interpreter runs: the name of the first argument that is no option, where
/// that is a file of text. "" where there is none.
std::string scriptOf(uint32_t pid);

/// The settings that its environment had when it began (OL_*), by name. Those of settings files are
/// not among them.
std::vector<std::pair<std::string, std::string>> settingsOf(uint32_t pid);

/// A program whose GPU work goes to gpunodes.
struct Forwarded {
  uint32_t pid = 0;
  std::string program;   // with its script
  std::string gpunodes;  // as it was told of them
};
/// Processes of this user that have olpager's library and were started with gpunodes, by pid. Those
/// that a settings file alone tells of gpunodes are not among them.
std::vector<Forwarded> forwardedProcesses();

/// The same for frequent questions: /proc is looked through once a second at most, and what was
/// found then is the answer in between. Thread-safety: one thread.
class ForwardedLooks {
 public:
  /// `seconds`: now, by a clock that only goes on.
  const std::vector<Forwarded>& at(double seconds);
  /// How often /proc has been looked through.
  uint64_t count() const { return count_; }

 private:
  std::vector<Forwarded> found_;
  double looked_ = 0;
  uint64_t count_ = 0;
};

}  // namespace olpager::tools
