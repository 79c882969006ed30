// Nodes of graphs that are batches of a stream's operations.
#include "gpunode/worker/node_target.h"
#include "gpunode/worker/services.h"

namespace olpager::gpunode {

using forward::NodeCall;

CUresult graphBatchNode(Invocation& in) {
  const NodeTarget target = readTarget(in);
  const auto head = in.value<forward::BatchNodeHead>();
  if (head.count == 0 || head.count > forward::kMostBatchOperations) in.arguments().fail();
  const auto sent = in.arguments().raw(uint64_t{head.count} * sizeof(CUstreamBatchMemOpParams));
  const auto context = in.translated<CUcontext>(head.context);
  if (!in.ok()) return in.refusal();
  std::vector<CUstreamBatchMemOpParams> operations(head.count);
  std::memcpy(operations.data(), sent.data(), sent.size());
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, head.count, operations.data(), head.flags};
  const api::DriverTable& driver = in.driver();
  if (driver.cuGraphAddBatchMemOpNode == nullptr ||
      driver.cuGraphBatchMemOpNodeSetParams == nullptr ||
      driver.cuGraphExecBatchMemOpNodeSetParams == nullptr)
    return CUDA_ERROR_NOT_SUPPORTED;
  CUgraphNode node = nullptr;
  switch (target.what) {
    case NodeCall::kAdd:
      return made(in, target,
                  driver.cuGraphAddBatchMemOpNode(&node, target.graph, target.dependencies,
                                                  target.count, &params),
                  node);
    case NodeCall::kSet:
      return driver.cuGraphBatchMemOpNodeSetParams(target.node, &params);
    case NodeCall::kSetExec:
      return driver.cuGraphExecBatchMemOpNodeSetParams(target.exec, target.node, &params);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult batchParameters(Invocation& in, CUgraphNode node) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  if (in.driver().cuGraphBatchMemOpNodeGetParams == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = in.driver().cuGraphBatchMemOpNodeGetParams(node, &params);
  if (result != CUDA_SUCCESS) return result;
  if (params.paramArray == nullptr || params.count > forward::kMostBatchOperations)
    return CUDA_ERROR_UNKNOWN;
  in.results().value(forward::BatchNodeHead{in.numberFor(params.ctx), params.flags, params.count});
  in.results().raw(params.paramArray, params.count * sizeof *params.paramArray);
  return result;
}

}  // namespace olpager::gpunode
