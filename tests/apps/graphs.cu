// Graphs: captured (kernels, copies, memsets, a host function) and replayed between other work,
// parameters updated for each launch, built by the API node by node, updated as a whole, captured
// while another thread works.
#include <thread>

#include "common.h"

__global__ void mixPair(uint4* out, const uint4* in, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint4 v = in[i];
  v.x += value, v.y += value, v.z += value, v.w += value;
  out[i] = v;
}

constexpr size_t kPiece = size_t{2} << 20;
constexpr uint32_t kCount = kPiece / 16 / 4;  // a quarter of each buffer is worked on

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t n = options.bytes / 2 / kPiece > 3 ? options.bytes / 2 / kPiece : 3;
  std::vector<uint4*> buffers(n);
  for (size_t b = 0; b < n; ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    apps::fill(buffers[b], kPiece, seed + uint32_t(b));
  }
  apps::Pressure pressure(options.bytes / 2);
  RUNTIME_OK(cudaDeviceSynchronize());
  cudaStream_t a, b;
  RUNTIME_OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  static int calls = 0;
  uint32_t* counter;
  RUNTIME_OK(cudaMalloc(&counter, 4096));

  // A chain over all buffers.
  cudaGraph_t captured;
  RUNTIME_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  std::thread during(
      [&] { pressure.apply(b); });  // launches of other threads are no part of the capture
  during.join();
  RUNTIME_OK(cudaMemsetAsync(counter, 0, 4096, a));
  for (size_t i = 0; i + 1 < n; ++i) {
    mixPair<<<apps::blocks(kCount), 256, 0, a>>>(buffers[i + 1], buffers[i], kCount,
                                                 uint32_t(i + 1));
  }
  RUNTIME_OK(cudaMemcpyAsync(counter, buffers[n - 1], 64, cudaMemcpyDeviceToDevice, a));
  RUNTIME_OK(cudaLaunchHostFunc(
      a, [](void*) { ++calls; }, nullptr));
  RUNTIME_OK(cudaStreamEndCapture(a, &captured));
  RUNTIME_OK(
      cudaStreamSynchronize(b));  // what the pressure did there comes before what it does in a
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, captured, 0));
  size_t nodes = 0;
  RUNTIME_OK(cudaGraphGetNodes(captured, nullptr, &nodes));
  CHECK(nodes == n - 1 + 3, "%zu nodes were captured, expected %zu", nodes, n + 2);
  std::vector<uint32_t> got(kCount * 4);
  const auto chain = [&](uint32_t expected_source, const char* what) {
    uint32_t added = 0;
    for (size_t i = 1; i < n; ++i) {
      added += uint32_t(i);
      RUNTIME_OK(cudaMemcpy(got.data(), buffers[i], got.size() * 4, cudaMemcpyDeviceToHost));
      apps::verifyHost(got.data(), got.size() * 4, expected_source, added, what);
    }
  };
  for (int launch = 0; launch < 3; ++launch) {
    pressure.apply(a);
    apps::fill(buffers[0], kPiece, seed + 100 + uint32_t(launch), a);
    RUNTIME_OK(cudaGraphLaunch(exec, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    chain(seed + 100 + uint32_t(launch), "replayed chain");
  }
  CHECK(calls == 3, "the host function ran %d times", calls);

  // A graph with one kernel node built by the API, its pointers changed for each launch.
  cudaGraph_t built;
  cudaGraphNode_t set_node, kernel_node, copy_node;
  RUNTIME_OK(cudaGraphCreate(&built, 0));
  cudaMemsetParams set{};
  set.dst = counter, set.elementSize = 4, set.width = 16, set.height = 1;
  RUNTIME_OK(cudaGraphAddMemsetNode(&set_node, built, nullptr, 0, &set));
  uint4 *out = buffers[1], *in = buffers[0];
  uint32_t count = kCount, value = 5;
  void* arguments[] = {&out, &in, &count, &value};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(mixPair);
  params.gridDim = dim3(apps::blocks(kCount));
  params.blockDim = dim3(256);
  params.kernelParams = arguments;
  RUNTIME_OK(cudaGraphAddKernelNode(&kernel_node, built, &set_node, 1, &params));
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&copy_node, built, &kernel_node, 1, counter, buffers[1], 64,
                                      cudaMemcpyDeviceToDevice));
  cudaGraphExec_t built_exec;
  RUNTIME_OK(cudaGraphInstantiate(&built_exec, built, 0));
  for (uint32_t launch = 0; launch < 2 * n; ++launch) {
    in = buffers[launch % n], out = buffers[(launch + 1) % n], value = launch;
    apps::fill(in, kPiece, seed + launch, a);
    RUNTIME_OK(cudaGraphExecKernelNodeSetParams(built_exec, kernel_node, &params));
    pressure.apply(a);
    RUNTIME_OK(cudaGraphLaunch(built_exec, a));
    RUNTIME_OK(cudaMemcpyAsync(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost, a));
    RUNTIME_OK(cudaStreamSynchronize(a));
    apps::verifyHost(got.data(), got.size() * 4, seed + launch, launch, "updated kernel node");
  }
  // The captured graph, captured anew over rotated buffers, becomes the executable one.
  std::vector<uint4*> rotated(buffers.begin() + 1, buffers.end());
  rotated.push_back(buffers[0]);
  buffers = rotated;
  cudaGraph_t again;
  RUNTIME_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  RUNTIME_OK(cudaMemsetAsync(counter, 0, 4096, a));
  for (size_t i = 0; i + 1 < n; ++i) {
    mixPair<<<apps::blocks(kCount), 256, 0, a>>>(buffers[i + 1], buffers[i], kCount,
                                                 uint32_t(i + 1));
  }
  RUNTIME_OK(cudaMemcpyAsync(counter, buffers[n - 1], 64, cudaMemcpyDeviceToDevice, a));
  RUNTIME_OK(cudaLaunchHostFunc(
      a, [](void*) { ++calls; }, nullptr));
  RUNTIME_OK(cudaStreamEndCapture(a, &again));
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t updated = cudaGraphExecUpdate(exec, again, &info);
  // A driver may refuse it where a copy's memory is of another kind by now; programs make the graph
  // executable anew then.
  CHECK(updated == cudaSuccess || updated == cudaErrorGraphExecUpdateFailure,
        "the update failed: %s", cudaGetErrorName(updated));
  if (updated != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphInstantiate(&exec, again, 0));
  }
  apps::fill(buffers[0], kPiece, seed + 999, a);
  pressure.apply(a);
  RUNTIME_OK(cudaGraphLaunch(exec, a));
  RUNTIME_OK(cudaStreamSynchronize(a));
  chain(seed + 999, "chain after a whole update");
  pressure.check();
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphExecDestroy(built_exec));
  RUNTIME_OK(cudaGraphDestroy(captured));
  RUNTIME_OK(cudaGraphDestroy(again));
  RUNTIME_OK(cudaGraphDestroy(built));
  return apps::ok("graphs over %zu buffers", n);
}
