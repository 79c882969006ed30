// Copy and memset nodes made by the API over memory that has left VRAM by then: added, made
// executable, with parameters set in the graph and in the executable graph, updated as a whole, in
// a child graph, in one and two dimensions, between device and pinned memory. The driver looks at
// the addresses each time that it is told of them, and the operation runs much later.
#include "common.h"

constexpr size_t kPiece = size_t{2} << 20;
constexpr size_t kWords = 4096;  // of each buffer that are worked on

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  constexpr int kBuffers = 7;
  uint32_t* buffers[kBuffers];
  for (int b = 0; b < kBuffers; ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    apps::fill(buffers[b], kPiece, seed + uint32_t(b));
  }
  uint32_t* pinned;
  RUNTIME_OK(cudaMallocHost(&pinned, kWords * 4));
  apps::Pressure pressure(options.bytes);
  const auto away = [&] {  // what is not used by this leaves VRAM
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
  };
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  RUNTIME_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t one, two, set, down, any, rectangle;

  away();
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&one, graph, nullptr, 0, buffers[1], buffers[0], kWords * 4,
                                      cudaMemcpyDeviceToDevice));
  away();
  cudaMemcpy3DParms rows{};
  rows.srcPtr = make_cudaPitchedPtr(buffers[2], 512, 256, 16);
  rows.dstPtr = make_cudaPitchedPtr(buffers[3], 256, 256, 16);
  rows.extent = make_cudaExtent(256, 16, 1);
  rows.kind = cudaMemcpyDeviceToDevice;
  RUNTIME_OK(cudaGraphAddMemcpyNode(&two, graph, &one, 1, &rows));
  away();
  cudaMemsetParams fill{};
  fill.dst = buffers[4], fill.elementSize = 4, fill.width = 1000, fill.height = 1,
  fill.value = seed * 3;
  RUNTIME_OK(cudaGraphAddMemsetNode(&set, graph, &two, 1, &fill));
  away();
  RUNTIME_OK(cudaGraphAddMemcpyNode1D(&down, graph, &set, 1, pinned, buffers[1], kWords * 4,
                                      cudaMemcpyDeviceToHost));
  away();
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeMemset;
  params.memset.dst = buffers[5], params.memset.elementSize = 1, params.memset.width = 999,
  params.memset.height = 1;
  params.memset.value = 7;
#if CUDART_VERSION >= 13000
  RUNTIME_OK(cudaGraphAddNode(&any, graph, &down, nullptr, 1, &params));
#else
  RUNTIME_OK(cudaGraphAddNode(&any, graph, &down, 1, &params));
