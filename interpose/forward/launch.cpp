// Launches: the parameters are put into one block, by a layout that the worker is asked for once
// for each kernel, and sent one way, but for the first of a kind, which waits for the driver's
// answer. The program's changes in pinned memory that they name go before.
#define XXH_INLINE_ALL  // nothing of it is exported
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "forwarding/wire/driver_environment.h"
#include "forwarding/wire/launch_wire.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/arrivals.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/program.h"
#include "interpose/forward/read_environment.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/trips.h"

namespace olpager::forward {
namespace {

ParameterLayouts& layouts() { return *program().parts().layouts; }
TakenLaunches& taken() { return *program().parts().taken_launches; }

// True if the code that the program loaded says so as well.
bool agrees(CUfunction function, std::span<const ParameterPlace> places) {
  const KnownKernels& known = *program().parts().known_kernels;
  const auto handle = reinterpret_cast<uint64_t>(function);
  const char* name = nullptr;
  if (!known.hasName(handle) && ol_forward_generated_cuFuncGetName(&name, function) != CUDA_SUCCESS)
    (void)ol_forward_generated_cuKernelGetName(&name, reinterpret_cast<CUkernel>(function));
  return known.agrees(handle, places, name != nullptr ? name : "");
}

CUresult askLayout(CUfunction function, std::shared_ptr<const ParameterLayout>* out) {
  Call call(Operation::kParameters, Route().handle(function));
  call.value(reinterpret_cast<uint64_t>(function));
  const CUresult result = call.sync();
  if (!call.answered()) return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
  auto made = std::make_shared<ParameterLayout>();
  const auto count = call.reply().value<uint32_t>();
  bool believed = count <= kMostParameters;
  for (uint32_t i = 0; believed && i < count; ++i) {
    const auto place = call.reply().value<ParameterPlace>();
    believed = call.reply().ok() && place.offset >= made->bytes &&
               place.offset <= kMostParameterBytes &&
               place.bytes <= kMostParameterBytes - place.offset;
    made->places.push_back(place);
    made->bytes = place.offset + place.bytes;
  }
  if (!believed || !agrees(function, made->places)) {
    base::logError(
        "gpunode %s says of a kernel's parameters what the kernel's code does not: the kernel is "
        "not launched",
        call.session()->executor().name().c_str());
    return CUDA_ERROR_UNKNOWN;
  }
  *out = made;
  ParameterLayouts& all = layouts();
  std::unique_lock lock(all.mutex);
  all.of[reinterpret_cast<uint64_t>(function)] = made;
  return result;
}

// A launch without its grid, its streams and what its parameters hold, in `context`: one kernel of
// a library runs on all devices, whose limits and settings of it are their own. The hash of a
// cooperative one has the grid, which has to fit as well.
uint64_t hashOf(LaunchHead head, const CUlaunchAttribute* attributes, uint64_t context) {
  head.stream = 0;
  head.per_thread = 0;
  head.pinned = 0;
  bool grid = head.kind == LaunchKind::kCooperative;
  uint64_t seed = context;
  // Programs leave what an attribute has no use for as it happens to be.
  for (uint32_t i = 0; i < head.attributes; ++i) {
    uint32_t means[4] = {static_cast<uint32_t>(attributes[i].id)};
    if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) grid = true;
    if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      std::memcpy(means + 1, &attributes[i].value.clusterDim,
                  sizeof attributes[i].value.clusterDim);
    seed = XXH3_64bits_withSeed(means, sizeof means, seed);
  }
  if (!grid) std::fill(std::begin(head.grid), std::end(head.grid), 1);
  return XXH3_64bits_withSeed(&head, sizeof head, seed);
}

// Dimensions that no kernel can have.
bool gridFits(const LaunchHead& head) {
  constexpr uint32_t kMostX = 0x7fffffff, kMost = 0xffff;
  return head.grid[0] <= kMostX && head.grid[1] <= kMost && head.grid[2] <= kMost;
}

CUresult send(LaunchHead head, const CUlaunchAttribute* attributes, void** parameters,
              void** extra) {
  if (head.function == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (int i = 0; i < 3; ++i) {
    if (head.grid[i] == 0 || head.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  if (head.attributes > kMostAttributes || !gridFits(head)) return CUDA_ERROR_INVALID_VALUE;
  ParameterBlock block;
  const CUresult packed =
      packParameters(reinterpret_cast<CUfunction>(head.function), parameters, extra, block);
  if (packed != CUDA_SUCCESS) return packed;
  head.parameter_bytes = static_cast<uint32_t>(block.bytes());
  head.by_pointers = parameters != nullptr ? 1 : 0;
  Session* const session = Route().handle(head.stream).handle(head.function).session();
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  noteAddresses(session, block.data(), block.bytes());
  std::vector<uint64_t> pinned;
  // A captured launch is exchanged at each launch of its graph.
  const bool captured =
      capturing() && captures(reinterpret_cast<CUstream>(head.stream), head.per_thread != 0);
  if (!captured) pinned = sendPinned(session);
  head.pinned = static_cast<uint32_t>(pinned.size());
  noteLaunch(*session, !pinned.empty());
  for (uint32_t i = 0; i < head.attributes; ++i)
    if (!travels(attributes[i]))
      return refused("a launch with an event or a node in its attributes", false);
  if (head.pinned != 0) session->arrivals().expectChanges();
  const auto sent = [&](CUresult result) {
    if (result != CUDA_SUCCESS && head.pinned != 0) session->arrivals().changesDoNotCome();
    return result;
  };
  const uint64_t context =
      contextOfStream(*session, reinterpret_cast<CUstream>(head.stream), contextIn(session));
  Call call(Operation::kLaunch, session);
  call.inStream(reinterpret_cast<CUstream>(head.stream), head.per_thread != 0);
  call.runs(head.function, context);
  call.usesAddresses(block.data(), block.bytes());
  call.value(head);
  for (uint32_t i = 0; i < head.attributes; ++i) call.value(attributes[i]);
  call.raw(block.data(), block.bytes());
  call.raw(pinned.data(), pinned.size() * sizeof pinned[0]);
  const uint64_t hash = hashOf(head, attributes, context);
  if (taken().has(hash) && !capturing()) return sent(call.oneWay());
  // The program hears of what can't be launched from the launch itself.
  call.mayWait();
  if (const CUresult begun = sent(call.begin(true)); begun != CUDA_SUCCESS) return begun;
  const CUresult result = call.finish();
  if (result == CUDA_SUCCESS) taken().note(hash, head);
  return result;
}

CUresult launch(const LaunchHead& head, const CUlaunchAttribute* attributes, void** parameters,
                void** extra) {
  const CUresult result = send(head, attributes, parameters, extra);
  return result == CUDA_SUCCESS
             ? launchTaken(reinterpret_cast<CUstream>(head.stream), head.per_thread != 0)
             : result;
}

LaunchHead plainHead(LaunchKind kind, CUfunction f, CUstream stream, bool per_thread, unsigned gx,
                     unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                     unsigned shared) {
  LaunchHead head;
  head.kind = kind;
  head.function = reinterpret_cast<uint64_t>(f);
  head.stream = reinterpret_cast<uint64_t>(stream);
  head.per_thread = per_thread ? 1 : 0;
  head.grid[0] = gx, head.grid[1] = gy, head.grid[2] = gz;
  head.block[0] = bx, head.block[1] = by, head.block[2] = bz;
  head.shared = shared;
  return head;
}

CUresult launchEx(const CUlaunchConfig* config, CUfunction f, bool per_thread, void** parameters,
                  void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(headOf(*config, f, per_thread), config->attrs, parameters, extra);
}

}  // namespace

bool TakenLaunches::has(uint64_t hash) {
  std::shared_lock lock(mutex);
  return launches.contains(hash);
}
void TakenLaunches::note(uint64_t hash, const LaunchHead& head) {
  std::unique_lock lock(mutex);
  launches[hash] = {head.function, head.shared};
}

// Not while something captures: a wait would end the capture of a stream that this one waits for,
// and what is captured does not run.
CUresult launchTaken(CUstream stream, bool per_thread) {
  if (!launchesBlock() || capturing()) return CUDA_SUCCESS;
  return per_thread ? ol_forward_generated_cuStreamSynchronize_ptsz(stream)
                    : ol_forward_generated_cuStreamSynchronize(stream);
}

bool travels(const CUlaunchAttribute& attribute) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return false;
    default:
      return true;
  }
}

LaunchHead headOf(const CUlaunchConfig& config, CUfunction function, bool per_thread) {
  LaunchHead head = plainHead(LaunchKind::kEx, function, config.hStream, per_thread,
                              config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX,
                              config.blockDimY, config.blockDimZ, config.sharedMemBytes);
  head.attributes = config.attrs != nullptr ? config.numAttrs : 0;
  return head;
}

void forgetTakenIf(const std::function<bool(uint64_t function, uint32_t shared)>& is) {
  std::unique_lock lock(taken().mutex);
  std::erase_if(taken().launches,
                [&](const auto& entry) { return is(entry.second.function, entry.second.shared); });
}

void forgetLayouts() {
  forgetTakenIf([](uint64_t, uint32_t) { return true; });
  ParameterLayouts& all = layouts();
  std::unique_lock lock(all.mutex);
  all.of.clear();
}

CUresult layoutOf(CUfunction function, std::shared_ptr<const ParameterLayout>* out) {
  ParameterLayouts& all = layouts();
  {
    std::shared_lock lock(all.mutex);
    const auto found = all.of.find(reinterpret_cast<uint64_t>(function));
    if (found != all.of.end()) {
      *out = found->second;
      return CUDA_SUCCESS;
    }
  }
  return askLayout(function, out);
}

CUresult packParameters(CUfunction function, void* const* parameters, void* const* extra,
                        ParameterBlock& block) {
  if (parameters != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (parameters == nullptr) {
    const void* from = nullptr;
    size_t bytes = 0;
    for (; extra != nullptr && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        from = extra[1];
      } else if (extra[0] != CU_LAUNCH_PARAM_BUFFER_SIZE) {
        return CUDA_ERROR_INVALID_VALUE;
      } else if (extra[1] != nullptr) {
        std::memcpy(&bytes, extra[1], sizeof bytes);
      }
    }
    if (from == nullptr) bytes = 0;
    if (bytes > kMostParameterBytes) return CUDA_ERROR_INVALID_VALUE;
    block.resize(bytes);
    if (bytes != 0) std::memcpy(block.data(), from, bytes);
    return CUDA_SUCCESS;
  }
  std::shared_ptr<const ParameterLayout> layout;
  if (const CUresult error = layoutOf(function, &layout); error != CUDA_SUCCESS) return error;
  block.resize(layout->bytes);
  for (size_t i = 0; i < layout->places.size(); ++i) {
    if (parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(block.data() + layout->places[i].offset, parameters[i], layout->places[i].bytes);
  }
  return CUDA_SUCCESS;
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

#define OL_LAUNCH(suffix, per_thread)                                                             \
  CUresult ol_forward_cuLaunchKernel##suffix(                                                     \
      CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
      unsigned shared, CUstream stream, void** parameters, void** extra) {                        \
    return launch(                                                                                \
        plainHead(LaunchKind::kKernel, f, stream, per_thread, gx, gy, gz, bx, by, bz, shared),    \
        nullptr, parameters, extra);                                                              \
  }                                                                                               \
  CUresult ol_forward_cuLaunchCooperativeKernel##suffix(                                          \
      CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
      unsigned shared, CUstream stream, void** parameters) {                                      \
    return launch(plainHead(LaunchKind::kCooperative, f, stream, per_thread, gx, gy, gz, bx, by,  \
                            bz, shared),                                                          \
                  nullptr, parameters, nullptr);                                                  \
  }                                                                                               \
  CUresult ol_forward_cuLaunchKernelEx##suffix(const CUlaunchConfig* config, CUfunction f,        \
                                               void** parameters, void** extra) {                 \
    return launchEx(config, f, per_thread, parameters, extra);                                    \
  }
OL_LAUNCH(, false)
OL_LAUNCH(_ptsz, true)
#undef OL_LAUNCH

}  // extern "C"
