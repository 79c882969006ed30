// Kernel launches: the words of their parameters that lie in the range name what they reach. The
// path of a launch whose kernel is known and whose memory is resident takes no lock, makes no
// system call and allocates nothing.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/hook.h"
#include "interpose/local/launch.h"
#include "interpose/local/locks.h"
#include "interpose/local/modules.h"
#include "interpose/local/param_layout.h"
#include "interpose/local/root.h"
#include "interpose/local/runtime.h"

namespace olpager::local {

namespace {

// The parameter buffer that a launch gives in place of an array of pointers.
struct ExtraBuffer {
  const void* bytes_at = nullptr;
  size_t bytes = 0;
};

ExtraBuffer bufferOf(void* const* extra) {
  ExtraBuffer buffer;
  for (; extra != nullptr && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer.bytes_at = extra[1];
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != nullptr) {
      memcpy(&buffer.bytes, extra[1], sizeof(buffer.bytes));
    }
  }
  return buffer.bytes_at != nullptr ? buffer : ExtraBuffer{};
}

// A handle that is no kernel's is named by its value: the launch itself will be refused.
void warnUnknown(CUfunction function) {
  const char* name = nullptr;
  const api::DriverTable& real = driver();
  if ((real.cuFuncGetName == nullptr || real.cuFuncGetName(&name, function) != CUDA_SUCCESS) &&
      (real.cuKernelGetName == nullptr ||
       real.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS))
    name = nullptr;
  char value[32];
  std::snprintf(value, sizeof(value), "%p", static_cast<void*>(function));
  const char* shown = name != nullptr ? name : value;
  base::warnOnce(shown,
                 "the driver does not tell the parameters of kernel %s: each launch of it is taken "
                 "to reach all "
                 "of memory",
                 shown);
}

// The kernel's code is loaded now, and not while the launch has what a touch of managed memory
// needs.
void loadCode(CUfunction function) {
  const api::DriverTable& real = driver();
  if (real.cuFuncLoad == nullptr) return;
  CUfunction own = nullptr;
  if (real.cuKernelGetFunction == nullptr ||
      real.cuKernelGetFunction(&own, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS)
    own = function;
  static_cast<void>(real.cuFuncLoad(own));
}

// The layout of a kernel's parameters. The driver may load the kernel's code for it. The pager
// starts when a context's first kernel is seen, before it runs: what it loads, the driver loads
// only when no kernel runs.
const ParamLayout* layoutOf(CUfunction function, CUcontext context) {
  const ParamLayout* layout = findParamLayout(function, context);
  if (layout != nullptr) return layout;
  CUdevice device = 0;
  const RelaxedCapture relaxed;
  pager::Pool* const running = pool();
  if (running != nullptr && deviceOf(context, &device) == CUDA_SUCCESS)
    running->prepare(context, device);
  const LoadsCode loads(context);
  if (running != nullptr && running->hasManaged()) loadCode(function);
  return loadParamLayout(function, context);
}

}  // namespace

void kernelIsAsked(CUfunction function) {
  const pager::Pool* const running = pool();
  if (running == nullptr || !running->heedsHostFunctions()) return;
  if (const CUcontext context = currentContext(); context != nullptr)
    (void)layoutOf(function, context);
}

void addKernel(pager::Access& access, CUfunction function, CUcontext context,
               void* const* parameters, void* const* extra) {
  access.setFunction(function);
  if (parameters == nullptr) {
    // The module of a kernel is made known with its layout, also where the layout itself is not
    // needed.
    if (const ParamLayout* layout = layoutOf(function, context);
        layout != nullptr && !layout->name.empty())
      access.setName(layout->name.c_str());
    const ExtraBuffer buffer = bufferOf(extra);
    access.addParameter(buffer.bytes_at, buffer.bytes);
    return;
  }
  const ParamLayout* layout = layoutOf(function, context);
  if (layout == nullptr) {
    // How many pointers `parameters` is the array of, only the driver knows.
    warnUnknown(function);
    access.addEverything();
    return;
  }
  if (!layout->name.empty()) access.setName(layout->name.c_str());
  for (const ParamLayout::Param& param : layout->params)
    access.addParameter(parameters[param.index], param.bytes);
}

namespace {

// Parameters that lie in managed memory, in memory that is not: the driver reads them when the
// launch may have taken that memory from the CPU.
class PlainParameters {
 public:
  /// Replaces what is not plain. The replacement's target lives as long as this.
  void replace(const pager::Pool& running, CUfunction function, CUcontext context,
               void**& parameters, void**& extra) {
    if (parameters == nullptr) return replaceBuffer(running, extra);
    const ParamLayout* const layout = layoutOf(function, context);
    if (layout == nullptr) return;
    bool plain = !in(running, parameters);
    for (uint32_t i = 0; i < layout->count && plain; ++i) plain = !in(running, parameters[i]);
    if (plain) return;
    pointers_.assign(parameters, parameters + layout->count);
    for (uint32_t i = 0; i < layout->count; ++i) {
      if (!in(running, pointers_[i])) continue;
      // One that is not listed is shorter than 8 bytes, and does not cross a multiple of 8.
      size_t bytes = 8 - reinterpret_cast<uintptr_t>(pointers_[i]) % 8;
      for (const ParamLayout::Param& param : layout->params)
        if (param.index == i) bytes = param.bytes;
      auto value = std::make_unique<std::max_align_t[]>(bytes / sizeof(std::max_align_t) + 1);
      memcpy(value.get(), pointers_[i], bytes);
      pointers_[i] = value.get();
      values_.push_back(std::move(value));
    }
    parameters = pointers_.data();
  }

