// One kernel on several devices at once.
#include <deque>
#include <vector>

#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/owed.h"
#include "gpunode/worker/parameters.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

// One device's part. False: it can't be launched so, and `why` is what the call fails with.
bool take(Invocation& in, std::deque<Parameters>& parameters, CUDA_LAUNCH_PARAMS& part,
          CUresult* why) {
  const auto head = in.value<forward::LaunchHead>();
  if (head.parameter_bytes > forward::kMostParameterBytes || head.attributes != 0 ||
      head.pinned != 0)
    in.arguments().fail();
  const auto sent = in.arguments().raw(head.parameter_bytes);
  const ParameterPlaces* places = nullptr;
  part.function = in.kernel(head.function, &places);
  part.hStream = in.translated<CUstream>(head.stream);
  *why = CUDA_SUCCESS;
  if (!in.ok()) {
    *why = in.refusal();
    return false;
  }
  part.gridDimX = head.grid[0], part.gridDimY = head.grid[1], part.gridDimZ = head.grid[2];
  part.blockDimX = head.block[0], part.blockDimY = head.block[1], part.blockDimZ = head.block[2];
  part.sharedMemBytes = head.shared;
  if (head.by_pointers != 0 && places == nullptr)
    places = placesNow(in, head.function, part.function);
  Parameters& block = parameters.emplace_back(sent, places);
  part.kernelParams = block.pointers();
  // There is no other way to give them.
  if (block.extra() != nullptr) *why = CUDA_ERROR_INVALID_VALUE;
  return *why == CUDA_SUCCESS;
}

}  // namespace

CUresult launchOnDevices(Invocation& in) {
  const auto head = in.value<forward::DevicesLaunchHead>();
  if (head.count == 0 || head.count > forward::kMostLaunchDevices) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  Owed owed(in.worker(), forward::Answer::kHostBytes, head.pinned != 0 ? head.count : 0);
  std::deque<Parameters> parameters;
  std::vector<CUDA_LAUNCH_PARAMS> parts(head.count);
  for (auto& part : parts) {
    if (CUresult why = CUDA_SUCCESS; !take(in, parameters, part, &why)) return why;
  }
  if (head.pinned > in.arguments().left() / sizeof(uint64_t)) in.arguments().fail();
  std::vector<uint64_t> pinned(in.ok() ? head.pinned : 0);
  for (auto& block : pinned) block = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  const auto launch = in.driver().cuLaunchCooperativeKernelMultiDevice;
  if (launch == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = launch(parts.data(), head.count, head.flags);
  if (result != CUDA_SUCCESS || head.pinned == 0) return result;
  for (const auto& part : parts)
    in.worker().exchange().owe(in.worker().contextOf(part.hStream), part.hStream, pinned);
  owed.comes();
  return result;
}

}  // namespace olpager::gpunode
