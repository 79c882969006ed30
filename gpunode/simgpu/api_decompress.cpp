// cuMemBatchDecompressAsync: pieces in LZ4's block format, where the devices have OL_SIM_EXTRAS.
#include "gpunode/simgpu/api.h"

#include <lz4.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpunode/simgpu/capture.h"
#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"

namespace olpager::simgpu {
namespace {

// Between memory as the device sees it and the host's, `write` to the device. False: the device has
// nothing there.
bool transfer(const Device& device, uint64_t address, std::byte* host, size_t bytes, bool write) {
  while (bytes != 0) {
    Translation at;
    if (!Driver::get().memory.translate(device, address, &at) || (write && !at.writable))
      return false;
    const size_t piece = std::min<size_t>(bytes, at.bytes);
    std::memcpy(write ? at.host : host, write ? host : at.host, piece);
    address += piece, host += piece, bytes -= piece;
  }
  return true;
}

CUresult decompress(const Device& device, const CUmemDecompressParams& piece) {
  std::vector<std::byte> from(piece.srcNumBytes), to(kMostDecompressed);
  if (!transfer(device, reinterpret_cast<uint64_t>(piece.src), from.data(), from.size(), false))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  const int made = LZ4_decompress_safe(reinterpret_cast<const char*>(from.data()),
                                       reinterpret_cast<char*>(to.data()),
                                       static_cast<int>(from.size()), static_cast<int>(to.size()));
  if (made < 0) return CUDA_ERROR_LAUNCH_FAILED;
  auto actual = static_cast<uint32_t>(made);
  const bool written =
      transfer(device, reinterpret_cast<uint64_t>(piece.dst), to.data(), actual, true) &&
      transfer(device, reinterpret_cast<uint64_t>(piece.dstActBytes),
               reinterpret_cast<std::byte*>(&actual), sizeof actual, true);
  return written ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult check(const CUmemDecompressParams& piece) {
  const auto known = [](const void* at) {
    return Driver::get().memory.known(reinterpret_cast<uint64_t>(at));
  };
  if (piece.algo != CU_MEM_DECOMPRESS_ALGORITHM_LZ4) return CUDA_ERROR_NOT_SUPPORTED;
  const bool padded = std::all_of(std::begin(piece.padding), std::end(piece.padding),
                                  [](auto b) { return b == 0; });
  if (!padded || piece.srcNumBytes == 0 || piece.srcNumBytes > kMostDecompressed ||
      piece.dstNumBytes > kMostDecompressed || !known(piece.src) || !known(piece.dst) ||
      !known(piece.dstActBytes))
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult batch(const CUmemDecompressParams* pieces, size_t count, unsigned flags, size_t* wrong,
               CUstream handle, bool per_thread) {
  constexpr size_t kMost = 65536;
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  if (!Driver::get().settings.extras) return notSupported("cuMemBatchDecompressAsync");
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (wrong != nullptr) *wrong = SIZE_MAX;
  if (const CUresult error = requireStream(handle, per_thread, &context, &stream);
      error != CUDA_SUCCESS)
    return error;
  if (pieces == nullptr || count == 0 || count > kMost || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = notInCapture(*stream); error != CUDA_SUCCESS) return error;
  for (size_t i = 0; i < count; ++i) {
    if (const CUresult error = check(pieces[i]); error != CUDA_SUCCESS) {
      if (wrong != nullptr) *wrong = i;
      return error;
    }
  }
  context->submit(
      *stream, makeOp("decompression", [all = std::vector(pieces, pieces + count)](Context& own) {
        for (const auto& piece : all) {
          if (const CUresult error = decompress(own.device(), piece); error != CUDA_SUCCESS)
            return error;
        }
        return CUDA_SUCCESS;
      }));
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace olpager::simgpu

using namespace olpager::simgpu;

extern "C" {

OLSIM_STREAM_FUNCTION(cuMemBatchDecompressAsync, _ptsz,
                      (CUmemDecompressParams * pieces, size_t count, unsigned flags, size_t* wrong,
                       CUstream stream),
                      { return batch(pieces, count, flags, wrong, stream, kPerThread); })

}  // extern "C"
