// Boxes between places here, in two contexts.
#include "forwarding/wire/copies.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/structures.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

CUresult copyPeer(Invocation& in) {
  auto head = in.value<forward::CopyHead>();
  const auto from = in.handle<CUcontext>();
  const auto to = in.handle<CUcontext>();
  const CUstream stream = in.streamOf(head.stream, head.per_thread != 0);
  if (!in.ok()) return in.refusal();
  CUDA_MEMCPY3D& box = head.box;
  if (!settleSide(in, box.srcMemoryType, CU_MEMORYTYPE_UNIFIED, box.srcArray) ||
      !settleSide(in, box.dstMemoryType, CU_MEMORYTYPE_UNIFIED, box.dstArray))
    return CUDA_ERROR_INVALID_VALUE;
  if (!in.ok()) return in.refusal();
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcXInBytes = box.srcXInBytes, copy.srcY = box.srcY, copy.srcZ = box.srcZ;
  // Never UNIFIED: the driver would take an address of this process's own memory as well.
  copy.srcMemoryType =
      box.srcMemoryType == CU_MEMORYTYPE_UNIFIED ? CU_MEMORYTYPE_DEVICE : box.srcMemoryType;
  copy.srcDevice = box.srcDevice, copy.srcArray = box.srcArray, copy.srcContext = from;
  copy.srcPitch = box.srcPitch, copy.srcHeight = box.srcHeight;
  copy.dstXInBytes = box.dstXInBytes, copy.dstY = box.dstY, copy.dstZ = box.dstZ;
  copy.dstMemoryType =
      box.dstMemoryType == CU_MEMORYTYPE_UNIFIED ? CU_MEMORYTYPE_DEVICE : box.dstMemoryType;
  copy.dstDevice = box.dstDevice, copy.dstArray = box.dstArray, copy.dstContext = to;
  copy.dstPitch = box.dstPitch, copy.dstHeight = box.dstHeight;
  copy.WidthInBytes = box.WidthInBytes, copy.Height = box.Height, copy.Depth = box.Depth;
  const api::DriverTable& driver = in.driver();
  if (head.in_order == 0 && stream == nullptr) return driver.cuMemcpy3DPeer(&copy);
  const CUresult result = driver.cuMemcpy3DPeerAsync(&copy, stream);
  return result == CUDA_SUCCESS && head.in_order == 0 ? driver.cuStreamSynchronize(stream) : result;
}

}  // namespace olpager::gpunode
