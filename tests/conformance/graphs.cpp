// Graphs built by the API, their updates, node lists, child graphs, memory nodes.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionGraphs() {
  const Base base;
  const Kernels kernels;
  CUstream stream = nullptr;
  need(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUdeviceptr p = 0;
  need(api.cuMemAlloc(&p, 1 << 20), "cuMemAlloc");
  CUgraph graph = nullptr;
  record("graphs.create", api.cuGraphCreate(&graph, 0));
  record("graphs.create_flags", api.cuGraphCreate(&graph, 1));
  CUDA_MEMSET_NODE_PARAMS memset_params{};
  memset_params.dst = p;
  memset_params.value = 0;
  memset_params.elementSize = 4;
  memset_params.width = 64;
  memset_params.height = 1;
  CUgraphNode first = nullptr, second = nullptr, third = nullptr, empty = nullptr;
  record("graphs.add_memset",
         api.cuGraphAddMemsetNode(&first, graph, nullptr, 0, &memset_params, base.context));
  CUdeviceptr address = p;
  uint32_t value = 11;
  void* list[] = {&address, &value};
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = kernels.store;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY =
      params.blockDimZ = 1;
  params.kernelParams = list;
  record("graphs.add_kernel", api.cuGraphAddKernelNode(&second, graph, &first, 1, &params));
  value = 99;  // the node keeps its own copy
  CUDA_KERNEL_NODE_PARAMS read_back{};
  record("graphs.kernel_params", api.cuGraphKernelNodeGetParams(second, &read_back));
  recordBool("graphs.kernel_params.copied",
             read_back.kernelParams != nullptr && read_back.kernelParams != list &&
                 *static_cast<uint32_t*>(read_back.kernelParams[1]) == 11);
  recordBool("graphs.kernel_params.function", read_back.func == kernels.store);
  CUDA_KERNEL_NODE_PARAMS bad = params;
  bad.kernelParams = nullptr;
  CUgraphNode never = nullptr;
  record("graphs.add_kernel_without_params",
         api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  bad = params;
  bad.blockDimX = 4096;
  record("graphs.add_kernel_block_4096", api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  bad = params;
  bad.func = nullptr;
  record("graphs.add_kernel_null_function",
         api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  record("graphs.add_empty", api.cuGraphAddEmptyNode(&empty, graph, &second, 1));
  CUDA_HOST_NODE_PARAMS host_params{};
  static int calls = 0;
  host_params.fn = [](void*) { ++calls; };
  record("graphs.add_host", api.cuGraphAddHostNode(&third, graph, &empty, 1, &host_params));
  record("graphs.add_duplicate_edge",
         api.cuGraphAddDependencies(graph, &first, &second, nullptr, 1));
  CUgraphNodeType type{};
  const CUresult typed = api.cuGraphNodeGetType(second, &type);
  recordNumberOr("graphs.node_type", typed, type);
  size_t count = 0;
  record("graphs.nodes", api.cuGraphGetNodes(graph, nullptr, &count));
  recordNumber("graphs.nodes.count", int64_t(count));
  const CUresult edges = api.cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count);
  recordNumberOr("graphs.edges", edges, int64_t(count));
  CUgraphExec exec = nullptr;
  record("graphs.instantiate", api.cuGraphInstantiateWithFlags(&exec, graph, 0));
  record("graphs.upload", api.cuGraphUpload(exec, stream));
  record("graphs.launch", api.cuGraphLaunch(exec, stream));
  record("graphs.synchronize", api.cuStreamSynchronize(stream));
  uint32_t got = 0;
  need(api.cuMemcpyDtoH(&got, p, 4), "cuMemcpyDtoH");
  recordNumber("graphs.kernel_wrote", got);
  recordNumber("graphs.host_calls", calls);
  value = 22;
  record("graphs.exec_set_params", api.cuGraphExecKernelNodeSetParams(exec, second, &params));
  need(api.cuGraphLaunch(exec, stream), "cuGraphLaunch");
  api.cuStreamSynchronize(stream);
  api.cuMemcpyDtoH(&got, p, 4);
  recordNumber("graphs.updated_kernel_wrote", got);
  CUDA_KERNEL_NODE_PARAMS other = params;
  other.func = kernels.load;
  void* load_list[] = {&address, &address};
  other.kernelParams = load_list;
  record("graphs.exec_set_other_function",
         api.cuGraphExecKernelNodeSetParams(exec, second, &other));
  record("graphs.exec_set_params_of_memset_node",
         api.cuGraphExecKernelNodeSetParams(exec, first, &params));
  value = 33;
  record("graphs.node_set_params", api.cuGraphKernelNodeSetParams(second, &params));
  need(api.cuGraphLaunch(exec, stream), "cuGraphLaunch");
  api.cuStreamSynchronize(stream);
  CUgraphExecUpdateResultInfo info{};
  record("graphs.exec_update", api.cuGraphExecUpdate(exec, graph, &info));
  recordNumber("graphs.exec_update.result", info.result);
  need(api.cuGraphLaunch(exec, stream), "cuGraphLaunch");
  api.cuStreamSynchronize(stream);
  api.cuMemcpyDtoH(&got, p, 4);
  recordNumber("graphs.exec_updated_wrote", got);
  CUgraph different = nullptr;
  need(api.cuGraphCreate(&different, 0), "cuGraphCreate");
  need(api.cuGraphAddEmptyNode(&never, different, nullptr, 0), "cuGraphAddEmptyNode");
  record("graphs.exec_update_other_topology", api.cuGraphExecUpdate(exec, different, &info));
  recordNumber("graphs.exec_update_other_topology.result", info.result);
  // A cycle is found at instantiation.
  CUgraph cyclic = nullptr;
  CUgraphNode one = nullptr, two = nullptr;
  CUgraphExec impossible = nullptr;
  need(api.cuGraphCreate(&cyclic, 0), "cuGraphCreate");
  need(api.cuGraphAddEmptyNode(&one, cyclic, nullptr, 0), "cuGraphAddEmptyNode");
  need(api.cuGraphAddEmptyNode(&two, cyclic, &one, 1), "cuGraphAddEmptyNode");
  record("graphs.cycle_add", api.cuGraphAddDependencies(cyclic, &two, &one, nullptr, 1));
  record("graphs.cycle_instantiate", api.cuGraphInstantiateWithFlags(&impossible, cyclic, 0));
  CUgraph clone = nullptr;
  record("graphs.clone", api.cuGraphClone(&clone, graph));
  CUgraphNode child = nullptr;
  record("graphs.add_child", api.cuGraphAddChildGraphNode(&child, different, &never, 1, clone));
  CUgraphExec nested = nullptr;
  record("graphs.instantiate_child", api.cuGraphInstantiateWithFlags(&nested, different, 0));
  record("graphs.launch_child", api.cuGraphLaunch(nested, stream));
  record("graphs.synchronize_child", api.cuStreamSynchronize(stream));
  record("graphs.destroy_graph_keeps_exec", api.cuGraphDestroy(graph));
  record("graphs.launch_after_destroy", api.cuGraphLaunch(exec, stream));
  record("graphs.destroy_exec_pending", api.cuGraphExecDestroy(exec));
  record("graphs.synchronize_after_destroy", api.cuStreamSynchronize(stream));
  record("graphs.instantiate_null", api.cuGraphInstantiateWithFlags(&exec, nullptr, 0));
  record("graphs.launch_null", api.cuGraphLaunch(nullptr, stream));
  // Memory nodes.
  CUgraph with_memory = nullptr;
  need(api.cuGraphCreate(&with_memory, 0), "cuGraphCreate");
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
  allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocation.bytesize = 1 << 20;
  CUgraphNode made = nullptr, freed = nullptr;
  record("graphs.add_mem_alloc",
         api.cuGraphAddMemAllocNode(&made, with_memory, nullptr, 0, &allocation));
  if (made != nullptr) {
    record("graphs.add_mem_free",
           api.cuGraphAddMemFreeNode(&freed, with_memory, &made, 1, allocation.dptr));
    CUgraphExec memory_exec = nullptr;
    record("graphs.instantiate_memory",
           api.cuGraphInstantiateWithFlags(&memory_exec, with_memory, 0));
    record("graphs.launch_memory", api.cuGraphLaunch(memory_exec, stream));
    record("graphs.launch_memory_again", api.cuGraphLaunch(memory_exec, stream));
    record("graphs.synchronize_memory", api.cuStreamSynchronize(stream));
  }
}

}  // namespace conformance
