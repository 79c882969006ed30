// Modules: code that is linked to one context's memory, its functions and variables.
//
// A LoadedModule is made from compiled PTX in a context: each .global and .const variable gets
// memory there, initial bytes are copied in. cuModuleLoad makes one; a library makes one for each
// context that uses it. Life: loaded -> unloaded (its handles are gone, its memory is free). The
// context's teardown unloads what is left. Work that was submitted before an unload keeps the code
// alive by reference. Thread-safety: all members from any thread. Locks: Registry and its tables
// are leaves; Library::mutex is taken before Context::submit_mutex.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpunode/simgpu/call_lock.h"
#include "gpunode/simgpu/handles.h"
#include "gpunode/simgpu/modules/image.h"
#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu {

class Context;
class Device;
class LoadedModule;
class Library;
class LibraryKernel;
class Linker;

/// Attributes that cuFuncSetAttribute can change of a function, and cuKernelSetAttribute of a
/// kernel on one device.
struct FunctionSettings {
  std::atomic<int> max_dynamic_shared{0};  // bytes
  std::atomic<int> carveout{-1};
  std::atomic<int> cluster_must_be_set{0};
  std::array<std::atomic<int>, 3> cluster{};
  std::atomic<int> non_portable_cluster{0};
  std::atomic<int> cluster_policy{0};

  /// As at load, from what the PTX says and the device's limit without opt-in.
  void initialise(const ptx::KernelInfo& info, const Device& device);
};

/// An attribute as cuFuncGetAttribute answers it.
CUresult getFunctionAttribute(const ptx::KernelInfo& info, const FunctionSettings& settings,
                              const Device& device, int ptx_version, CUfunction_attribute attribute,
                              int* value);
CUresult setFunctionAttribute(const ptx::KernelInfo& info, FunctionSettings& settings,
                              const Device& device, CUfunction_attribute attribute, int value);

/// A kernel in one context. Immutable but for its settings.
class Function {
 public:
  CUfunction handle = nullptr;
  CUmodule module = nullptr;
  std::shared_ptr<ptx::Module> code;
  const ptx::Kernel* kernel = nullptr;
  std::weak_ptr<Context> context;
  CUcontext context_handle = nullptr;
  Device* device = nullptr;
  std::shared_ptr<FunctionSettings> settings;
  std::weak_ptr<LibraryKernel> origin;  ///< the library's kernel that it comes from, if any

  const ptx::KernelInfo& info() const { return kernel->info(); }
};

/// A variable of a module in one context.
struct Variable {
  std::string name;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  bool managed = false;
};

using VariableMap = std::unordered_map<std::string, Variable>;

class LoadedModule : public std::enable_shared_from_this<LoadedModule> {
 public:
  /// Links `code` (compiled, not yet linked) in `context`. `managed`: variables that have memory
  /// already (a library's __managed__ variables). CUDA_ERROR_OUT_OF_MEMORY, INVALID_PTX for a
  /// variable that is nowhere defined.
  static CUresult load(Context& context, std::shared_ptr<ptx::Module> code,
                       const VariableMap& managed, const std::shared_ptr<Library>& library,
                       JitOptions& options, std::shared_ptr<LoadedModule>* out);

  /// Takes the handles out of the registry and frees the variables. The caller has waited for the
  /// context's work.
  void unload();

  CUmodule handle() const { return handle_; }
  std::shared_ptr<Context> context() const { return context_.lock(); }
  const std::vector<std::shared_ptr<Function>>& functions() const { return functions_; }
  std::shared_ptr<Function> function(std::string_view name) const;
  const Variable* variable(const std::string& name) const;
  const ptx::Module& code() const { return *code_; }

 private:
  CUresult placeVariables(Context& context, const VariableMap& managed, JitOptions& options);

  CUmodule handle_ = nullptr;
  std::weak_ptr<Context> context_;
  std::shared_ptr<ptx::Module> code_;
  std::vector<std::shared_ptr<Function>> functions_;
  VariableMap variables_;
  std::vector<CUdeviceptr> owned_;          // device memory to free
  std::vector<CUdeviceptr> owned_managed_;  // managed memory to free
  std::atomic<bool> unloaded_{false};
};

/// The process's handles of code.
struct Registry {
  static Registry& get();

  HandleTable<LoadedModule> modules{HandleKind::kModule};
  HandleTable<Function> functions{HandleKind::kFunction};
  HandleTable<Library> libraries{HandleKind::kLibrary};
  HandleTable<LibraryKernel> kernels{HandleKind::kKernel};
  HandleTable<Linker> linkers{HandleKind::kLinker};

  /// Sees to it that the context's teardown unloads its modules and tells the private tables.
  void watch(Context& context);

 private:
  void contextGone(Context& context);
  std::mutex mutex_;
  std::unordered_map<const Context*, bool> watched_;
};

/// The function that `handle`, a CUfunction or a CUkernel cast to one, means in `context`; a
/// library's kernel is instantiated there. CUDA_ERROR_INVALID_HANDLE for neither.
CUresult resolveFunction(CUfunction handle, Context& context, std::shared_ptr<Function>* out);

/// resolveFunction() in the function's own context: a CUfunction needs none to be current, a
/// CUkernel does.
CUresult resolveFunction(CUfunction handle, std::shared_ptr<Function>* out);

/// Copies host bytes into device memory that is mapped for `device`. False when some of it is not.
bool writeDeviceMemory(const Device& device, CUdeviceptr address, const void* bytes, size_t count);

/// The drain before the driver loads or unloads code: waits for the kernels that run in `context`,
/// as hardware was seen to. OL_SIM_CTXLOCK: drains `context` and holds its call lock as long as
/// this lives. Hold no lock.
class ContextDrain {
 public:
  explicit ContextDrain(Context& context);

 private:
  const CallLock lock_;
};

}  // namespace olpager::simgpu
