// The driver's private tables as a client without a driver gives them. Thread-safety: any thread.
#pragma once

#include <vector>

#include "interpose/private_tables/private_tables.h"

namespace olpager::forward {

/// Asks the sessions.
class DriverTableHost final : public interpose::PrivateTableHost {
 public:
  int driverVersion() override;
  std::vector<interpose::DeviceIdentity> devices() override;
  CUcontext currentContext() override;
  CUresult primaryContextHandle(CUdevice device, CUcontext* context) override;
  CUresult contextId(CUcontext context, uint64_t* id) override;
  CUresult streamId(CUcontext context, CUstream stream, uint64_t* id) override;
  CUresult moduleFunctions(CUmodule module, std::vector<CUfunction>* functions) override;
  void unsupportedCalled(const char* table, int slot) override;
};

struct DriverTables {
  DriverTableHost host;
  interpose::PrivateTables tables{host};
};

}  // namespace olpager::forward
