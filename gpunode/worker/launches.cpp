// Kernels: their parameters' places, and their launches from one block of parameters.
#include <algorithm>

#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/owed.h"
#include "gpunode/worker/parameters.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

using forward::LaunchHead;
using forward::LaunchKind;

namespace {

// A driver may load a kernel's code when it is first asked for something of that, behind all that
// runs, and answers nobody meanwhile. A host function that runs may wait for such an answer
// (client_functions.h). So the function's end is waited for, as the driver would; others are served
// meanwhile.
void awaitFunctions(Invocation& in, CUfunction function) {
  if (!in.worker().streamsWaitForClient() || in.driver().cuFuncLoad == nullptr) return;
  Lead::waitsForMemory();
  in.worker().clientFunctions().awaitGraphs();
  (void)in.driver().cuFuncLoad(function);  // waits first (interpose/local/modules.h)
}

}  // namespace

CUresult parameterPlaces(Invocation& in, CUfunction function, ParameterPlaces& places) {
  awaitFunctions(in, function);
  const api::DriverTable& driver = in.driver();
  bool is_kernel = true;  // which of the two the handle is, it does not say
  for (size_t i = 0; i < forward::kMostParameters; ++i) {
    size_t offset = 0, bytes = 0;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (is_kernel)
      result =
          driver.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), i, &offset, &bytes);
    if (i == 0 && result == CUDA_ERROR_INVALID_HANDLE) is_kernel = false;
    if (!is_kernel) result = driver.cuFuncGetParamInfo(function, i, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) break;
    if (result != CUDA_SUCCESS) return result;
    places.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
  }
  return CUDA_SUCCESS;
}

const ParameterPlaces* placesNow(Invocation& in, uint64_t number, CUfunction function) {
  ParameterPlaces places;
  if (parameterPlaces(in, function, places) != CUDA_SUCCESS) return nullptr;
  return in.worker().handles().notePlaces(number, std::move(places));
}

// Asked before a kernel's first launch: they are noted for its launches.
CUresult parameters(Invocation& in) {
  const auto number = in.peek<uint64_t>();
  const auto function = in.handle<CUfunction>();
  if (!in.ok()) return in.refusal();
  ParameterPlaces places;
  if (const CUresult error = parameterPlaces(in, function, places); error != CUDA_SUCCESS)
    return error;
  in.results().value(static_cast<uint32_t>(places.size()));
  for (const auto& place : places) in.results().value(place);
  (void)in.worker().handles().notePlaces(number, std::move(places));
  return CUDA_SUCCESS;
}

bool isPlain(CUlaunchAttributeID attribute) {
  return attribute != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
         attribute != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT &&
         attribute != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
}

namespace {

// Those of a launch; the call fails when they are too many, or hold handles.
void takeAttributes(Invocation& in, const LaunchHead& head,
                    CUlaunchAttribute (&into)[forward::kMostAttributes]) {
  if (head.attributes > forward::kMostAttributes || head.kind > LaunchKind::kEx)
    in.arguments().fail();
  for (uint32_t i = 0; in.ok() && i < head.attributes; ++i) {
    into[i] = in.value<CUlaunchAttribute>();
    if (!isPlain(into[i].id)) in.arguments().fail();
  }
}

CUlaunchConfig configOf(const LaunchHead& head, CUstream stream, CUlaunchAttribute* attributes) {
  CUlaunchConfig config{};
  config.gridDimX = head.grid[0], config.gridDimY = head.grid[1], config.gridDimZ = head.grid[2];
  config.blockDimX = head.block[0], config.blockDimY = head.block[1],
  config.blockDimZ = head.block[2];
  config.sharedMemBytes = head.shared;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = head.attributes;
  return config;
}

}  // namespace

CUresult clusters(Invocation& in) {
  const auto question = in.value<forward::ClusterQuestion>();
  const auto head = in.value<LaunchHead>();
  CUlaunchAttribute attributes[forward::kMostAttributes];
  takeAttributes(in, head, attributes);
  const auto function = in.translated<CUfunction>(head.function);
  const CUstream stream = in.streamOf(head.stream, head.per_thread != 0);
  if (!in.ok()) return in.refusal();
  const CUlaunchConfig config = configOf(head, stream, attributes);
  const auto ask = question == forward::ClusterQuestion::kMostActive
                       ? in.driver().cuOccupancyMaxActiveClusters
                       : in.driver().cuOccupancyMaxPotentialClusterSize;
  if (ask == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  int answer = 0;
  const CUresult result = ask(&answer, function, &config);
  if (result == CUDA_SUCCESS) in.results().value(static_cast<int32_t>(answer));
  return result;
}

CUresult launch(Invocation& in) {
  const auto head = in.value<LaunchHead>();
  Owed owed(in.worker(), forward::Answer::kHostBytes, head.pinned != 0 ? 1 : 0);
  CUlaunchAttribute attributes[forward::kMostAttributes];
  takeAttributes(in, head, attributes);
  if (!in.ok()) return in.refusal();
  const auto sent = in.arguments().raw(head.parameter_bytes);
  const ParameterPlaces* places = nullptr;
  const auto function = in.kernel(head.function, &places);
  const CUstream stream = in.streamOf(head.stream, head.per_thread != 0);
  if (head.pinned > in.arguments().left() / sizeof(uint64_t)) in.arguments().fail();
  std::vector<uint64_t> pinned(in.ok() ? head.pinned : 0);
  for (auto& block : pinned) block = in.value<uint64_t>();
  if (!in.ok() || head.parameter_bytes > forward::kMostParameterBytes) return in.refusal();
  if (head.by_pointers != 0 && places == nullptr) places = placesNow(in, head.function, function);
  Parameters parameters(sent, head.by_pointers != 0 ? places : nullptr);
  const api::DriverTable& driver = in.driver();
  CUresult result = CUDA_SUCCESS;
  if (head.kind == LaunchKind::kKernel || (head.kind == LaunchKind::kEx && head.attributes == 0)) {
    result = driver.cuLaunchKernel(function, head.grid[0], head.grid[1], head.grid[2],
                                   head.block[0], head.block[1], head.block[2], head.shared, stream,
                                   parameters.pointers(), parameters.extra());
  } else if (head.kind == LaunchKind::kCooperative && parameters.extra() == nullptr) {
    result = driver.cuLaunchCooperativeKernel(function, head.grid[0], head.grid[1], head.grid[2],
                                              head.block[0], head.block[1], head.block[2],
                                              head.shared, stream, parameters.pointers());
  } else {
    CUlaunchConfig config = configOf(head, stream, attributes);
    if (head.kind == LaunchKind::kCooperative) {
      attributes[0] = {};
      attributes[0].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attributes[0].value.cooperative = 1;
      config.numAttrs = 1;
    }
    result = driver.cuLaunchKernelEx(&config, function, parameters.pointers(), parameters.extra());
  }
  if (result == kOlpagerSuspended) owed.comes();  // when the launch is made again
  if (head.pinned == 0 || result != CUDA_SUCCESS) return result;
  in.worker().exchange().owe(in.worker().contextOf(stream), stream, std::move(pinned));
  owed.comes();
  return result;
}

}  // namespace olpager::gpunode
