#include "gpunode/simgpu/modules/export_tables.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/modules/module.h"

namespace olpager::simgpu {
namespace {

class TableHost final : public interpose::PrivateTableHost {
 public:
  int driverVersion() override {
    int version = 0;
    (void)cuDriverGetVersion(&version);
    return version;
  }

  std::vector<interpose::DeviceIdentity> devices() override {
    std::vector<interpose::DeviceIdentity> all;
    if (requireInit() != CUDA_SUCCESS) return all;
    for (const auto& device : Driver::get().devices) {
      interpose::DeviceIdentity identity{device->uuid, 0, 0, 0};
      device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &identity.pci_domain);
      device->attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &identity.pci_bus);
      device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &identity.pci_device);
      all.push_back(identity);
    }
    return all;
  }

  CUcontext currentContext() override {
    const auto context = simgpu::currentContext();
    if (context == nullptr) return nullptr;
    // The asker may attach values to it, whose destructors its teardown has to run.
    Registry::get().watch(*context);
    return context->handle();
  }

  CUresult primaryContextHandle(CUdevice ordinal, CUcontext* out) override {
    if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
    Device* device = Driver::get().device(ordinal);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *out = device->primary->handle();
    return CUDA_SUCCESS;
  }

  CUresult contextId(CUcontext handle, uint64_t* id) override {
    if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
    const auto context =
        handle == nullptr ? simgpu::currentContext() : Driver::get().contexts.find(handle);
    if (context == nullptr)
      return handle == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = context->id();
    return CUDA_SUCCESS;
  }

  CUresult streamId(CUcontext handle, CUstream stream, uint64_t* id) override {
    if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
    const auto context =
        handle == nullptr ? simgpu::currentContext() : Driver::get().contexts.find(handle);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    const auto found = context->stream(stream, false);
    if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *id = found->id();
    return CUDA_SUCCESS;
  }

  CUresult moduleFunctions(CUmodule handle, std::vector<CUfunction>* functions) override {
    if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
    const auto module = Registry::get().modules.find(handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& function : module->functions()) functions->push_back(function->handle);
    return CUDA_SUCCESS;
  }

  void unsupportedCalled(const char* table, int slot) override {
    report("private driver table " + std::string(table) + ": function " + std::to_string(slot) +
           " is not supported");
  }
};

}  // namespace

interpose::PrivateTables& privateTables() {
  static auto* const tables = new interpose::PrivateTables(*new TableHost);
  return *tables;
}

}  // namespace olpager::simgpu
