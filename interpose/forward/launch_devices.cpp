// One kernel on several devices, whose blocks may wait for each other. All of them are one
// session's: its driver makes one launch of it.
#include <deque>

#include "forwarding/wire/launch_wire.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/launch.h"

namespace olpager::forward {
namespace {

LaunchHead headOf(const CUDA_LAUNCH_PARAMS& given) {
  LaunchHead head;
  head.kind = LaunchKind::kCooperative;
  head.function = reinterpret_cast<uint64_t>(given.function);
  head.stream = reinterpret_cast<uint64_t>(given.hStream);
  head.grid[0] = given.gridDimX, head.grid[1] = given.gridDimY, head.grid[2] = given.gridDimZ;
  head.block[0] = given.blockDimX, head.block[1] = given.blockDimY, head.block[2] = given.blockDimZ;
  head.shared = given.sharedMemBytes;
  head.by_pointers = given.kernelParams != nullptr ? 1 : 0;
  return head;
}

// The default streams can't take part.
bool isMade(CUstream stream) {
  return stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count,
                                                         unsigned flags) {
  if (list == nullptr || count == 0 || count > kMostLaunchDevices) return CUDA_ERROR_INVALID_VALUE;
  Session* const session = Route().handle(list[0].hStream).handle(list[0].function).session();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  std::deque<ParameterBlock> blocks;
  for (unsigned i = 0; i < count; ++i) {
    if (list[i].function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!isMade(list[i].hStream)) return CUDA_ERROR_INVALID_VALUE;
    if (Route().handle(list[i].hStream).session() != session)
      return refused("cuLaunchCooperativeKernelMultiDevice on devices of several gpunodes", true);
    const CUresult packed =
        packParameters(list[i].function, list[i].kernelParams, nullptr, blocks.emplace_back());
    if (packed != CUDA_SUCCESS) return packed;
    noteAddresses(session, blocks[i].data(), blocks[i].bytes());
  }
  std::vector<uint64_t> pinned;
  if (!capturing()) pinned = sendPinned(session);  // else the driver refuses it
  Call call(Operation::kLaunchOnDevices, session);
  call.value(DevicesLaunchHead{flags, count, static_cast<uint32_t>(pinned.size()), 0});
  for (unsigned i = 0; i < count; ++i) {
    LaunchHead head = headOf(list[i]);
    head.parameter_bytes = static_cast<uint32_t>(blocks[i].bytes());
    call.value(head);
    call.raw(blocks[i].data(), blocks[i].bytes());
  }
  call.raw(pinned.data(), pinned.size() * sizeof pinned[0]);
  const unsigned answers = pinned.empty() ? 0 : count;
  for (unsigned i = 0; i < answers; ++i) session->arrivals().expectChanges();
  call.mayWait();
  if (const CUresult begun = call.begin(true); begun != CUDA_SUCCESS) {
    for (unsigned i = 0; i < answers; ++i) session->arrivals().changesDoNotCome();
    return begun;
  }
  return call.finish();
}

}  // extern "C"
