// Graphs built by capture and by the API, updates, node lists; symbols by name and version; atomics in place.
#include <dlfcn.h>

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
  record("graphs.add_memset", api.cuGraphAddMemsetNode(&first, graph, nullptr, 0, &memset_params, base.context));
  CUdeviceptr address = p;
  uint32_t value = 11;
  void* list[] = {&address, &value};
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = kernels.store;
  params.gridDimX = params.gridDimY = params.gridDimZ = params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  params.kernelParams = list;
  record("graphs.add_kernel", api.cuGraphAddKernelNode(&second, graph, &first, 1, &params));
  value = 99;  // the node keeps its own copy
  CUDA_KERNEL_NODE_PARAMS read_back{};
  record("graphs.kernel_params", api.cuGraphKernelNodeGetParams(second, &read_back));
  recordBool("graphs.kernel_params.copied", read_back.kernelParams != nullptr && read_back.kernelParams != list &&
                                                *static_cast<uint32_t*>(read_back.kernelParams[1]) == 11);
  recordBool("graphs.kernel_params.function", read_back.func == kernels.store);
  CUDA_KERNEL_NODE_PARAMS bad = params;
  bad.kernelParams = nullptr;
  CUgraphNode never = nullptr;
  record("graphs.add_kernel_without_params", api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  bad = params;
  bad.blockDimX = 4096;
  record("graphs.add_kernel_block_4096", api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  bad = params;
  bad.func = nullptr;
  record("graphs.add_kernel_null_function", api.cuGraphAddKernelNode(&never, graph, nullptr, 0, &bad));
  record("graphs.add_empty", api.cuGraphAddEmptyNode(&empty, graph, &second, 1));
  CUDA_HOST_NODE_PARAMS host_params{};
  static int calls = 0;
  host_params.fn = [](void*) { ++calls; };
  record("graphs.add_host", api.cuGraphAddHostNode(&third, graph, &empty, 1, &host_params));
  record("graphs.add_cycle", api.cuGraphAddDependencies(graph, &third, &first, nullptr, 1));
  record("graphs.add_duplicate_edge", api.cuGraphAddDependencies(graph, &first, &second, nullptr, 1));
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
  record("graphs.exec_set_other_function", api.cuGraphExecKernelNodeSetParams(exec, second, &other));
  record("graphs.exec_set_params_of_memset_node", api.cuGraphExecKernelNodeSetParams(exec, first, &params));
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
  record("graphs.add_mem_alloc", api.cuGraphAddMemAllocNode(&made, with_memory, nullptr, 0, &allocation));
  if (made != nullptr) {
    record("graphs.add_mem_free", api.cuGraphAddMemFreeNode(&freed, with_memory, &made, 1, allocation.dptr));
    CUgraphExec memory_exec = nullptr;
    record("graphs.instantiate_memory", api.cuGraphInstantiateWithFlags(&memory_exec, with_memory, 0));
    record("graphs.launch_memory", api.cuGraphLaunch(memory_exec, stream));
    record("graphs.launch_memory_again", api.cuGraphLaunch(memory_exec, stream));
    record("graphs.synchronize_memory", api.cuStreamSynchronize(stream));
  }
}

void sectionLookup() {
  struct Case {
    const char* name;
    int version;
    cuuint64_t flags;
  };
  const Case cases[] = {
      {"", 0, 0},
      {"cuInit", 2000, 0},
      {"cuGetProcAddress", 11030, 0},
      {"cuGetProcAddress", 12000, 0},
      {"cuDeviceTotalMem", 2000, 0},
      {"cuDeviceTotalMem", 3020, 0},
      {"cuDeviceTotalMem", 13000, 0},
      {"cuDeviceTotalMem_v2", 13000, 0},
      {"cuCtxCreate", 2000, 0},
      {"cuCtxCreate", 3020, 0},
      {"cuCtxCreate", 11040, 0},
      {"cuCtxCreate", 12050, 0},
      {"cuCtxCreate", 13000, 0},
      {"cuCtxGetDevice", 2000, 0},
      {"cuCtxGetDevice", 13000, 0},
      {"cuCtxSynchronize", 2000, 0},
      {"cuCtxSynchronize", 13000, 0},
      {"cuMemAlloc", 2000, 0},
      {"cuMemAlloc", 3020, 0},
      {"cuMemAlloc", 13000, 2},
      {"cuMemFree", 3020, 0},
      {"cuMemGetInfo", 3020, 0},
      {"cuMemcpyHtoD", 3020, 0},
      {"cuMemcpyHtoD", 3020, 2},
      {"cuMemcpyHtoD", 7000, 0},
      {"cuMemcpyHtoD", 7000, 1},
      {"cuMemcpyHtoD", 7000, 2},
      {"cuMemcpyHtoDAsync", 7000, 0},
      {"cuMemcpyHtoDAsync", 7000, 2},
      {"cuMemcpyAsync", 7000, 0},
      {"cuMemcpyAsync", 7000, 2},
      {"cuMemsetD8", 7000, 2},
      {"cuMemsetD8Async", 7000, 2},
      {"cuLaunchKernel", 4000, 0},
      {"cuLaunchKernel", 4000, 2},
      {"cuLaunchKernel", 7000, 0},
      {"cuLaunchKernel", 7000, 1},
      {"cuLaunchKernel", 7000, 2},
      {"cuLaunchKernel", 7000, 3},
      {"cuLaunchKernel", 7000, 4},
      {"cuLaunchKernelEx", 11060, 2},
      {"cuLaunchKernelEx", 11050, 2},
      {"cuStreamBeginCapture", 10000, 0},
      {"cuStreamBeginCapture", 10010, 0},
      {"cuStreamBeginCapture", 10010, 2},
      {"cuStreamGetCaptureInfo", 10010, 2},
      {"cuStreamGetCaptureInfo", 11030, 2},
      {"cuStreamGetCaptureInfo", 12030, 2},
      {"cuGraphInstantiate", 10000, 0},
      {"cuGraphInstantiate", 11000, 0},
      {"cuGraphInstantiate", 12000, 0},
      {"cuGraphInstantiateWithFlags", 11040, 0},
      {"cuGraphExecUpdate", 10020, 0},
      {"cuGraphExecUpdate", 12000, 0},
      {"cuGraphAddKernelNode", 10000, 0},
      {"cuGraphAddKernelNode", 12000, 0},
      {"cuMemPrefetchAsync", 8000, 0},
      {"cuMemPrefetchAsync", 12020, 0},
      {"cuMemPrefetchAsync", 12020, 2},
      {"cuMemcpyBatchAsync", 12080, 2},
      {"cuMemcpyBatchAsync", 13000, 2},
      {"cuEventElapsedTime", 2000, 0},
      {"cuEventElapsedTime", 12080, 0},
      {"cuEventRecord", 2000, 2},
      {"cuEventRecord", 7000, 2},
      {"cuDeviceGetUuid", 9020, 0},
      {"cuDeviceGetUuid", 11040, 0},
      {"cuStreamWaitValue32", 8000, 0},
      {"cuStreamWaitValue32", 11070, 0},
      {"cuStreamWaitValue32", 11070, 2},
      {"cuMemAllocAsync", 11020, 0},
      {"cuMemAllocAsync", 11020, 2},
      {"cuModuleGetGlobal", 3020, 0},
      {"cuMemcpy2DUnaligned", 7000, 2},
      {"cuCtxDestroy", 4000, 0},
      {"cuIpcOpenMemHandle", 4010, 0},
      {"cuIpcOpenMemHandle", 11000, 0},
      {"cuMemHostRegister", 4000, 0},
      {"cuMemHostRegister", 6050, 0},
      {"cuNoSuchFunction", 13000, 0},
      {"cuLaunchKernel", 1000, 0},
      {"cuLaunchKernel", 99000, 0},
      {"culaunchkernel", 13000, 0},
      {"cuLaunchKernel_ptsz", 13000, 0},
      {"cuGetExportTable", 3000, 0},
      {"cuGLGetDevices", 6050, 0},
  };
  record("lookup.init", api.cuInit(0));
  for (const Case& query : cases) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    const CUresult rc = api.cuGetProcAddress_v2(query.name, &found, query.version, query.flags, &status);
    const std::string key = std::string("lookup.") + (query.name[0] == 0 ? "empty" : query.name) + "." +
                            std::to_string(query.version) + ".flags_" + std::to_string(query.flags);
    std::string value = text(rc) + " status " + std::to_string(status);
    if (found != nullptr) {
      // Which exported symbol is it?
      std::string symbol = "no exported symbol";
      for (const char* version : {"", "_v2", "_v3", "_v4"}) {
        for (const char* per_thread : {"", "_ptds", "_ptsz"}) {
          const std::string candidate = std::string(query.name) + version + per_thread;
          if (dlsym(api.library, candidate.c_str()) == found) symbol = candidate;
        }
      }
      // cuGraphInstantiate of 12.0 is cuGraphInstantiateWithFlags.
      if (dlsym(api.library, "cuGraphInstantiateWithFlags") == found) symbol = "cuGraphInstantiateWithFlags";
      value += " " + symbol;
    }
    record(key, value);
  }
  void* found = nullptr;
  record("lookup.null_status", api.cuGetProcAddress_v2("cuInit", &found, 13000, 0, nullptr));
  record("lookup.null_status_absent", api.cuGetProcAddress_v2("cuNoSuchFunction", &found, 13000, 0, nullptr));
  record("lookup.null_name", api.cuGetProcAddress_v2(nullptr, &found, 13000, 0, nullptr));
  record("lookup.null_pointer", api.cuGetProcAddress_v2("cuInit", nullptr, 13000, 0, nullptr));
  CUuuid unknown{};
  const void* table = nullptr;
  record("lookup.export_table_unknown", api.cuGetExportTable(&table, &unknown));
  CUmoduleLoadingMode mode{};
  const CUresult rc = api.cuModuleGetLoadingMode(&mode);
  recordNumberOr("lookup.loading_mode", rc, mode);
}