 private:
  static bool in(const pager::Pool& running, const void* pointer) {
    return running.contains(reinterpret_cast<uint64_t>(pointer));
  }
  void replaceBuffer(const pager::Pool& running, void**& extra) {
    const ExtraBuffer buffer = bufferOf(extra);
    if (buffer.bytes_at == nullptr || !in(running, buffer.bytes_at)) return;
    bytes_ = buffer.bytes;
    auto value = std::make_unique<std::max_align_t[]>(bytes_ / sizeof(std::max_align_t) + 1);
    memcpy(value.get(), buffer.bytes_at, bytes_);
    pointers_ = {CU_LAUNCH_PARAM_BUFFER_POINTER, value.get(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes_,
                 CU_LAUNCH_PARAM_END};
    values_.push_back(std::move(value));
    extra = pointers_.data();
  }

  std::vector<void*> pointers_;
  std::vector<std::unique_ptr<std::max_align_t[]>> values_;
  size_t bytes_ = 0;
};

// `call` is the driver's launch with all its arguments, `parameters` and `extra` by reference.
template <typename Call>
CUresult launch(CUfunction function, CUstream stream, bool per_thread, void**& parameters,
                void**& extra, Call call) {
  pager::Pool* running = pool();
  if (running == nullptr || function == nullptr) return call();
  const pager::StreamKey key = streamKey(stream, per_thread);
  if (key.context == nullptr) return call();
  PlainParameters plain;
  if (running->hasManaged()) plain.replace(*running, function, key.context, parameters, extra);
  pager::Access access(*running, key);
  addKernel(access, function, key.context, parameters, extra);
  const CUresult entered = enterLaunch(access, key);
  if (entered != CUDA_SUCCESS) return entered;
  const CUresult result = call();
  leave(access, key, result);
  return result;
}

}  // namespace
}  // namespace olpager::local

using namespace olpager::local;  // NOLINT(google-build-using-namespace): the functions below are C
                                 // functions
using olpager::pager::StreamKey;

OLPAGER_HOOK(cuLaunchKernel)
(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters, void** extra) {
  return launch(f, stream, false, parameters, extra, [&] {
    return driver().cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
  });
}

OLPAGER_HOOK(cuLaunchKernel_ptsz)
(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters, void** extra) {
  return launch(f, stream, true, parameters, extra, [&] {
    return driver().cuLaunchKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream, parameters,
                                        extra);
  });
}

OLPAGER_HOOK(cuLaunchKernelEx)
(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
  if (config == nullptr) return driver().cuLaunchKernelEx(config, f, parameters, extra);
  return launch(f, config->hStream, false, parameters, extra,
                [&] { return driver().cuLaunchKernelEx(config, f, parameters, extra); });
}

OLPAGER_HOOK(cuLaunchKernelEx_ptsz)
(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
  if (config == nullptr) return driver().cuLaunchKernelEx_ptsz(config, f, parameters, extra);
  return launch(f, config->hStream, true, parameters, extra,
                [&] { return driver().cuLaunchKernelEx_ptsz(config, f, parameters, extra); });
}

OLPAGER_HOOK(cuLaunchCooperativeKernel)
(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters) {
  void** none = nullptr;
  return launch(f, stream, false, parameters, none, [&] {
    return driver().cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream,
                                              parameters);
  });
}

