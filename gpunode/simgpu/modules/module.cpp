#include "gpunode/simgpu/modules/module.h"

#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/export_tables.h"
#include "gpunode/simgpu/modules/library.h"

namespace olpager::simgpu {

bool writeDeviceMemory(const Device& device, CUdeviceptr address, const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  while (count != 0) {
    Translation to;
    if (!device.pages.translate(address, &to) || to.bytes == 0) return false;
    const size_t part = std::min<size_t>(count, to.bytes);
    std::memcpy(to.host, from, part);
    from += part;
    address += part;
    count -= part;
  }
  return true;
}

ContextDrain::ContextDrain(Context& context) : lock_(context) {
  if (lock_.isHeld()) {
    (void)context.synchronize();
  } else {
    context.runningKernels().wait();
  }
}

// --- LoadedModule --------------------------------------------------------------------------------

CUresult LoadedModule::load(Context& context, std::shared_ptr<ptx::Module> code,
                            const VariableMap& managed, const std::shared_ptr<Library>& library,
                            JitOptions& options, std::shared_ptr<LoadedModule>* out) {
  Registry& registry = Registry::get();
  registry.watch(context);

  auto module = std::make_shared<LoadedModule>();
  module->context_ = context.weak_from_this();
  module->code_ = std::move(code);
  if (const CUresult error = module->placeVariables(context, managed, options);
      error != CUDA_SUCCESS) {
    module->unload();
    return error;
  }

  module->handle_ = reinterpret_cast<CUmodule>(registry.modules.add(module));
  Device& device = context.device();
  for (const auto& kernel : module->code_->kernels()) {
    auto function = std::make_shared<Function>();
    function->module = module->handle_;
    function->code = module->code_;
    function->kernel = kernel.get();
    function->context = module->context_;
    function->context_handle = context.handle();
    function->device = &device;
    if (library != nullptr) {
      const auto origin = library->kernel(kernel->info().name);
      function->origin = origin;
      function->settings = origin->settings(device);
    } else {
      function->settings = std::make_shared<FunctionSettings>();
      function->settings->initialise(kernel->info(), device);
    }
    function->handle = reinterpret_cast<CUfunction>(registry.functions.add(function));
    module->functions_.push_back(std::move(function));
  }
  *out = std::move(module);
  return CUDA_SUCCESS;
}

CUresult LoadedModule::placeVariables(Context& context, const VariableMap& managed,
                                      JitOptions& options) {
  Driver& driver = Driver::get();
  Device& device = context.device();
  for (const ptx::GlobalInfo& global : code_->globals()) {
    Variable variable{global.name, 0, global.size, global.is_managed};
    if (const auto it = managed.find(global.name); it != managed.end()) {
      variable = it->second;
    } else if (global.is_extern) {
      const std::string line = "unresolved external variable " + global.name;
      options.error(line);
      report(line);
      return CUDA_ERROR_INVALID_PTX;
    } else {
      const size_t bytes = global.size != 0 ? global.size : 1;
      const CUresult error =
          global.is_managed
              ? driver.memory.allocateManaged(context, bytes, CU_MEM_ATTACH_GLOBAL,
                                              &variable.address)
              : driver.memory.allocate(context, bytes, AllocationKind::kGlobal, &variable.address);
      if (error != CUDA_SUCCESS) return error;
      (global.is_managed ? owned_managed_ : owned_).push_back(variable.address);
    }
    if (auto status = code_->setGlobalAddress(global.name, variable.address); !status) {
      options.error(status.error().message);
      report(status.error().message);
      return CUDA_ERROR_INVALID_PTX;
    }
    variables_.emplace(global.name, std::move(variable));
  }
  if (auto status = code_->link(); !status) {
    options.error(status.error().message);
    report(status.error().message);
    return CUDA_ERROR_INVALID_PTX;
  }
  for (const ptx::GlobalInfo& global : code_->globals()) {
    if (managed.contains(global.name)) continue;  // the library has initialised it
    if (global.init.empty() && global.relocations.empty()) {
      // Device memory of this kind comes zeroed, managed memory does not say so.
      if (!global.is_managed) continue;
    }
    const auto image = code_->image(global);
    if (!writeDeviceMemory(device, variables_.at(global.name).address, image.data(),
                           image.size())) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return CUDA_SUCCESS;
}

void LoadedModule::unload() {
  if (unloaded_.exchange(true)) return;
  Registry& registry = Registry::get();
  for (const auto& function : functions_) registry.functions.remove(function->handle);
  if (handle_ != nullptr) registry.modules.remove(handle_);
  Memory& memory = Driver::get().memory;
  for (const CUdeviceptr address : owned_) (void)memory.free(address, AllocationKind::kGlobal);
  for (const CUdeviceptr address : owned_managed_)
    (void)memory.free(address, AllocationKind::kManaged);
}

std::shared_ptr<Function> LoadedModule::function(std::string_view name) const {
  for (const auto& function : functions_) {
    if (function->info().name == name) return function;
  }
  return nullptr;
}

const Variable* LoadedModule::variable(const std::string& name) const {
  const auto it = variables_.find(name);
  return it == variables_.end() ? nullptr : &it->second;
}

// --- Registry ------------------------------------------------------------------------------------

Registry& Registry::get() {
  static Registry* const registry = new Registry;  // programs call the driver from exit handlers
  return *registry;
}

void Registry::watch(Context& context) {
  {
    const std::lock_guard lock(mutex_);
    if (!watched_.emplace(&context, true).second) return;
  }
  context.atTeardown([this, &context] { contextGone(context); });
}

void Registry::contextGone(Context& context) {
  {
    const std::lock_guard lock(mutex_);
    watched_.erase(&context);
  }
  // Libraries' values on the context first: their destructors may still use its modules.
  privateTables().contextGone(context.handle());
  for (const auto& library : libraries.all()) library->contextGone(context);
  for (const auto& module : modules.all()) {
    const auto owner = module->context();
    if (owner == nullptr || owner.get() == &context) module->unload();
  }
}

CUresult resolveFunction(CUfunction handle, Context& context, std::shared_ptr<Function>* out) {
  const auto value = reinterpret_cast<uint64_t>(handle);
  Registry& registry = Registry::get();
  switch (static_cast<HandleKind>(value >> 40)) {
    case HandleKind::kFunction:
      *out = registry.functions.find(value);
      return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    case HandleKind::kKernel: {
      const auto kernel = registry.kernels.find(value);
      return kernel != nullptr ? kernel->function(context, out) : CUDA_ERROR_INVALID_HANDLE;
    }
    default:
      return CUDA_ERROR_INVALID_HANDLE;
  }
}

CUresult resolveFunction(CUfunction handle, std::shared_ptr<Function>* out) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  if (static_cast<HandleKind>(reinterpret_cast<uint64_t>(handle) >> 40) == HandleKind::kKernel) {
    std::shared_ptr<Context> context;
    if (const CUresult error = requireContext(&context); error != CUDA_SUCCESS) return error;
    return resolveFunction(handle, *context, out);
  }
  *out = Registry::get().functions.find(handle);
  if (*out == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto owner = (*out)->context.lock();
  return owner != nullptr ? owner->error() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// --- attributes ----------------------------------------------------------------------------------

namespace {

int deviceAttribute(const Device& device, CUdevice_attribute attribute) {
  int value = 0;
  device.attribute(attribute, &value);
  return value;
}

}  // namespace

void FunctionSettings::initialise(const ptx::KernelInfo& info, const Device& device) {
  const int limit = deviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  max_dynamic_shared = std::max(0, limit - static_cast<int>(info.static_shared_bytes));
  for (size_t i = 0; i < 3; ++i) cluster[i] = static_cast<int>(info.reqnctapercluster[i]);
  cluster_must_be_set = info.reqnctapercluster[0] != 0 ? 1 : 0;
}

CUresult getFunctionAttribute(const ptx::KernelInfo& info, const FunctionSettings& settings,
                              const Device& device, int ptx_version, CUfunction_attribute attribute,
                              int* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int threads = deviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = std::min(static_cast<int>(info.max_threads), threads);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(info.static_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = static_cast<int>(info.const_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(info.local_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = std::min(255, std::max(8, static_cast<int>(info.registers)));
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = ptx_version;
      break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = computeCapability(device);
      break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = settings.max_dynamic_shared;
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = settings.carveout;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      *value = settings.cluster_must_be_set;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      *value = settings.cluster[0];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      *value = settings.cluster[1];
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      *value = settings.cluster[2];
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = settings.non_portable_cluster;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = settings.cluster_policy;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult setFunctionAttribute(const ptx::KernelInfo& info, FunctionSettings& settings,
                              const Device& device, CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      const int limit =
          deviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
      if (value < 0 || value + static_cast<int64_t>(info.static_shared_bytes) > limit)
        return CUDA_ERROR_INVALID_VALUE;
      settings.max_dynamic_shared = value;
      break;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
      settings.carveout = value;
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      // Requirements of the code itself can't be changed.
      if (value < 0 || info.reqnctapercluster[0] != 0) return CUDA_ERROR_INVALID_VALUE;
      settings.cluster[static_cast<size_t>(attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)] =
          value;
      break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      settings.non_portable_cluster = value != 0 ? 1 : 0;
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      if (value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING)
        return CUDA_ERROR_INVALID_VALUE;
      settings.cluster_policy = value;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace olpager::simgpu
