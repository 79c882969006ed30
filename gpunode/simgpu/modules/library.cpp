#include "gpunode/simgpu/modules/library.h"

#include <cstring>
#include <optional>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {

// --- LibraryKernel -------------------------------------------------------------------------------

CUresult LibraryKernel::function(Context& context, std::shared_ptr<Function>* out) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = functions_.find(&context); it != functions_.end()) {
      *out = it->second;
      return CUDA_SUCCESS;
    }
  }
  const auto owner = library.lock();
  if (owner == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = owner->instance(context, &module); error != CUDA_SUCCESS) return error;
  // A driver that loads lazily loads each kernel by itself.
  std::optional<ContextDrain> drain;
  if (Driver::get().settings.context_lock) drain.emplace(context);
  *out = module->function(info.name);
  if (*out == nullptr) return CUDA_ERROR_NOT_FOUND;
  const std::lock_guard lock(mutex_);
  functions_[&context] = *out;
  return CUDA_SUCCESS;
}

std::shared_ptr<FunctionSettings> LibraryKernel::settings(const Device& device) {
  const std::lock_guard lock(mutex_);
  auto& settings = settings_[&device];
  if (settings == nullptr) {
    settings = std::make_shared<FunctionSettings>();
    settings->initialise(info, device);
  }
  return settings;
}

// --- Library -------------------------------------------------------------------------------------

CUresult Library::load(Device& device, Code code, JitOptions& options,
                       std::shared_ptr<Library>* out) {
  std::shared_ptr<ptx::Module> compiled;
  if (const CUresult error = compileCode(device, code, options, &compiled); error != CUDA_SUCCESS)
    return error;

  auto library = std::make_shared<Library>();
  library->device_ = &device;
  library->code_ = std::move(code);
  Registry& registry = Registry::get();
  library->handle_ = reinterpret_cast<CUlibrary>(registry.libraries.add(library));
  for (const auto& kernel : compiled->kernels()) {
    auto entry = std::make_shared<LibraryKernel>();
    entry->library = library;
    entry->library_handle = library->handle_;
    entry->info = kernel->info();
    entry->ptx_version = compiled->target();
    entry->handle = reinterpret_cast<CUkernel>(registry.kernels.add(entry));
    library->by_name_.emplace(entry->info.name, entry);
    library->kernels_.push_back(std::move(entry));
  }
  for (const ptx::GlobalInfo& global : compiled->globals()) {
    if (global.is_managed && !global.is_extern) library->managed_globals_.push_back(global);
  }
  library->first_ = std::move(compiled);
  *out = std::move(library);
  return CUDA_SUCCESS;
}

std::shared_ptr<LibraryKernel> Library::kernel(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

// Managed variables are there before any context is and outlive each: they belong to an object of
// the library's own that only looks like a context. Under mutex_.
CUresult Library::placeManaged() {
  if (managed_.size() == managed_globals_.size()) return CUDA_SUCCESS;
  if (managed_owner_ == nullptr) {
    const auto handle = reinterpret_cast<CUcontext>(newHandleValue(HandleKind::kContext));
    managed_owner_ = std::make_shared<Context>(*device_, handle, 0, 0, false);
  }
  Driver& driver = Driver::get();
  for (const ptx::GlobalInfo& global : managed_globals_) {
    Variable variable{global.name, 0, global.size, true};
    if (const CUresult error =
            driver.memory.allocateManaged(*managed_owner_, global.size != 0 ? global.size : 1,
                                          CU_MEM_ATTACH_GLOBAL, &variable.address);
        error != CUDA_SUCCESS) {
      return error;
    }
    // Bytes as in the PTX; addresses in them become known with the first instance.
    std::vector<std::byte> image = global.init;
    image.resize(global.size);
    std::memcpy(reinterpret_cast<void*>(variable.address), image.data(), image.size());
    managed_.emplace(global.name, std::move(variable));
  }
  return CUDA_SUCCESS;
}

CUresult Library::managed(const std::string& name, Variable* out) {
  const std::lock_guard lock(mutex_);
  if (const CUresult error = placeManaged(); error != CUDA_SUCCESS) return error;
  const auto it = managed_.find(name);
  if (it == managed_.end()) return CUDA_ERROR_NOT_FOUND;
  *out = it->second;
  return CUDA_SUCCESS;
}

CUresult Library::instance(Context& context, std::shared_ptr<LoadedModule>* out) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = instances_.find(&context); it != instances_.end()) {
      *out = it->second;
      return CUDA_SUCCESS;
    }
  }
  const ContextDrain drain(context);
  const std::lock_guard lock(mutex_);
  if (unloaded_) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto it = instances_.find(&context); it != instances_.end()) {
    *out = it->second;
    return CUDA_SUCCESS;
  }
  if (const CUresult error = placeManaged(); error != CUDA_SUCCESS) return error;
  JitOptions options;
  std::shared_ptr<ptx::Module> compiled = std::move(first_);
  if (compiled == nullptr) {
    if (const CUresult error = compileCode(context.device(), code_, options, &compiled);
        error != CUDA_SUCCESS) {
      return error;
    }
  }
  std::shared_ptr<LoadedModule> module;
  if (const CUresult error = LoadedModule::load(context, std::move(compiled), managed_,
                                                shared_from_this(), options, &module);
      error != CUDA_SUCCESS) {
    return error;
  }
  if (!managed_linked_) {
    managed_linked_ = true;
    for (const ptx::GlobalInfo& global : managed_globals_) {
      if (global.relocations.empty()) continue;
      const auto image = module->code().image(global);
      std::memcpy(reinterpret_cast<void*>(managed_.at(global.name).address), image.data(),
                  image.size());
    }
  }
  instances_.emplace(&context, module);
  *out = std::move(module);
  return CUDA_SUCCESS;
}

void Library::contextGone(const Context& context) {
  std::shared_ptr<LoadedModule> module;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = instances_.find(&context); it != instances_.end()) {
      module = std::move(it->second);
      instances_.erase(it);
    }
  }
  for (const auto& kernel : kernels_) {
    const std::lock_guard lock(kernel->mutex_);
    kernel->functions_.erase(&context);
  }
  if (module != nullptr) module->unload();
}

void Library::unload() {
  Registry& registry = Registry::get();
  registry.libraries.remove(handle_);
  for (const auto& kernel : kernels_) registry.kernels.remove(kernel->handle);
  std::vector<std::shared_ptr<LoadedModule>> modules;
  VariableMap managed;
  {
    const std::lock_guard lock(mutex_);
    unloaded_ = true;
    for (auto& [context, module] : instances_) modules.push_back(std::move(module));
    instances_.clear();
    managed.swap(managed_);
  }
  for (const auto& kernel : kernels_) {
    const std::lock_guard lock(kernel->mutex_);
    kernel->functions_.clear();
  }
  for (const auto& module : modules) {
    if (const auto context = module->context()) {
      const ContextDrain drain(*context);
      (void)context->synchronize();
    }
    module->unload();
  }
  for (const auto& [name, variable] : managed) {
    (void)Driver::get().memory.free(variable.address, AllocationKind::kManaged);
  }
}

}  // namespace olpager::simgpu
