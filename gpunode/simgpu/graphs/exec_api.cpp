// cuGraph* functions about instances.
#include "gpunode/simgpu/api.h"

#include "gpunode/simgpu/context.h"
#include "gpunode/simgpu/device.h"
#include "gpunode/simgpu/graphs/exec.h"
#include "gpunode/simgpu/graphs/graph_access.h"

using namespace olpager::simgpu;

namespace {

CUresult requireExec(CUgraphExec handle, std::shared_ptr<GraphExec>* exec) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  *exec = GraphRegistry::get().execs.find(handle);
  return *exec != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, cuuint64_t flags, CUgraphNode* culprit) {
  constexpr cuuint64_t kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(handle, &graph); error != CUDA_SUCCESS) return error;
  if (graph->moved()) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
    return notSupported("graph launch from the device");
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = GraphExec::instantiate(*graph, flags, &exec, culprit);
      error != CUDA_SUCCESS) {
    return error;
  }
  *out = exec->handle();
  return CUDA_SUCCESS;
}

CUresult instantiateWithLog(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                            size_t log_size) {
  CUgraphNode culprit = nullptr;
  if (log != nullptr && log_size != 0) log[0] = '\0';
  const CUresult error = instantiate(out, graph, 0, &culprit);
  if (error_node != nullptr) *error_node = culprit;
  return error;
}

CUresult instantiateWithParams(CUgraphExec* out, CUgraph graph,
                               CUDA_GRAPH_INSTANTIATE_PARAMS* params, bool per_thread) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  if ((params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
    std::shared_ptr<Context> context;
    std::shared_ptr<Stream> stream;
    if (const CUresult error = requireStream(params->hUploadStream, per_thread, &context, &stream);
        error != CUDA_SUCCESS) {
      return error;
    }
  }
  const CUresult error = instantiate(out, graph, params->flags, &params->hErrNode_out);
  if (error == CUDA_ERROR_INVALID_VALUE) {
    params->result_out = params->hErrNode_out == nullptr ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                         : CUDA_GRAPH_INSTANTIATE_ERROR;
  }
  if (error == CUDA_ERROR_NOT_SUPPORTED)
    params->result_out = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
  return error;
}

CUresult launch(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (const CUresult error = requireStream(stream_handle, per_thread, &context, &stream);
      error != CUDA_SUCCESS) {
    return error;
  }
  return exec->launch(*context, *stream);
}

// Nothing is kept on the device, so an upload is only a check of its arguments.
CUresult upload(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  return requireStream(stream_handle, per_thread, &context, &stream);
}

CUresult update(CUgraphExec handle, CUgraph graph_handle, UpdateResult* result) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Graph> graph;
  if (const CUresult error = requireGraph(graph_handle, &graph); error != CUDA_SUCCESS)
    return error;
  return exec->update(*graph, result);
}

// Replaces the contents of one node of an instance by what `make(old, &new)` makes.
template <typename Make>
CUresult changeExec(CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, Make make) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  CaptureNode before;
  const CUresult found = exec->changeNode(node, [&](ExecNode& target) {
    if (target.spec.type != type) return CUDA_ERROR_INVALID_VALUE;
    before = target.spec;
    return CUDA_SUCCESS;
  });
  if (found != CUDA_SUCCESS) return found;
  CaptureNode spec;
  if (const CUresult error = make(before, &spec); error != CUDA_SUCCESS) return error;
  return exec->changeNode(node, [&](ExecNode& target) {
    if (!canReplace(target.spec, spec)) return CUDA_ERROR_INVALID_VALUE;
    target.spec = std::move(spec);
    return CUDA_SUCCESS;
  });
}

bool canBeDisabled(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
         type == CU_GRAPH_NODE_TYPE_MEMSET;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                                    char* log, size_t size) {
  return instantiateWithLog(out, graph, error_node, log, size);
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                                       char* log, size_t size) {
  return instantiateWithLog(out, graph, error_node, log, size);
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph,
                                             unsigned long long flags) {
  CUgraphNode culprit = nullptr;
  return instantiate(out, graph, flags, &culprit);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiateWithParams(out, graph, params, false);
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec* out, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return instantiateWithParams(out, graph, params, true);
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  *flags = exec->flags();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  if (const CUresult error = requireInit(); error != CUDA_SUCCESS) return error;
  return GraphRegistry::get().execs.remove(handle) != nullptr ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream, false);
}
CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream, true);
}
CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return upload(exec, stream, false);
}
CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return upload(exec, stream, true);
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                   CUgraphExecUpdateResult* out) {
  UpdateResult result;
  const CUresult error = update(exec, graph, &result);
  if (error_node != nullptr) *error_node = result.node;
  if (out != nullptr) *out = result.result;
  return error;
}

CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                      CUgraphExecUpdateResultInfo* info) {
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  UpdateResult result;
  const CUresult error = update(exec, graph, &result);
  *info = {result.result, result.node, result.from};
  return error;
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return changeExec(exec, node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return kernelSpec(*params, &before, spec);
                    });
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return changeExec(exec, node, CU_GRAPH_NODE_TYPE_KERNEL,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      return kernelSpec(*params, &before, spec);
                    });
}

CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMCPY3D* params, CUcontext context) {
  return changeExec(
      exec, node, CU_GRAPH_NODE_TYPE_MEMCPY,
      [=](const CaptureNode&, CaptureNode* spec) { return memcpySpec(params, context, spec); });
}

CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_MEMSET_NODE_PARAMS* params,
                                                CUcontext context) {
  return changeExec(
      exec, node, CU_GRAPH_NODE_TYPE_MEMSET,
      [=](const CaptureNode&, CaptureNode* spec) { return memsetSpec(params, context, spec); });
}

CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_HOST_NODE_PARAMS* params) {
  return changeExec(
      exec, node, CU_GRAPH_NODE_TYPE_HOST,
      [params](const CaptureNode&, CaptureNode* spec) { return hostSpec(params, spec); });
}

CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return changeExec(
      exec, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      [params](const CaptureNode&, CaptureNode* spec) { return batchSpec(params, spec); });
}

CUresult CUDAAPI cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                    CUevent event) {
  return changeExec(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                    [event](const CaptureNode& before, CaptureNode* spec) {
                      return eventSpec(before.type, event, spec);
                    });
}

CUresult CUDAAPI cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node,
                                                  CUevent event) {
  return changeExec(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                    [event](const CaptureNode& before, CaptureNode* spec) {
                      return eventSpec(before.type, event, spec);
                    });
}

CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node,
                                                    CUgraph child_handle) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  std::shared_ptr<Graph> child;
  if (const CUresult error = requireGraph(child_handle, &child); error != CUDA_SUCCESS)
    return error;
  return exec->updateChild(node, *child);
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                          CUgraphNodeParams* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
  }
  return changeExec(exec, node, params->type,
                    [params](const CaptureNode& before, CaptureNode* spec) {
                      const bool kernel = before.type == CU_GRAPH_NODE_TYPE_KERNEL;
                      return specOf(*params, kernel ? &before : nullptr, spec);
                    });
}

CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned enabled) {
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  return exec->changeNode(node, [enabled](ExecNode& target) {
    if (!canBeDisabled(target.spec.type)) return CUDA_ERROR_INVALID_VALUE;
    target.enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned* enabled) {
  if (enabled == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphExec> exec;
  if (const CUresult error = requireExec(handle, &exec); error != CUDA_SUCCESS) return error;
  return exec->changeNode(node, [enabled](ExecNode& target) {
    if (!canBeDisabled(target.spec.type)) return CUDA_ERROR_INVALID_VALUE;
    *enabled = target.enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
