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
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// Asks frameworks whose allocator takes most of the device at its start, in one piece, to allocate as they need instead, and in
/// stream order (JAX, TensorFlow): what is named alone moves alone, and memory that nobody uses costs nothing. A variable that
/// the user has set, also to nothing, stays as it is. Returns what was set, as NAME=value.
std::vector<std::string> addAllocators(Environment& environment);

/// Puts `library` in LD_PRELOAD before what is there, but behind a sanitizer's runtime, which insists on being first.
/// Fails when the path has a space or colon, which LD_PRELOAD takes for separators.
Status addPreload(Environment& environment, const std::string& library);

/// Puts `folder` first in LD_LIBRARY_PATH. No empty element is made: it would mean the working directory.
Status addLibraryFolder(Environment& environment, const std::string& folder);

}  // namespace olpager::tools
