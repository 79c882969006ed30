// Calls by which the GPU reads or writes memory at addresses that the program gives as device
// memory (memsets, copies between devices, values written in stream order). If one lies in an
// exchanged block (exchange.h), the program's changes go before the call and the GPU's come back
// behind it, as with a launch. Thread-safety: any thread.
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

/// The addresses that operations of a stream wait for or write; the first ones, if there are more
/// than the driver takes.
std::vector<CUdeviceptr> addressesOf(const CUstreamBatchMemOpParams* operations, size_t count);

/// Makes the call, which is `make`.
CUresult reaching(const Reaching& where, const std::function<CUresult()>& make);

}  // namespace olpager::forward
