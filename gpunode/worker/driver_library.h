// The driver as a worker has it: libolpager.so, opened, in local mode. Thread-safety: load() once,
// before all else; the rest from any thread.
#pragma once

#include <cuda.h>

#include <string>

#include "base/result.h"
#include "forwarding/placing.h"
#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

/// The part of the range whose addresses the client gives out.
struct Placed {
  CUdeviceptr base = 0;
  size_t bytes = 0;                          // 0: there is none
  forward::AllocateAt allocateAt = nullptr;  // null: there is none
};

class DriverLibrary {
 public:
  /// Opens it and starts the driver. The Error is one line.
  Status load(const std::string& path);

  const api::DriverTable& table() const { return table_; }
  int devices() const { return devices_; }
  const Placed& placed() const { return placed_; }
  /// The first device's room.
  OlpagerRoom room() const;
  /// Something of the library's by its name; nullptr: it has none of that name.
  void* symbol(const char* name) const;
  /// The same of a function.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  /// The same. False: `into` is nullptr.
  template <typename Function>
  bool find(const char* name, Function*& into) const {
    into = function<Function>(name);
    return into != nullptr;
  }

 private:
  void* library_ = nullptr;
  api::DriverTable table_{};
  int devices_ = 0;
  Placed placed_;
};

}  // namespace olpager::gpunode
