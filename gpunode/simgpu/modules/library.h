// Libraries: code without a context (cuLibraryLoadData). Kernels and variables get their place in a
// context when they are first used there; __managed__ variables have one place for all.
//
// Life of a library in a context: absent -> instantiated (a LoadedModule) -> gone with the
// context's teardown, and instantiated anew by the next use. Moved under Library::mutex, which is
// taken before every lock of the core.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/modules/module.h"

namespace olpager::simgpu {

class LibraryKernel {
 public:
  CUkernel handle = nullptr;
  std::weak_ptr<Library> library;
  CUlibrary library_handle = nullptr;
  ptx::KernelInfo info;
  int ptx_version = 0;

  /// The kernel in `context`; instantiates the library there.
  CUresult function(Context& context, std::shared_ptr<Function>* out);
  /// The settings for it on `device`.
  std::shared_ptr<FunctionSettings> settings(const Device& device);

 private:
  std::mutex mutex_;
  std::unordered_map<const Device*, std::shared_ptr<FunctionSettings>> settings_;
  friend class Library;
  std::unordered_map<const Context*, std::shared_ptr<Function>>
      functions_;  // cache, emptied with the instances
};

class Library : public std::enable_shared_from_this<Library> {
 public:
  /// Compiles the code (errors come here, not at first use) and makes its kernels; needs no
  /// context.
  static CUresult load(Device& device, Code code, JitOptions& options,
                       std::shared_ptr<Library>* out);

  /// Takes all handles out of the registry, waits for the contexts that use it, frees its
  /// variables.
  void unload();

  CUlibrary handle() const { return handle_; }
  const std::vector<std::shared_ptr<LibraryKernel>>& kernels() const { return kernels_; }
  std::shared_ptr<LibraryKernel> kernel(const std::string& name) const;
  /// The module in `context`, made on first use.
  CUresult instance(Context& context, std::shared_ptr<LoadedModule>* out);
  /// CUDA_ERROR_NOT_FOUND for a name that is no __managed__ variable.
  CUresult managed(const std::string& name, Variable* out);
  void contextGone(const Context& context);

 private:
  CUresult placeManaged();

  CUlibrary handle_ = nullptr;
  Device* device_ = nullptr;  // the one that the code was chosen for; all are of one kind
  Code code_;
  std::vector<std::shared_ptr<LibraryKernel>> kernels_;
  std::unordered_map<std::string, std::shared_ptr<LibraryKernel>> by_name_;

  std::mutex mutex_;
  std::shared_ptr<ptx::Module> first_;  // compiled at load, used by the first context
  std::vector<ptx::GlobalInfo> managed_globals_;
  VariableMap managed_;
  std::shared_ptr<Context> managed_owner_;  // whom the tables of allocations name as their context
  bool managed_linked_ = false;
  std::unordered_map<const Context*, std::shared_ptr<LoadedModule>> instances_;
  bool unloaded_ = false;
};

}  // namespace olpager::simgpu
