// The environment that olrun gives to the program. Pure functions of their input.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace olpager::tools {

/// NAME=value entries, as environ holds them.
class Environment {
 public:
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  /// The value, "" when it is not there.
  std::string get(const std::string& name) const;
  bool has(const std::string& name) const;
  void set(const std::string& name, const std::string& value);
  void remove(const std::string& name);
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// Tells frameworks by their own variables what suits them under the pager. A variable that the
/// user has set, also to nothing, stays as it is. Returns what was set, as NAME=value.
/// - JAX and TensorFlow take most of the device at their start, in one piece. The frameworks are to
///   allocate as they need, JAX each array by itself: what is named alone moves alone, and memory
///   that nobody uses costs nothing.
/// - `forwarded`: NCCL judges by this machine's PCI bus which GPUs reach each other's memory, and a
///   gpunode's are on another one. Otherwise NCCL would go through memory of this machine, for
///   which kernels there can't wait. The setting has NCCL ask the driver.
std::vector<std::string> addFrameworkDefaults(Environment& environment, bool forwarded);

/// Puts `library` in LD_PRELOAD before what is there, but behind a sanitizer's runtime, which
/// insists on being first. Fails when the path has a space or colon, which LD_PRELOAD takes for
/// separators.
Status addPreload(Environment& environment, const std::string& library);

/// Puts `folder` first in LD_LIBRARY_PATH. No empty element is made: it would mean the working
/// directory.
Status addLibraryFolder(Environment& environment, const std::string& folder);

}  // namespace olpager::tools
