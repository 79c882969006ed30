// Memory of cuMemCreate that goes to other sessions of this gpunode, or comes from them
// (exports.h).
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

namespace {
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}  // namespace

CUresult exportMemory(Invocation& in) {
  const auto handle = in.handle<CUmemGenericAllocationHandle>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuMemExportToShareableHandle == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  int made = -1;
  CUresult result = in.driver().cuMemExportToShareableHandle(&made, handle, kDescriptor, 0);
  if (result != CUDA_SUCCESS) return result;
  base::UniqueFd descriptor(made);
  forward::ExportToken token;
  result = in.worker().exports().add(std::move(descriptor), &token);
  if (result == CUDA_SUCCESS) in.results().value(token);
  return result;
}

CUresult importMemory(Invocation& in) {
  const auto token = in.value<forward::ExportToken>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuMemImportFromShareableHandle == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  base::UniqueFd descriptor;
  CUresult result = in.worker().exports().take(token, &descriptor);
  if (result != CUDA_SUCCESS) return result;
  CUmemGenericAllocationHandle handle = 0;
  const auto number = static_cast<uintptr_t>(descriptor.get());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how the driver takes it
  result = in.driver().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(number),
                                                      kDescriptor);
  if (result == CUDA_SUCCESS) in.results().value(in.numberFor(handle));
  return result;
}

// Nobody on the program's side has the descriptor any more.
CUresult exportGone(Invocation& in) {
  const auto number = in.value<uint32_t>();
  if (!in.ok()) return in.refusal();
  in.worker().exports().remove(number);
  return CUDA_SUCCESS;
}

}  // namespace olpager::gpunode
