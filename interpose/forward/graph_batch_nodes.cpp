// Nodes of graphs that are batches of a stream's operations: values that are waited for and
// written, barriers.
#include <cstring>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/node_calls.h"
#include "interpose/forward/reached.h"

namespace olpager::forward {
namespace {

CUresult batchNode(const Target& target, const CUDA_BATCH_MEM_OP_NODE_PARAMS* given,
                   CUgraphNode* made) {
  if (given == nullptr || given->paramArray == nullptr || given->count == 0 ||
      given->count > kMostBatchOperations || (target.what == NodeCall::kAdd && made == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  Session* const session = sessionOf(target);
  if (session == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  // Pinned memory that they reach is exchanged at each launch of the graph.
  for (const CUdeviceptr address : addressesOf(given->paramArray, given->count)) {
    if (isExchanged(*session, address)) noteNamed(session, address);
  }
  Call call(Operation::kGraphBatchNode, session);
  call.names(1);
  put(call, target);
  call.value(BatchNodeHead{reinterpret_cast<uint64_t>(given->ctx), given->flags, given->count});
  call.raw(given->paramArray, given->count * sizeof *given->paramArray);
  return finish(call, made);
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph,
                                             const CUgraphNode* dependencies, size_t count,
                                             const CUDA_BATCH_MEM_OP_NODE_PARAMS* given) {
  return batchNode({NodeCall::kAdd, graph, dependencies, count}, given, node);
}
CUresult ol_forward_cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                                   const CUDA_BATCH_MEM_OP_NODE_PARAMS* given) {
  return batchNode({NodeCall::kSet, nullptr, nullptr, 0, node}, given, nullptr);
}
CUresult ol_forward_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                       const CUDA_BATCH_MEM_OP_NODE_PARAMS* given) {
  return batchNode({NodeCall::kSetExec, nullptr, nullptr, 0, node, exec}, given, nullptr);
}

CUresult ol_forward_cuGraphBatchMemOpNodeGetParams(CUgraphNode node,
                                                   CUDA_BATCH_MEM_OP_NODE_PARAMS* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphNodeParameters, Route().handle(node));
  const CUresult result = ask(call, node, NodeKind::kBatch);
  if (!call.answered()) return result;
  const auto head = call.reply().value<BatchNodeHead>();
  const auto operations = call.reply().raw(uint64_t{head.count} * sizeof(CUstreamBatchMemOpParams));
  if (!call.reply().ok()) return CUDA_ERROR_UNKNOWN;
  auto made = std::make_unique<ToldParameters>();
  made->block.assign(operations.begin(), operations.end());
  *out = {reinterpret_cast<CUcontext>(head.context), head.count,
          reinterpret_cast<CUstreamBatchMemOpParams*>(made->block.data()), head.flags};
  keepTold(*call.session(), node, std::move(made));
  return result;
}

}  // extern "C"
