// Calls by which the GPU reads or writes memory at addresses that the program gives as device
// memory (memsets, copies between devices, values written in stream order). Where one lies in an
// exchanged block (exchange.h), what the program changed goes before the call and what the GPU
// changes comes back behind it, as with a launch. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

namespace olpager::forward {

struct Reaching {
  std::initializer_list<CUdeviceptr> addresses;
  CUstream stream = nullptr;
  bool per_thread = false;
  bool async = false;  // else what the GPU changed in host memory is there when the call returns
  std::span<const CUdeviceptr> further = {};
};

/// What operations of a stream wait for or write; of more than the driver takes, of the first.
std::vector<CUdeviceptr> addressesOf(const CUstreamBatchMemOpParams* operations, size_t count);

/// Makes the call, which is `make`.
CUresult reaching(const Reaching& where, const std::function<CUresult()>& make);

}  // namespace olpager::forward
