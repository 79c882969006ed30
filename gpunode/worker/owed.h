// A thing, or several, that a call has promised to send behind itself under a number: the client
// waits with what needs it until it has come. The number is answered however the call ends, also by
// an exception: with nothing if nothing will come. Thread-safety: of the thread that makes the
// call.
#pragma once

#include <cstdint>

#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

class Owed {
 public:
  /// `number` 0: nothing is owed. `instead`: what is told where nothing will come.
  Owed(Worker& worker, forward::Answer kind, uint32_t number, CUresult instead = CUDA_SUCCESS)
      : worker_(worker), kind_(kind), number_(number), instead_(instead) {}
  Owed(const Owed&) = delete;
  Owed& operator=(const Owed&) = delete;
  ~Owed() {
    if (number_ != 0) worker_.tell(kind_, number_, instead_, {}, true);
  }
  /// Somebody else will send it.
  void comes() { number_ = 0; }

 private:
  Worker& worker_;
  const forward::Answer kind_;
  uint32_t number_;
  const CUresult instead_;
};

}  // namespace olpager::gpunode
