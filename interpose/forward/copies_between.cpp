// Bytes go straight from worker to worker; where these have no link, through this process, a piece
// at a time.
#include "interpose/forward/copies_between.h"

#include <algorithm>
#include <memory>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_copies.h"
#include "interpose/forward/straight_copies.h"
#include "interpose/forward/streams.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kBetweenPiece = 4ull << 20;

// The way to one side: a context, and one of its streams.
struct Reach {
  uint64_t context = 0;  // 0: the caller's
  CUstream stream = nullptr;
  bool per_thread = false;
};

CUresult copyPieces(CUdeviceptr to, const Reach& into, CUdeviceptr from, const Reach& out,
                    uint64_t bytes) {
  const auto piece = std::make_unique_for_overwrite<std::byte[]>(std::min(kBetweenPiece, bytes));
  for (uint64_t at = 0; at < bytes; at += kBetweenPiece) {
    const uint64_t count = std::min(kBetweenPiece, bytes - at);
    {
      const WithContext current(out.context);
      const CUresult result =
          copyFromDevice(piece.get(), from + at, count, out.stream, out.per_thread);
      if (result != CUDA_SUCCESS) return result;
    }
    const WithContext current(into.context);
    const CUresult result = copyToDevice(to + at, piece.get(), count, into.stream, into.per_thread);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult copyThroughHere(CUdeviceptr to, const Reach& into, CUdeviceptr from, const Reach& out,
                         uint64_t bytes) {
  const CUresult result = copyPieces(to, into, from, out, bytes);
  if (result == CUDA_SUCCESS) countThroughHere(bytes);
  return result;
}

CUresult contextOf(const DeviceSide& side, uint64_t* context) {
  *context = reinterpret_cast<uint64_t>(side.context);
  if (*context != 0) return CUDA_SUCCESS;
  return ol_forward_cuPointerGetAttribute(context, CU_POINTER_ATTRIBUTE_CONTEXT, side.address);
}

}  // namespace

bool ofTwoSessions(CUdeviceptr one, CUdeviceptr other) {
  if (!severalSessions()) return false;
  const Session* const first = sessionOfAddress(one);
  const Session* const second = sessionOfAddress(other);
  return first != nullptr && second != nullptr && first != second;
}

CUresult copyBetween(const DeviceSide& to, const DeviceSide& from, uint64_t bytes,
                     bool per_thread) {
  Reach into{0, nullptr, per_thread}, out{0, nullptr, per_thread};
  if (const CUresult result = contextOf(to, &into.context); result != CUDA_SUCCESS) return result;
  if (const CUresult result = contextOf(from, &out.context); result != CUDA_SUCCESS) return result;
  if (bytes == 0) return CUDA_SUCCESS;
  noteAddressesOf(sessionOfAddress(to.address), sessionOfAddress(from.address));
  if (const auto straight = copyStraight(
          {sessionOfAddress(to.address), to.address, into.context, nullptr, per_thread},
          {sessionOfAddress(from.address), from.address, out.context, nullptr, per_thread}, bytes))
    return *straight;
  return copyThroughHere(to.address, into, from.address, out, bytes);
}

CUresult copyBetweenBehind(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, const StreamAt& at) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (at.session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (capturing() && captures(at.stream, at.per_thread))
    return refused("a captured copy between devices of two gpunodes", false);
  // Later calls may be for kernels that use what is copied.
  noteAddressesOf(sessionOfAddress(to), sessionOfAddress(from));
  // The stream comes to here: crossings.h says why the copy is not left behind in it.
  if (const CUresult result = finishStream(at.stream, at.per_thread); result != CUDA_SUCCESS)
    return result;
  Session* const taker = sessionOfAddress(to);
  Session* const sender = sessionOfAddress(from);
  if (const auto straight = copyStraight({taker, to, 0, nullptr, false, true},
                                         {sender, from, 0, nullptr, false, true}, bytes))
    return *straight;
  const OwnStream into(taker), out(sender);
  if (into.stream() == nullptr || out.stream() == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  return copyThroughHere(to, {0, into.stream()}, from, {0, out.stream()}, bytes);
}

}  // namespace olpager::forward
