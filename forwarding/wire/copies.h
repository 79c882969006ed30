// How a copy between the client's memory and the worker's travels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "coherence/transport/regions.h"

namespace olpager::forward {

enum class CopyShape : uint8_t { kLinear, kBox2d, kBox3d };

/// Arguments of kCopyIn, kCopyOut and kCopyDevice. The client's side of a box is packed: its rows
/// follow one another.
struct CopyHead {
  uint64_t stream = 0;
  uint32_t number = 0;  // kCopyOut that nobody waits for: Answer::kBytes comes with it
  CopyShape shape = CopyShape::kLinear;
  uint8_t per_thread = 0;  // the default stream is the thread's
  uint8_t in_order = 0;    // in stream order, else when the stream is done
  uint8_t array = 0;       // kLinear: `device` is an array's handle, `offset` bytes into it
  uint64_t device = 0;     // kLinear
  uint64_t offset = 0;
  uint64_t bytes = 0;   // of the client's side
  uint64_t near = 0;    // pinned memory that both have: the client's side is there; no bytes travel
  CUDA_MEMCPY3D box{};  // host pointers mean something in it with `near` alone
  // kLinear, bulk: the client's side is `bytes` of a region of its own from `region_offset` on; the
  // worker moves them. Key 0: none.
  transport::RemoteKey region;
  uint64_t region_offset = 0;
  uint64_t alone = 0;  // nothing is ordered with it but by who waits for it: it is behind nothing
};

/// From so many bytes on a linear copy is a bulk one.
inline constexpr uint64_t kBulkBytes = 256 << 10;

/// The driver takes so many bytes of a copy to the device to its own memory before it returns, and
/// waits for nobody: a copy in order needs no piece, which it would have until the stream is there.
inline constexpr uint64_t kDriverTakesBytes = 64 << 10;

/// The most of a box that comes from the GPU without anybody who waits: as much pinned memory as
/// the worker has in one piece.
inline constexpr uint64_t kLaterBoxBytes = 1 << 20;

}  // namespace olpager::forward
