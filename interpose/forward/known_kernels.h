// Checks kernels' parameters against the program's own code. A launch takes each parameter from
// where the program says, as many bytes as the kernel's code has for it. The worker tells where
// those bytes go; their sizes are held against the code itself, or the worker could read what lies
// behind a parameter.
//
// Code that a worker's driver has made (of a linker's inputs) says no more than that worker.
//
// Code is read when a kernel of it is asked for, and of a container no more images than it takes to
// find the kernel (KnownCode). Until then the code is kept packed: the program's own, where the
// program has promised that it stays until it is unloaded, else a copy, as the driver keeps one.
//
// Thread-safety: any thread. Locks: KnownKernels::mutex_, and one of each KnownCode, under which it
// is read; both leaves, and never taken together.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fatbin/kernels.h"
#include "forwarding/wire/launch_wire.h"

namespace olpager::forward {

/// One piece of code that the program has loaded.
///
///   kept -> read, image by image -> all read: it is not kept any more
///   any of these -> gone: the program may take its code away, and it has no kernels
class KnownCode {
 public:
  KnownCode() = default;  // has no kernels
  /// `stays`: the image is there until gone(). Code that there is no memory to keep is code that
  /// can't be read.
  KnownCode(std::span<const std::byte> image, bool stays);

  /// True if it has such a kernel that takes as much, or may have.
  bool allows(const std::string& kernel, std::span<const ParameterPlace> places);
  /// Returns when nobody reads the image any more.
  void gone();
  /// Images that were unpacked and read.
  size_t imagesRead();

 private:
  std::mutex mutex_;
  std::vector<std::byte> copy_;  // of what may not stay
  std::optional<fatbin::KernelReader> reader_;
  bool unreadable_ = false;  // some of it: it may have any kernel
};

class KnownKernels {
 public:
  using Code = std::shared_ptr<KnownCode>;

  /// A module or a library was loaded from this.
  void loaded(uint64_t owner, Code code);
  /// A module is what a library has in a context.
  void isOf(uint64_t module, uint64_t library);
  /// The worker's answer to the question for a kernel of `owner` by its name.
  void named(uint64_t kernel, uint64_t owner, std::string_view name);
  /// The worker's answer to the question for the function of a kernel.
  void isFunctionOf(uint64_t function, uint64_t kernel);
  /// The module or library is unloaded. The names of libraries' functions go with a context, whose
  /// modules are gone then.
  void gone(uint64_t owner);

  /// True if a kernel takes no more than its code says. `name` is asked where it was got without
  /// one: from a list, or from a graph.
  bool agrees(uint64_t kernel, std::span<const ParameterPlace> places,
              const std::string& name) const;
  /// True if it was got by its name.
  bool hasName(uint64_t kernel) const;

 private:
  struct Kernel {
    uint64_t owner = 0;
    std::string name;
    Code code;
    bool is_function = false;   // in a context, of a library's kernel
    bool contradicted = false;  // one handle for two kernels
  };
  void note(uint64_t handle, Kernel kernel);  // under the mutex

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Code> code_;       // by module or library
  std::unordered_map<uint64_t, uint64_t> of_;     // libraries, by their modules
  std::unordered_map<uint64_t, Kernel> kernels_;  // by handle
};

}  // namespace olpager::forward
