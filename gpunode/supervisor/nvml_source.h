// The node's own libnvidia-ml.so.1, opened at run time. Thread-safety: one thread. Errors: values
// that it does not answer stay unknown.
#pragma once

#include <string>

#include "coherence/status/status.h"

namespace olpager::gpunode {

class NvmlSource {
 public:
  NvmlSource();
  ~NvmlSource();
  NvmlSource(const NvmlSource&) = delete;
  NvmlSource& operator=(const NvmlSource&) = delete;

  bool there() const { return library_ != nullptr; }
  std::string driverVersion() const;
  /// Fills in the values that change, and those that only NVML knows, of the device with that UUID.
  /// False: it knows no such device.
  bool measure(status::Device& device) const;

 private:
  template <typename Function>
  Function* symbol(const char* name) const;

  void* library_ = nullptr;
};

}  // namespace olpager::gpunode
