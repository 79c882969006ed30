#include "gpunode/simgpu/modules/launch.h"

#include <algorithm>
#include <cstring>

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/event.h"
#include "gpunode/simgpu/modules/occupancy.h"
#include "gpunode/simgpu/texture_objects.h"

namespace olpager::simgpu {
namespace {

uint64_t volume(const ptx::Dim3& dim) { return uint64_t{dim.x} * dim.y * dim.z; }

CUresult copyParameters(const ptx::KernelInfo& info, const LaunchRequest& request,
                        KernelLaunch& launch) {
  launch.parameters.assign(info.param_bytes, std::byte{});
  if (request.kernel_parameters != nullptr && request.extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  if (request.extra != nullptr) {
    launch.as_block = true;
    const void* buffer = nullptr;
    const size_t* size = nullptr;
    for (void** item = request.extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
      if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = item[1];
      } else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        size = static_cast<const size_t*>(item[1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    // As recorded on hardware: a buffer may be shorter than the parameters, but not longer.
    const size_t largest =
        info.params.empty() ? 0 : info.params.back().offset + info.params.back().size;
    const size_t given = size != nullptr && buffer != nullptr ? *size : 0;
    if (given > largest) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (given != 0) std::memcpy(launch.parameters.data(), buffer, given);
  } else if (!info.params.empty()) {
    if (request.kernel_parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < info.params.size(); ++i) {
      if (request.kernel_parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(launch.parameters.data() + info.params[i].offset, request.kernel_parameters[i],
                  info.params[i].size);
    }
  }
  for (const ptx::ParamInfo& param : info.params) {
    launch.parameter_pointers.push_back(launch.parameters.data() + param.offset);
  }
  return CUDA_SUCCESS;
}

CUresult checkShape(const KernelLaunch& launch) {
  const ptx::KernelInfo& info = launch.function->info();
  const DeviceLimits limits(*launch.function->device);
  const FunctionSettings& settings = *launch.function->settings;
  const unsigned grid[3] = {launch.grid.x, launch.grid.y, launch.grid.z};
  const unsigned block[3] = {launch.block.x, launch.block.y, launch.block.z};
  const unsigned cluster[3] = {launch.cluster.x, launch.cluster.y, launch.cluster.z};
  for (int i = 0; i < 3; ++i) {
    if (grid[i] == 0 || grid[i] > static_cast<unsigned>(limits.grid[i]))
      return CUDA_ERROR_INVALID_VALUE;
    if (block[i] == 0 || block[i] > static_cast<unsigned>(limits.block[i]))
      return CUDA_ERROR_INVALID_VALUE;
    if (info.reqntid[0] != 0 && block[i] != std::max(1u, info.reqntid[static_cast<size_t>(i)])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (cluster[i] == 0 || grid[i] % cluster[i] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  const uint64_t threads = volume(launch.block);
  if (threads > static_cast<uint64_t>(limits.threads_per_block)) return CUDA_ERROR_INVALID_VALUE;
  if (threads > info.max_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (launch.dynamic_shared > static_cast<unsigned>(settings.max_dynamic_shared.load()))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t cluster_blocks = volume(launch.cluster);
  constexpr uint64_t kPortableCluster = 8;
  constexpr uint64_t kLargestCluster = 16;
  if (cluster_blocks > (settings.non_portable_cluster != 0 ? kLargestCluster : kPortableCluster)) {
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  const int active = activeBlocks(limits, info, static_cast<int>(threads), launch.dynamic_shared);
  if (active == 0) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (launch.cooperative &&
      volume(launch.grid) > static_cast<uint64_t>(active) * limits.multiprocessors) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult errorOf(ptx::LaunchStatus status) {
  switch (status) {
    case ptx::LaunchStatus::kOk:
      return CUDA_SUCCESS;
    case ptx::LaunchStatus::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case ptx::LaunchStatus::kMisaligned:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case ptx::LaunchStatus::kTrap:
      return CUDA_ERROR_LAUNCH_FAILED;
    case ptx::LaunchStatus::kAssert:
      return CUDA_ERROR_ASSERT;
    case ptx::LaunchStatus::kStackOverflow:
      return CUDA_ERROR_HARDWARE_STACK_ERROR;
    case ptx::LaunchStatus::kIllegalInstruction:
      return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case ptx::LaunchStatus::kInvalidConfig:
      return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    case ptx::LaunchStatus::kDeadlock:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    case ptx::LaunchStatus::kCancelled:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
  return CUDA_ERROR_UNKNOWN;
}

std::string describe(const ptx::LaunchResult& result) {
  if (!result.message.empty())
    return result.message;  // names the kernel, the thread, the address and the PTX line
  return std::string("kernel ").append(result.kernel).append(" failed");
}

// The memory that cooperative groups' grid barrier counts in: one per launch under way, zeroed
// before each.
class GridWorkspace {
 public:
  explicit GridWorkspace(Context& context) {
    error_ = Driver::get().memory.allocate(context, ptx::kGridWorkspaceBytes,
                                           AllocationKind::kGlobal, &address_);
  }
  ~GridWorkspace() {
    if (error_ == CUDA_SUCCESS) (void)Driver::get().memory.free(address_, AllocationKind::kGlobal);
  }
  GridWorkspace(const GridWorkspace&) = delete;
  GridWorkspace& operator=(const GridWorkspace&) = delete;
  CUresult error() const { return error_; }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  CUresult error_;
};

class LaunchOp final : public StreamOp {
 public:
  explicit LaunchOp(std::shared_ptr<const KernelLaunch> launch) : launch_(std::move(launch)) {}

  const char* name() const override { return launch_->function->info().name.c_str(); }

  CUresult execute(Context& context) override {
    Device& device = context.device();
    const KernelLaunch& launch = *launch_;
    static std::atomic<uint64_t> grids{1};

    ptx::LaunchConfig config;
    config.grid = launch.grid;
    config.block = launch.block;
    config.cluster = launch.cluster;
    config.dynamic_shared_bytes = launch.dynamic_shared;
    config.params = launch.parameters;
    config.cooperative = launch.cooperative;
    config.grid_id = grids.fetch_add(1, std::memory_order_relaxed);
    config.stack_bytes = static_cast<uint32_t>(std::clamp<size_t>(
        context.limit(CU_LIMIT_STACK_SIZE), config.stack_bytes, size_t{1} << 30));
    config.textures = textures_.get();
    int multiprocessors = 0;
    device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &multiprocessors);
    config.sm_count = static_cast<uint32_t>(multiprocessors);

    std::unique_ptr<GridWorkspace> workspace;
    if (launch.cooperative || launch.function->info().uses_grid_workspace) {
      workspace = std::make_unique<GridWorkspace>(context);
      if (workspace->error() != CUDA_SUCCESS) {
        report("kernel " + launch.function->info().name +
               ": no device memory for the grid barrier");
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
      }
      config.grid_workspace = workspace->address();
    }
    const uint64_t running = context.runningKernels().begin();
    const ptx::LaunchResult result =
        ptx::run(*launch.function->code, *launch.function->kernel, config, device.kernel_memory,
                 Driver::get().executor(), context.printf(), context.cancel);
    context.runningKernels().end(running);
    if (result.ok()) return CUDA_SUCCESS;
    if (result.status != ptx::LaunchStatus::kCancelled) report(describe(result));
    return errorOf(result.status);
  }

 private:
  const std::shared_ptr<const KernelLaunch> launch_;
  const std::unique_ptr<ptx::TextureTable> textures_ = texturesForLaunch();
};

}  // namespace

CUresult applyAttribute(KernelLaunch& launch, const CUlaunchAttribute& attribute) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      launch.cooperative = attribute.value.cooperative != 0;
      break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      launch.cluster = {attribute.value.clusterDim.x, attribute.value.clusterDim.y,
                        attribute.value.clusterDim.z};
      break;
    // Hints and orderings that in-order, unhurried execution satisfies.
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      break;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      if (attribute.value.deviceUpdatableKernelNode.deviceUpdatable != 0) {
        return notSupported("device-updatable kernel nodes");
      }
      break;
    default:
      if (static_cast<int>(attribute.id) < 0 || static_cast<int>(attribute.id) > 17)
        return CUDA_ERROR_INVALID_VALUE;
      break;  // attributes of newer headers that only tune
  }
  std::erase_if(launch.attributes,
                [&](const CUlaunchAttribute& other) { return other.id == attribute.id; });
  launch.attributes.push_back(attribute);
  return CUDA_SUCCESS;
}

CUresult makeLaunch(const std::shared_ptr<Function>& function, const LaunchRequest& request,
                    std::shared_ptr<KernelLaunch>* out) {
  if (request.attribute_count != 0 && request.attributes == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  auto launch = std::make_shared<KernelLaunch>();
  launch->function = function;
  launch->grid = {request.grid[0], request.grid[1], request.grid[2]};
  launch->block = {request.block[0], request.block[1], request.block[2]};
  launch->dynamic_shared = request.dynamic_shared;
  launch->cooperative = request.cooperative;
  const auto& required = function->settings->cluster;
  if (required[0] != 0) {
    launch->cluster = {static_cast<uint32_t>(required[0].load()),
                       static_cast<uint32_t>(std::max(1, required[1].load())),
                       static_cast<uint32_t>(std::max(1, required[2].load()))};
  }
  for (unsigned i = 0; i < request.attribute_count; ++i) {
    if (const CUresult error = applyAttribute(*launch, request.attributes[i]);
        error != CUDA_SUCCESS)
      return error;
  }
  if (const CUresult error = checkShape(*launch); error != CUDA_SUCCESS) return error;
  if (const CUresult error = copyParameters(function->info(), request, *launch);
      error != CUDA_SUCCESS)
    return error;
  *out = std::move(launch);
  return CUDA_SUCCESS;
}

std::unique_ptr<StreamOp> makeLaunchOp(std::shared_ptr<const KernelLaunch> launch) {
  return std::make_unique<LaunchOp>(std::move(launch));
}

namespace {

// The stream's, where the launch has none of its own.
void takeAttributes(const StreamAttributes& of_stream, KernelLaunch& launch) {
  for (const CUlaunchAttribute& attribute : of_stream.ofKernels()) {
    const auto same = [&](const CUlaunchAttribute& own) { return own.id == attribute.id; };
    if (std::none_of(launch.attributes.begin(), launch.attributes.end(), same))
      launch.attributes.push_back(attribute);
  }
}

}  // namespace

CUresult launchKernel(CUfunction handle, const LaunchRequest& request, CUstream stream_handle,
                      bool per_thread) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult error = requireStream(stream_handle, per_thread, &context, &stream);
      error != CUDA_SUCCESS) {
    return error;
  }
  std::shared_ptr<Function> function;
  if (const CUresult error = resolveFunction(handle, *context, &function); error != CUDA_SUCCESS)
    return error;
  if (function->context_handle != context->handle()) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<KernelLaunch> launch;
  if (const CUresult error = makeLaunch(function, request, &launch); error != CUDA_SUCCESS)
    return error;

  if (stream->inCapture()) takeAttributes(stream->attributes, *launch);
  CaptureNode node{CU_GRAPH_NODE_TYPE_KERNEL, context->handle(),
                   std::shared_ptr<KernelLaunchBase>(launch)};
  return context->submitOrCapture(*stream, node, [&launch] { return makeLaunchOp(launch); });
}

}  // namespace olpager::simgpu