OLPAGER_HOOK(cuLaunchCooperativeKernel_ptsz)
(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
 unsigned shared, CUstream stream, void** parameters) {
  void** none = nullptr;
  return launch(f, stream, true, parameters, none, [&] {
    return driver().cuLaunchCooperativeKernel_ptsz(f, gx, gy, gz, bx, by, bz, shared, stream,
                                                   parameters);
  });
}

// One kernel on several devices: each part is made resident on its own stream; all are held until
// the one call is made.
OLPAGER_HOOK(cuLaunchCooperativeKernelMultiDevice)
(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
  olpager::pager::Pool* running = pool();
  if (running == nullptr || list == nullptr)
    return driver().cuLaunchCooperativeKernelMultiDevice(list, count, flags);
  struct Part {
    Part(olpager::pager::Pool& pool, const StreamKey& of) : key(of), access(pool, of) {}
    StreamKey key;
    olpager::pager::Access access;
  };
  struct Parts {  // those that were entered; left however it ends
    std::vector<std::unique_ptr<Part>> all;
    CUresult result = CUDA_ERROR_UNKNOWN;
    ~Parts() {
      for (const auto& part : all) leave(part->access, part->key, result);
    }
  } parts;
  parts.all.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    StreamKey key = streamKey(list[i].hStream, false);
    CUcontext own = nullptr;
    if (list[i].hStream != nullptr &&
        driver().cuStreamGetCtx(list[i].hStream, &own) == CUDA_SUCCESS)
      key.context = own;
    auto part = std::make_unique<Part>(*running, key);
    addKernel(part->access, list[i].function, key.context, list[i].kernelParams, nullptr);
    const CUresult entered = enterLaunch(part->access, key);
    if (entered != CUDA_SUCCESS) return parts.result = entered;
    parts.all.push_back(std::move(part));
  }
  return parts.result = driver().cuLaunchCooperativeKernelMultiDevice(list, count, flags);
}

// --- the launches of CUDA 2: parameters are set one by one in the function itself ----------------
namespace {

struct LegacyParameters {
  olpager::base::RankedMutex mutex{kLegacyParametersMutex};
  std::map<CUfunction, std::vector<unsigned char>> blocks;
};

LegacyParameters& legacyParameters() {
  static auto* instance = new LegacyParameters;
  return *instance;
}

// The largest parameter block that any device takes; offsets beyond are the driver's to refuse.
constexpr size_t kLargestBlock = 32764;

void noteLegacy(CUfunction function, int offset, const void* bytes_at, size_t bytes) {
  if (function == nullptr || bytes_at == nullptr || offset < 0) return;
  const size_t end = static_cast<size_t>(offset) + bytes;
  if (bytes > kLargestBlock || end > kLargestBlock) return;
  LegacyParameters& all = legacyParameters();
  std::lock_guard lock(all.mutex);
  std::vector<unsigned char>& block = all.blocks[function];
  if (block.size() < end) block.resize(end);
  memcpy(block.data() + offset, bytes_at, bytes);
}

template <typename Call>
CUresult launchLegacy(CUfunction function, CUstream stream, Call call) {
  std::vector<unsigned char> block;
  {
    LegacyParameters& all = legacyParameters();
    std::lock_guard lock(all.mutex);
    const auto found = all.blocks.find(function);
    if (found != all.blocks.end()) block = found->second;
  }
  size_t bytes = block.size();
  void* buffer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                    &bytes, CU_LAUNCH_PARAM_END};
  void **none = nullptr, **extra = buffer;
  return olpager::local::launch(function, stream, false, none, extra, call);
}

}  // namespace

OLPAGER_HOOK(cuParamSeti)(CUfunction f, int offset, unsigned value) {
  noteLegacy(f, offset, &value, sizeof(value));
  return driver().cuParamSeti(f, offset, value);
}

OLPAGER_HOOK(cuParamSetv)(CUfunction f, int offset, void* value, unsigned bytes) {
  noteLegacy(f, offset, value, bytes);
  return driver().cuParamSetv(f, offset, value, bytes);
}

OLPAGER_HOOK(cuLaunch)(CUfunction f) {
  return launchLegacy(f, nullptr, [&] { return driver().cuLaunch(f); });
}

OLPAGER_HOOK(cuLaunchGrid)(CUfunction f, int width, int height) {
  return launchLegacy(f, nullptr, [&] { return driver().cuLaunchGrid(f, width, height); });
}

OLPAGER_HOOK(cuLaunchGridAsync)(CUfunction f, int width, int height, CUstream stream) {
  return launchLegacy(f, stream,
                      [&] { return driver().cuLaunchGridAsync(f, width, height, stream); });
}
