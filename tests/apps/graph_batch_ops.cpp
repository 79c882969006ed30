// Batches of a stream's operations as nodes of graphs: values that are written and waited for, in
// device and pinned memory, added by both functions, asked for, changed in the graph and in the
// executable graph; the same in a stream, and captured.
#include "driver_program.h"

namespace {

CUstreamBatchMemOpParams write32(CUdeviceptr to, uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = to;
  op.writeValue.value = value;
  return op;
}
CUstreamBatchMemOpParams write64(CUdeviceptr to, uint64_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  op.writeValue.address = to;
  op.writeValue.value64 = value;
  return op;
}
CUstreamBatchMemOpParams wait32(CUdeviceptr at, uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = at;
  op.waitValue.value = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return op;
}

uint32_t wordAt(CUdeviceptr address) {
  uint32_t word = 0;
  DRIVER_OK(cuMemcpyDtoH(&word, address, sizeof word));
  return word;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS paramsOf(CUcontext context,
                                       std::vector<CUstreamBatchMemOpParams>& operations) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  params.ctx = context;
  params.count = unsigned(operations.size());
  params.paramArray = operations.data();
  return params;
}

void checkTold(CUgraphNode node, CUcontext context,
               const std::vector<CUstreamBatchMemOpParams>& expected, const char* what) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS told{};
  DRIVER_OK(cuGraphBatchMemOpNodeGetParams(node, &told));
  CHECK(told.count == expected.size() && told.ctx == context && told.flags == 0,
        "%s: %u operations in context %p, expected %zu in %p", what, told.count,
        static_cast<void*>(told.ctx), expected.size(), static_cast<void*>(context));
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto &is = told.paramArray[i].writeValue, &was = expected[i].writeValue;
    CHECK(is.operation == was.operation && is.address == was.address && is.value64 == was.value64,
          "%s: operation %zu is another", what, i);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  int there = 0;
  if (cuDeviceGetAttribute(&there, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device) !=
          CUDA_SUCCESS ||
      there == 0)
    apps::skip("this driver has no operations of streams on memory");
  CUcontext context = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&context));
  const auto seed = uint32_t(options.seed);
  CUdeviceptr words = 0;
  DRIVER_OK(cuMemAlloc(&words, 4096));
  DRIVER_OK(cuMemsetD32(words, 0, 1024));
  void* memory = nullptr;
  DRIVER_OK(cuMemHostAlloc(&memory, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* const pinned = static_cast<volatile uint32_t*>(memory);
  for (int i = 0; i < 1024; ++i) pinned[i] = 0;
  CUdeviceptr pinned_there = 0;
  DRIVER_OK(cuMemHostGetDevicePointer(&pinned_there, memory, 0));
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  // A kernel between two batches: the second waits for what the kernel makes of what the first has
  // written.
  const apps::Bump bump(4);
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr, between = nullptr;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  std::vector<CUstreamBatchMemOpParams> writes{
      write32(words, 7), write64(words + 8, 0x100000000ull + seed), write32(pinned_there, 70)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS params = paramsOf(context, writes);
  DRIVER_OK(cuGraphAddBatchMemOpNode(&first, graph, nullptr, 0, &params));
  uint32_t count = 1, value = 5;
  void* arguments[] = {&words, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = bump.kernel();
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = arguments;
  DRIVER_OK(cuGraphAddKernelNode(&between, graph, &first, 1, &kernel));
  std::vector<CUstreamBatchMemOpParams> behind{wait32(words, 12), write32(words + 4, 1)};
  CUgraphNodeParams general{};
  general.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  general.memOp.ctx = context;
  general.memOp.count = unsigned(behind.size());
  general.memOp.paramArray = behind.data();
#if CUDA_VERSION >= 13000
  DRIVER_OK(cuGraphAddNode(&second, graph, &between, nullptr, 1, &general));
#else
  DRIVER_OK(cuGraphAddNode(&second, graph, &between, 1, &general));
#endif
  checkTold(first, context, writes, "as added");
  checkTold(second, context, behind, "as added by the general function");
  CUgraphExec exec = nullptr;
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  const auto run = [&] {
    DRIVER_OK(cuCtxSynchronize());  // fills were in another stream
    DRIVER_OK(cuGraphLaunch(exec, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
  };
  run();
  CHECK(wordAt(words) == 12 && wordAt(words + 4) == 1 && wordAt(words + 8) == seed &&
            wordAt(words + 12) == 1,
        "as added: %u, %u, %u, %u", wordAt(words), wordAt(words + 4), wordAt(words + 8),
        wordAt(words + 12));
  CHECK(pinned[0] == 70, "pinned memory has %u, expected 70", pinned[0]);

  // In the executable graph alone, then in the graph alone, by both functions.
  std::vector<CUstreamBatchMemOpParams> others{write32(words, 7), write64(words + 8, seed + 1),
                                               write32(pinned_there, 71)};
  params = paramsOf(context, others);
  DRIVER_OK(cuGraphExecBatchMemOpNodeSetParams(exec, first, &params));
  checkTold(first, context, writes, "set in the executable graph");
  run();
  CHECK(wordAt(words + 8) == seed + 1 && wordAt(words + 12) == 0 && pinned[0] == 71,
        "set in the executable graph: %u, %u", wordAt(words + 8), pinned[0]);
  general.memOp.count = 1;
  std::vector<CUstreamBatchMemOpParams> last{wait32(words, 12)};
  general.memOp.paramArray = last.data();
  DRIVER_OK(cuGraphNodeSetParams(second, &general));
  checkTold(second, context, last, "set by the general function");
  DRIVER_OK(cuMemsetD32(words + 4, 9, 1));
  run();
  CHECK(wordAt(words + 4) == 1, "what is set in the graph is not the executable graph's: %u",
        wordAt(words + 4));
  others[2] = write32(pinned_there, 72);
  params = paramsOf(context, others);
  DRIVER_OK(cuGraphBatchMemOpNodeSetParams(first, &params));
  checkTold(first, context, others, "set in the graph");
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  DRIVER_OK(cuMemsetD32(words + 4, 9, 1));
  run();
  CHECK(wordAt(words + 4) == 9 && pinned[0] == 72, "made executable again: %u, %u",
        wordAt(words + 4), pinned[0]);

  // Parameters that are no batch.
  CUgraphNode none = nullptr;
  CUDA_BATCH_MEM_OP_NODE_PARAMS wrong = paramsOf(context, others);
  wrong.count = 0;
  CHECK(cuGraphAddBatchMemOpNode(&none, graph, nullptr, 0, &wrong) == CUDA_ERROR_INVALID_VALUE,
        "no operations");
  CHECK(cuGraphBatchMemOpNodeGetParams(between, &wrong) == CUDA_ERROR_INVALID_VALUE,
        "a kernel is no batch");

  // In a stream, and captured.
  std::vector<CUstreamBatchMemOpParams> in_stream{write32(words + 16, seed + 2),
                                                  write32(pinned_there + 4, 73)};
  DRIVER_OK(cuStreamBatchMemOp(stream, 2, in_stream.data(), 0));
  DRIVER_OK(cuStreamSynchronize(stream));
  CHECK(wordAt(words + 16) == seed + 2 && pinned[1] == 73, "in a stream: %u, %u",
        wordAt(words + 16), pinned[1]);
  CUgraph captured = nullptr;
  DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  in_stream[0] = write32(words + 16, seed + 3);
  in_stream[1] = write32(pinned_there + 4, 74);
  DRIVER_OK(cuStreamBatchMemOp(stream, 2, in_stream.data(), 0));
  DRIVER_OK(cuStreamEndCapture(stream, &captured));
  size_t nodes = 1;
  DRIVER_OK(cuGraphGetNodes(captured, &none, &nodes));
  checkTold(none, context, in_stream, "captured");
  CUgraphExec captured_exec = nullptr;
  DRIVER_OK(cuGraphInstantiate(&captured_exec, captured, 0));
  CHECK(wordAt(words + 16) == seed + 2 && pinned[1] == 73, "%s", "the capture has written");
  DRIVER_OK(cuGraphLaunch(captured_exec, stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  CHECK(wordAt(words + 16) == seed + 3 && pinned[1] == 74, "captured: %u, %u", wordAt(words + 16),
        pinned[1]);

  DRIVER_OK(cuGraphExecDestroy(captured_exec));
  DRIVER_OK(cuGraphDestroy(captured));
  DRIVER_OK(cuGraphExecDestroy(exec));
  DRIVER_OK(cuGraphDestroy(graph));
  DRIVER_OK(cuStreamDestroy(stream));
  DRIVER_OK(cuMemFreeHost(memory));
  DRIVER_OK(cuMemFree(words));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("graph_batch_ops");
}
