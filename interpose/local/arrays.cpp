// Arrays are the driver's memory, outside of the pager's budget: where there is no room for one,
// the pager makes it.
#include <algorithm>

#include "interpose/api/range_extractors.h"
#include "interpose/local/hook.h"
#include "interpose/local/relief.h"

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions

namespace {

template <typename Descriptor>
uint64_t bytesOf(const Descriptor* descriptor, uint64_t depth) {
  if (descriptor == nullptr) return 0;
  const uint64_t texel = olpager::api::extract::arrayFormatBytes(descriptor->Format) *
                         std::max(descriptor->NumChannels, 1u);
  uint64_t bytes = std::max<uint64_t>(texel, 1);
  for (const uint64_t extent :
       {static_cast<uint64_t>(descriptor->Width), static_cast<uint64_t>(descriptor->Height), depth})
    bytes = olpager::api::extract::saturatingProduct(bytes, std::max<uint64_t>(extent, 1));
  return std::min(bytes, uint64_t{1} << 48);
}

// `create` again with room for an array of `bytes`, laid out in tiles.
template <typename Handle, typename Create>
CUresult made(const Handle* out, uint64_t bytes, Create create) {
  return withRelief({bytes + bytes / 8 + kReliefSlack}, create,
                    [&] { return reinterpret_cast<uint64_t>(*out); });
}

}  // namespace

OLPAGER_HOOK(cuArrayCreate_v2)(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  return made(out, bytesOf(descriptor, 1),
              [&] { return driver().cuArrayCreate_v2(out, descriptor); });
}

OLPAGER_HOOK(cuArrayCreate)(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* descriptor) {
  return made(out, bytesOf(descriptor, 1), [&] { return driver().cuArrayCreate(out, descriptor); });
}

OLPAGER_HOOK(cuArray3DCreate_v2)(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return made(out, bytesOf(descriptor, descriptor != nullptr ? descriptor->Depth : 1),
              [&] { return driver().cuArray3DCreate_v2(out, descriptor); });
}

OLPAGER_HOOK(cuArray3DCreate)(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* descriptor) {
  return made(out, bytesOf(descriptor, descriptor != nullptr ? descriptor->Depth : 1),
              [&] { return driver().cuArray3DCreate(out, descriptor); });
}

OLPAGER_HOOK(cuArrayDestroy)(CUarray array) {
  const CUresult result = driver().cuArrayDestroy(array);
  if (result == CUDA_SUCCESS) loanGone(array);
  return result;
}

// All levels together are at most twice the first.
OLPAGER_HOOK(cuMipmappedArrayCreate)
(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned int levels) {
  return made(out, 2 * bytesOf(descriptor, descriptor != nullptr ? descriptor->Depth : 1),
              [&] { return driver().cuMipmappedArrayCreate(out, descriptor, levels); });
}

OLPAGER_HOOK(cuMipmappedArrayDestroy)(CUmipmappedArray array) {
  const CUresult result = driver().cuMipmappedArrayDestroy(array);
  if (result == CUDA_SUCCESS) loanGone(array);
  return result;
}
