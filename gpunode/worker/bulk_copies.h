// Long copies between the client's memory and the device. The bytes pass through pinned pieces
// (staging.h): the network moves one while the GPU moves others. The worker asks for both
// directions; of the client's memory it reads or writes what the call names alone.
//
// Order is that of the calls: a copy has fetched all its bytes, and enqueued all its pieces, when
// it returns. Thread-safety: of the thread that makes the call.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "coherence/transport/regions.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/owed.h"

namespace olpager::gpunode {

struct BulkCopy {
  CUstream stream = nullptr;
  uint64_t context = 0;     // of the stream, which is current (the client's number)
  bool in_order = false;    // else the caller waits until the stream is done
  CUarray array = nullptr;  // null: `device` is an address
  CUdeviceptr device = 0;
  uint64_t offset = 0;  // into the array
  uint64_t bytes = 0;
  transport::RemoteKey region;  // the client's side
  uint64_t region_offset = 0;
  /// True if the region has these bytes, as far as its key says.
  bool fits() const {
    return bytes != 0 && bytes <= region.length && region_offset <= region.length - bytes;
  }
};

CUresult bulkIn(Invocation& in, const BulkCopy& copy);
/// `number` 0: returns when the bytes are at the client. Else they go behind what is in the stream,
/// with Answer::kBytes of this number behind them; `owed` then is the copy's own to settle.
CUresult bulkOut(Invocation& in, const BulkCopy& copy, uint32_t number, Owed& owed);

}  // namespace olpager::gpunode
