// While something captures, the driver refuses some calls to threads that don't say that they know
// what they do. This thread does, as long as it lives. Before the driver is initialised it changes
// nothing, so a thread that is older than that makes one for each piece of its work. Thread-safety:
// of the thread that makes it.
#pragma once

#include <cuda.h>

#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

class Relaxed {
 public:
  explicit Relaxed(const api::DriverTable& driver) : driver_(driver), exchanged_(exchange()) {}
  ~Relaxed() {
    if (exchanged_) (void)exchange();
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  bool exchange() {
    return driver_.cuThreadExchangeStreamCaptureMode != nullptr &&
           driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  const api::DriverTable& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool exchanged_;
};

}  // namespace olpager::gpunode
