// What the program's own code says of its kernels. A launch takes each parameter from where the
// program says, as many bytes as the kernel's code has for it. Where those bytes go the worker
// tells; how many they are is held against the code itself, or the worker could read what lies
// behind a parameter.
//
// Code that a worker's driver has made (of a linker's inputs) says no more than that worker.
// Thread-safety: any thread. Lock: one of its own, a leaf.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/fatbin/kernels.h"
#include "forwarding/wire/launch_wire.h"

namespace olpager::forward {

class KnownKernels {
 public:
  using Table = std::shared_ptr<const fatbin::KernelTable>;

  /// A module or a library was loaded from code with these.
  void loaded(uint64_t owner, Table table);
  /// A module is what a library has in a context.
  void isOf(uint64_t module, uint64_t library);
  /// The worker's answer to who asked for a kernel of `owner` by its name.
  void named(uint64_t kernel, uint64_t owner, std::string_view name);
  /// The worker's answer to who asked for the function of a kernel.
  void isFunctionOf(uint64_t function, uint64_t kernel);
  /// It is unloaded. What functions of libraries' kernels are called goes with a context, whose
  /// modules are gone then: they have no name any more.
  void gone(uint64_t owner);

  /// Whether a kernel takes no more than its code says. `name` is asked where it was got without
  /// one: from a list, or from a graph.
  bool agrees(uint64_t kernel, std::span<const ParameterPlace> places,
              const std::string& name) const;
  /// Whether it was got by its name.
  bool hasName(uint64_t kernel) const;

 private:
  struct Kernel {
    uint64_t owner = 0;
    std::string name;
    Table table;
    bool is_function = false;   // in a context, of a library's kernel
    bool contradicted = false;  // one handle for two kernels
  };
  void note(uint64_t handle, Kernel kernel);  // under the mutex

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Table> tables_;    // by module or library
  std::unordered_map<uint64_t, uint64_t> of_;     // libraries, by their modules
  std::unordered_map<uint64_t, Kernel> kernels_;  // by handle
};

/// Of code that the program loads.
KnownKernels::Table kernelTableOf(std::span<const std::byte> image);

}  // namespace olpager::forward
