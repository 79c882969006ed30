// Finds the ranges that operations of cuda.h read and write through structures or arrays: each
// function walks its arguments and names the ranges to a sink. The specification calls them by name
// in ranges(...).
//
// Each function looks at the arguments only as the driver would: a null pointer or an unknown kind
// names nothing and is left for the driver to refuse. Host pointers are named too: by unified
// addressing they may be device memory. Sizes are in bytes. Thread-safety: no state.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace olpager::api::extract {

/// How an operation uses a range; kWrite writes all of its bytes. Values are those of pager::Mode.
enum class Use : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

class RangeSink {
 public:
  virtual ~RangeSink() = default;
  /// [address, + bytes) is used.
  virtual void add(uint64_t address, uint64_t bytes, Use use) = 0;
  /// Memory from `address` on is read and written, how much is not known.
  virtual void addFrom(uint64_t address) = 0;
  /// Bytes of one element of `array`.
  virtual uint64_t arrayElementBytes(CUarray array) = 0;
};

/// a * b, or UINT64_MAX when that does not fit.
constexpr uint64_t saturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
/// a + b, or UINT64_MAX when that does not fit.
constexpr uint64_t saturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
/// Bytes from the first to the last of `height` rows of `width` bytes that are `pitch` bytes apart;
/// 0 when there are none.
constexpr uint64_t span2d(uint64_t pitch, uint64_t width, uint64_t height) {
  return width == 0 || height == 0 ? 0 : saturatingSum(saturatingProduct(pitch, height - 1), width);
}
/// Bytes of one channel of an array format; 1 for formats that are not known.
uint64_t arrayFormatBytes(CUarray_format format);

/// cuMemsetD2D*: `width` in bytes.
void fill2d(RangeSink& sink, CUdeviceptr destination, uint64_t pitch, uint64_t width,
            uint64_t height);
void copy2d(RangeSink& sink, const CUDA_MEMCPY2D* copy);
void copy3d(RangeSink& sink, const CUDA_MEMCPY3D* copy);
void copy3dPeer(RangeSink& sink, const CUDA_MEMCPY3D_PEER* copy);
void copyBatch(RangeSink& sink, const CUdeviceptr* destinations, const CUdeviceptr* sources,
               const size_t* sizes, size_t count);
void copy3dBatch(RangeSink& sink, const CUDA_MEMCPY3D_BATCH_OP* operations, size_t count);
void decompressBatch(RangeSink& sink, const CUmemDecompressParams* parameters, size_t count);
void memOps(RangeSink& sink, const CUstreamBatchMemOpParams* operations, unsigned count);

}  // namespace olpager::api::extract
