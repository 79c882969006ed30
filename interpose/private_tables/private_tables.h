// The private function tables that the CUDA runtime and NVIDIA's libraries ask a driver for by UUID
// (cuGetExportTable), answered without NVIDIA's driver: cudart 13.0 static and shared, cuBLAS,
// cuBLASLt, cuFFT start on them, NVRTC and nvJitLink find what they compiled before
// (compile_cache.h). Tables that profilers ask for are refused; those have another way. The same
// code serves every stand-in for a driver; PrivateTableHost brings the facts that it must know.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "interpose/private_tables/context_storage.h"

namespace olpager::interpose {

/// A device's entry in the integrity message; the same values as cuDeviceGetUuid and
/// cuDeviceGetAttribute.
struct DeviceIdentity {
  std::array<uint8_t, 16> uuid;
  int32_t pci_domain;
  int32_t pci_bus;
  int32_t pci_device;
};

/// Facts that the tables need from the code that plays the driver. Called from any thread, without
/// locks held here.
class PrivateTableHost {
 public:
  virtual ~PrivateTableHost() = default;

  /// As cuDriverGetVersion answers.
  virtual int driverVersion() = 0;
  /// Devices in ordinal order, as cuDeviceGetCount counts them; may be called before cuInit.
  virtual std::vector<DeviceIdentity> devices() = 0;
  /// The calling thread's current context, or null.
  virtual CUcontext currentContext() = 0;
  /// The handle that cuDevicePrimaryCtxRetain will return for this device, without activating the
  /// context.
  virtual CUresult primaryContextHandle(CUdevice device, CUcontext* context) = 0;
  /// As cuCtxGetId; a null context means the current one.
  virtual CUresult contextId(CUcontext context, uint64_t* id) = 0;
  /// As cuStreamGetId for a stream of `context` (0, 1 and 2 are the default streams).
  virtual CUresult streamId(CUcontext context, CUstream stream, uint64_t* id) = 0;
  /// All functions of a module, as cuModuleEnumerateFunctions would list them.
  virtual CUresult moduleFunctions(CUmodule module, std::vector<CUfunction>* functions) = 0;
  /// A private function that nobody here knows was called: told once for each, for a line in the
  /// log.
  virtual void unsupportedCalled(const char* table, int slot) = 0;
};

/// The tables of one process. Only one can exist at a time: a table's functions carry no user data.
/// Thread-safety: all members from any thread. The tables' addresses never change (they are part of
/// the integrity message), and stay valid after the object is gone, when every function answers
/// CUDA_ERROR_DEINITIALIZED.
class PrivateTables {
 public:
  /// `host` must outlive the object. Exactly one object at a time.
  explicit PrivateTables(PrivateTableHost& host);
  ~PrivateTables();
  PrivateTables(const PrivateTables&) = delete;
  PrivateTables& operator=(const PrivateTables&) = delete;

  /// As cuGetExportTable: CUDA_ERROR_INVALID_VALUE for a table that is not served, as a driver
  /// answers an unknown UUID.
  CUresult find(const CUuuid* uuid, const void** table);

  /// To be called when a context is reset or destroyed, before its handle can be used again: runs
  /// the destructors of what libraries attached to it.
  void contextGone(CUcontext context) { storage_.contextGone(context); }

  PrivateTableHost& host() { return host_; }
  ContextStorage& storage() { return storage_; }

 private:
  PrivateTableHost& host_;
  ContextStorage storage_;
};

/// True for the table by which CUPTI, and so profilers, begin to look at a driver.
bool isProfilers(const CUuuid& uuid);

/// The fixed header of the message that the integrity check signs, in the order that the runtime
/// expects.
struct IntegrityHeader {
  uint32_t driver_version;
  uint32_t check_version;
  uint32_t process_id;
  uint32_t thread_low;  ///< low half of pthread_self()
  uint64_t cudart_table;
  uint64_t integrity_table;
  uint64_t check_function;
  uint64_t unix_seconds;
};
static_assert(sizeof(IntegrityHeader) == 48);

/// The check's answer for `check_version % 10 >= 2`: HMAC-MD2 over the header and 28 bytes for each
/// device.
std::array<uint8_t, 16> integrityDigest(const IntegrityHeader& header,
                                        std::span<const DeviceIdentity> devices);

/// The same over a message that is already put together (for known-answer tests).
std::array<uint8_t, 16> integrityDigest(std::span<const uint8_t> message);

}  // namespace olpager::interpose