void sectionAtomics() {
  const Base base;
  const Kernels kernels;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  constexpr size_t kBytes = size_t{2} << 20;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr device = 0, in_place = 0;
  need(api.cuMemAlloc(&device, kBytes), "cuMemAlloc");
  const CUresult created = api.cuMemCreate(&handle, kBytes, &prop, 0);
  record("atomics.create_host_numa", created);
  void* pinned = nullptr;
  need(api.cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  std::vector<std::pair<std::string, CUdeviceptr>> places = {{"device", device}, {"pinned", CUdeviceptr(pinned)}};
  if (created == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    need(api.cuMemAddressReserve(&in_place, kBytes, 0, 0, 0), "cuMemAddressReserve");
    need(api.cuMemMap(in_place, kBytes, 0, handle, 0), "cuMemMap");
    need(api.cuMemSetAccess(in_place, kBytes, &access, 1), "cuMemSetAccess");
    places.emplace_back("host_numa", in_place);
  }
  for (auto& [name, address] : places) {
    uint32_t words[32] = {};
    words[0] = 100, words[1] = 50, words[2] = 3, words[3] = 4, words[4] = 11;
    const float single = 2.5f;
    std::memcpy(&words[5], &single, 4);
    const uint64_t wide = 5, one = 1;
    std::memcpy(&words[6], &wide, 8);
    const double twice = 1.25;
    std::memcpy(&words[8], &twice, 8);
    words[10] = 3, words[11] = 7, words[12] = 5;
    std::memcpy(&words[14], &one, 8);
    words[16] = 20;
    need(api.cuMemcpy(address, CUdeviceptr(words), sizeof words), "cuMemcpy");
    need(launchOne(kernels.atomics, {&address}), "atomics");
    record("atomics." + name + ".synchronize", api.cuCtxSynchronize());
    need(api.cuMemcpy(CUdeviceptr(words), address, sizeof words), "cuMemcpy");
    std::string text;
    for (int i = 0; i < 17; ++i) text += (i == 0 ? "" : " ") + std::to_string(words[i]);
    record("atomics." + name + ".words", text);
  }
}

}  // namespace conformance
