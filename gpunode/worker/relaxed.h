// While something captures, the driver refuses some calls to threads that don't say that they know
// what they do. This thread does, as long as it lives. Thread-safety: of the thread that makes it.
#pragma once

#include <cuda.h>

#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

class Relaxed {
 public:
  explicit Relaxed(const api::DriverTable& driver) : driver_(driver) { exchange(); }
  ~Relaxed() { exchange(); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  void exchange() {
    if (driver_.cuThreadExchangeStreamCaptureMode != nullptr)
      (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  const api::DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace olpager::gpunode