#endif
  away();
  // With gaps between its rows, which stay as they are.
  cudaMemsetParams block{};
  block.dst = buffers[6] + kWords, block.elementSize = 4, block.width = 100, block.height = 8,
  block.pitch = 512;
  block.value = seed * 13;
  RUNTIME_OK(cudaGraphAddMemsetNode(&rectangle, graph, &any, 1, &block));
  away();
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));

  std::vector<uint32_t> got(kWords);
  const auto check = [&](int source, int rows_from, int rows_to, int zeroed, uint32_t value,
                         const char* what) {
    std::memset(pinned, 0, kWords * 4);
    away();
    RUNTIME_OK(cudaGraphLaunch(exec, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    apps::verifyHost(pinned, kWords * 4, seed + uint32_t(source), 0, what);
    std::vector<uint32_t> from(kWords);
    RUNTIME_OK(cudaMemcpy(from.data(), buffers[rows_from], kWords * 4, cudaMemcpyDeviceToHost));
    RUNTIME_OK(cudaMemcpy(got.data(), buffers[rows_to], kWords * 4, cudaMemcpyDeviceToHost));
    for (int row = 0; row < 16; ++row)
      CHECK(std::memcmp(&got[size_t(row) * 64], &from[size_t(row) * 128], 256) == 0, "%s: row %d",
            what, row);
    RUNTIME_OK(cudaMemcpy(got.data(), buffers[zeroed], kWords * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 1000; ++i)
      CHECK(got[i] == value, "%s: set word %d is %#x", what, i, got[i]);
    RUNTIME_OK(cudaMemcpy(got.data(), buffers[5], 999, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 0x07070707 && got[248] == 0x07070707, "%s: bytes of the memset of bytes", what);
    const auto first = size_t(static_cast<uint32_t*>(block.dst) - buffers[6]);
    RUNTIME_OK(cudaMemcpy(got.data(), block.dst, 8 * 512, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 8 * 128; ++i) {
      const uint32_t expected =
          i % 128 < 100 ? block.value
                        : apps::word(uint32_t((first + i) / 4), seed + 6) + uint32_t(i % 4);
      CHECK(got[i] == expected, "%s: word %zu of the block is %#x, expected %#x", what, i, got[i],
            expected);
    }
  };
  check(0, 2, 3, 4, seed * 3, "as added");

  // The executable graph alone: what has one dimension.
  away();
  RUNTIME_OK(cudaGraphExecMemcpyNodeSetParams1D(exec, one, buffers[1], buffers[2], kWords * 4,
                                                cudaMemcpyDeviceToDevice));
  away();
  cudaMemcpy3DParms row{};
  row.srcPtr = make_cudaPitchedPtr(buffers[1], kWords * 4, kWords * 4, 1);
  row.dstPtr = make_cudaPitchedPtr(pinned, kWords * 4, kWords * 4, 1);
  row.extent = make_cudaExtent(kWords * 4, 1, 1);
  row.kind = cudaMemcpyDeviceToHost;
  RUNTIME_OK(cudaGraphExecMemcpyNodeSetParams(exec, down, &row));
  away();
  fill.dst = buffers[0], fill.value = seed * 5;
  RUNTIME_OK(cudaGraphExecMemsetNodeSetParams(exec, set, &fill));
  away();
  block.dst = buffers[6] + 2 * kWords,
  block.value = seed * 17;  // two dimensions: only the address and the value may change
  RUNTIME_OK(cudaGraphExecMemsetNodeSetParams(exec, rectangle, &block));
  check(2, 2, 3, 0, seed * 5, "set in the executable graph");

  // The executable graph as a whole.
  away();
  apps::fill(buffers[0], kPiece, seed + 20);
  away();
  rows.srcPtr = make_cudaPitchedPtr(buffers[0], 512, 256, 16);
  RUNTIME_OK(cudaGraphMemcpyNodeSetParams(two, &rows));
  away();
  block.dst = buffers[6] + 3 * kWords, block.value = seed * 19;
  RUNTIME_OK(cudaGraphMemsetNodeSetParams(rectangle, &block));
  away();
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t updated = cudaGraphExecUpdate(exec, graph, &info);
  // An H200's driver refuses it for the two-dimensional copy; programs make the graph executable
  // anew then.
  CHECK(updated == cudaSuccess || updated == cudaErrorGraphExecUpdateFailure,
        "the update failed: %s, result %d", cudaGetErrorName(updated), int(info.result));
  if (updated != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    RUNTIME_OK(cudaGraphExecDestroy(exec));
    RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  }
  check(20, 0, 3, 4, seed * 3, "updated as a whole");

  // The graph, made executable again.
  away();
  apps::fill(buffers[0], kPiece, seed + 50);
  away();
  RUNTIME_OK(cudaGraphMemcpyNodeSetParams1D(one, buffers[1], buffers[0], kWords * 4,
                                            cudaMemcpyDeviceToDevice));
  away();
  rows.srcPtr = make_cudaPitchedPtr(buffers[1], 512, 256, 16);
  rows.dstPtr = make_cudaPitchedPtr(buffers[2], 256, 256, 16);
  RUNTIME_OK(cudaGraphMemcpyNodeSetParams(two, &rows));
  away();
  fill.dst = buffers[4], fill.value = seed * 11;
  RUNTIME_OK(cudaGraphMemsetNodeSetParams(set, &fill));
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  check(50, 1, 2, 4, seed * 11, "set in the graph");

  // All of it as a child of another graph.
  cudaGraph_t parent;
  cudaGraphNode_t child;
  RUNTIME_OK(cudaGraphCreate(&parent, 0));
  away();
  RUNTIME_OK(cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, graph));
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  away();
  RUNTIME_OK(cudaGraphInstantiate(&exec, parent, 0));
  check(50, 1, 2, 4, seed * 11, "a child graph");
  away();
  apps::fill(buffers[3], kPiece, seed + 70);
  away();
  RUNTIME_OK(cudaGraphMemcpyNodeSetParams1D(one, buffers[1], buffers[3], kWords * 4,
                                            cudaMemcpyDeviceToDevice));
  away();
  RUNTIME_OK(cudaGraphExecChildGraphNodeSetParams(exec, child, graph));
  check(70, 1, 2, 4, seed * 11, "set in the child graph");

  // A clone of the parent, whose own child goes before the clone is made executable.
  cudaGraph_t clone;
  RUNTIME_OK(cudaGraphClone(&clone, parent));
  RUNTIME_OK(cudaGraphDestroyNode(child));
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  away();
  RUNTIME_OK(cudaGraphInstantiate(&exec, clone, 0));
  check(50, 1, 2, 4, seed * 11, "a clone with a child graph");

#if CUDART_VERSION >= 13000
  // A graph that is moved into another one, and given a node after that: it runs, and goes, with
  // its parent.
  cudaGraph_t inner, outer;
  RUNTIME_OK(cudaGraphCreate(&inner, 0));
  RUNTIME_OK(cudaGraphCreate(&outer, 0));
  cudaGraphNodeParams moves{};
  moves.type = cudaGraphNodeTypeGraph;
  moves.graph.graph = inner, moves.graph.ownership = cudaGraphChildGraphOwnershipMove;
  const cudaError_t moved = cudaGraphAddNode(&child, outer, nullptr, nullptr, 0, &moves);
  if (moved == cudaErrorNotSupported) {  // as forwarded programs are told
    static_cast<void>(cudaGetLastError());
    RUNTIME_OK(cudaGraphDestroy(inner));
  } else {
    RUNTIME_OK(moved);
    CHECK(moves.graph.graph == inner, "the moved graph has another handle");
    away();
    fill.dst = buffers[3], fill.value = seed * 23;
    RUNTIME_OK(cudaGraphAddMemsetNode(&set, inner, nullptr, 0, &fill));
    cudaGraphExec_t whole;
    CHECK(cudaGraphInstantiate(&whole, inner, 0) != cudaSuccess,
          "a moved graph is made executable by itself");
    CHECK(cudaGraphDestroy(inner) != cudaSuccess, "a moved graph is destroyed by itself");
    static_cast<void>(cudaGetLastError());
    RUNTIME_OK(cudaGraphInstantiate(&whole, outer, 0));
    away();
    RUNTIME_OK(cudaGraphLaunch(whole, stream));
    RUNTIME_OK(cudaStreamSynchronize(stream));
    RUNTIME_OK(cudaMemcpy(got.data(), buffers[3], kWords * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 1000; ++i)
      CHECK(got[i] == seed * 23, "a moved graph: word %d is %#x", i, got[i]);
    RUNTIME_OK(cudaGraphExecDestroy(whole));
  }
  RUNTIME_OK(cudaGraphDestroy(outer));
#endif

  pressure.check();
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  RUNTIME_OK(cudaGraphDestroy(clone));
  RUNTIME_OK(cudaGraphDestroy(parent));
  RUNTIME_OK(cudaGraphDestroy(graph));
  return apps::ok("graph_nodes over %d buffers", kBuffers);
}
