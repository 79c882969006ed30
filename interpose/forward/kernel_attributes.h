// Attributes of kernels: which answers a change makes wrong, and changes that change nothing.
// Libraries set the same shared memory for a kernel before each of its launches. Thread-safety: any
// thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace olpager::forward {

/// A kernel of a library and its function in a context are two handles of one thing. The kernel is
/// known of functions that cuKernelGetFunction gave. If the program has a library's module, or that
/// of a function, any function may be one of any kernel.
struct KernelAliases {
  std::shared_mutex mutex;  // a leaf
  std::unordered_map<uint64_t, uint64_t> of_functions;
  bool any = false;
};

/// Attributes that the program has set of kernels.
struct SetAttributes {
  enum class Kind { kFunction, kKernel };
  using Key = std::tuple<Kind, CUfunction_attribute, uint64_t, CUdevice>;
  std::mutex mutex;                    // before that of KernelAliases
  std::map<Key, int> values;           // what was set last
  std::map<Key, std::set<int>> taken;  // what the driver has taken

  bool isSo(const Key& key, int value);
  /// Values set by another handle of the same kernel become unknown.
  void note(const Key& key, int value);
  bool wasTaken(const Key& key, int value);
};

/// True if the answer to this question (a symbol or an Operation, and its arguments as the
/// generated encoder writes them) may be another after something was set of some kernel.
bool changesWithKernel(size_t function, std::string_view arguments);

/// Set values may not hold any more.
void forgetSetAttributes();

}  // namespace olpager::forward
