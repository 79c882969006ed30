// When the driver looks at the memory of a graph's copies and memsets, and what it lets an
// executable graph change of them.
#include "record.h"

namespace conformance {
namespace {

constexpr size_t kBytes = size_t{2} << 20;

// A range at which VRAM, host memory or nothing is mapped in turns.
class Window {
 public:
  Window() {
    need(api.cuMemAddressReserve(&address_, kBytes, 0, 0, 0), "cuMemAddressReserve");
    vram_ = make(CU_MEM_LOCATION_TYPE_DEVICE);
    host_ = make(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  }
  CUdeviceptr address() const { return address_; }
  void vram() { show(vram_); }
  void host() { show(host_ != 0 ? host_ : vram_); }  // some machines refuse it
  void nothing() { show(0); }
  bool hasHost() const { return host_ != 0; }

 private:
  static CUmemGenericAllocationHandle make(CUmemLocationType type) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {type, 0};
    CUmemGenericAllocationHandle handle = 0;
    const CUresult made = api.cuMemCreate(&handle, kBytes, &properties, 0);
    if (type == CU_MEM_LOCATION_TYPE_DEVICE) need(made, "cuMemCreate");
    return made == CUDA_SUCCESS ? handle : 0;
  }
  void show(CUmemGenericAllocationHandle handle) {
    if (mapped_ != 0) need(api.cuMemUnmap(address_, kBytes), "cuMemUnmap");
    mapped_ = handle;
    if (handle == 0) return;
    need(api.cuMemMap(address_, kBytes, 0, handle, 0), "cuMemMap");
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    need(api.cuMemSetAccess(address_, kBytes, &access, 1), "cuMemSetAccess");
  }

  CUdeviceptr address_ = 0;
  CUmemGenericAllocationHandle vram_ = 0, host_ = 0, mapped_ = 0;
};

CUDA_MEMCPY3D copyOf(CUdeviceptr to, CUdeviceptr from) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.srcPitch = copy.dstPitch = 1024;
  copy.srcHeight = copy.dstHeight = 4;
  copy.WidthInBytes = 512;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

void recordUpdate(const std::string& key, CUgraphExec exec, CUgraph graph) {
  CUgraphExecUpdateResultInfo info{};
  record(key, api.cuGraphExecUpdate(exec, graph, &info));
  recordNumber(key + ".result", info.result);
  recordBool(key + ".names_node", info.errorNode != nullptr);
}

}  // namespace

void sectionGraphCopies() {
  const Base base;
  CUstream stream = nullptr;
  need(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Window window, other;
  recordBool("graph_copies.host_numa", window.hasHost());
  CUdeviceptr allocated = 0;
  need(api.cuMemAlloc(&allocated, kBytes), "cuMemAlloc");
  const auto instantiated = [](CUgraph graph) {
    CUgraphExec exec = nullptr;
    need(api.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
    return exec;
  };

  for (const bool is_set : {false, true}) {
    const std::string kind = is_set ? "graph_copies.memset." : "graph_copies.memcpy.";
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    need(api.cuGraphCreate(&graph, 0), "cuGraphCreate");
    CUDA_MEMCPY3D copy = copyOf(allocated, window.address());
    CUDA_MEMSET_NODE_PARAMS set{window.address(), 1024, 5, 4, 64, 1};
    const auto add = [&] {
      return is_set ? api.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &set, base.context)
                    : api.cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, base.context);
    };
    const auto setNode = [&] {
      return is_set ? api.cuGraphMemsetNodeSetParams(node, &set)
                    : api.cuGraphMemcpyNodeSetParams(node, &copy);
    };
    const auto setExec = [&](CUgraphExec exec) {
      return is_set ? api.cuGraphExecMemsetNodeSetParams(exec, node, &set, base.context)
                    : api.cuGraphExecMemcpyNodeSetParams(exec, node, &copy, base.context);
    };
    const auto use = [&](CUdeviceptr address) { (is_set ? set.dst : copy.srcDevice) = address; };

    // Where is it looked for?
    window.nothing();
    record(kind + "add_unmapped", add());
    window.vram();
    need(add(), "a node over mapped memory");
    window.nothing();
    record(kind + "set_unmapped", setNode());
    CUgraphExec exec = nullptr;
    CUgraph clone = nullptr;
    record(kind + "clone_unmapped", api.cuGraphClone(&clone, graph));
    record(kind + "instantiate_unmapped", api.cuGraphInstantiateWithFlags(&exec, graph, 0));
    window.vram();
    exec = instantiated(graph);
    window.nothing();
    recordUpdate(kind + "update_unmapped", exec, graph);
    record(kind + "exec_set_unmapped", setExec(exec));
    record(kind + "upload_unmapped", api.cuGraphUpload(exec, stream));
    record(kind + "upload_unmapped.synchronize", api.cuStreamSynchronize(stream));

    // Other memory, while what was there before is mapped nowhere.
    other.vram();
    use(other.address());
    record(kind + "exec_set_from_unmapped", setExec(exec));
    need(setNode(), "a node over mapped memory");
    recordUpdate(kind + "update_from_unmapped", exec, graph);
    window.vram();
    use(window.address());
    need(setNode(), "a node over mapped memory");

    // The same address, of VRAM when it was made executable, and of host memory now; and the other
    // way round.
    exec = instantiated(graph);
    window.host();
    record(kind + "exec_set_vram_to_host", setExec(exec));
    recordUpdate(kind + "update_vram_to_host", exec, graph);
    record(kind + "launch_vram_to_host", api.cuGraphLaunch(exec, stream));
    record(kind + "launch_vram_to_host.synchronize", api.cuStreamSynchronize(stream));
    exec = instantiated(graph);
    window.vram();
    record(kind + "exec_set_host_to_vram", setExec(exec));
    recordUpdate(kind + "update_host_to_vram", exec, graph);
    record(kind + "launch_host_to_vram", api.cuGraphLaunch(exec, stream));
    record(kind + "launch_host_to_vram.synchronize", api.cuStreamSynchronize(stream));

    // Memory of another kind.
    exec = instantiated(graph);
    use(allocated + kBytes / 2);
    record(kind + "exec_set_vmm_to_allocation", setExec(exec));
    need(setNode(), "a node over allocated memory");
    recordUpdate(kind + "update_vmm_to_allocation", exec, graph);
    use(window.address());

    // Another shape: the size, two dimensions, nothing.
    need(setNode(), "a node over mapped memory");
    exec = instantiated(graph);
    (is_set ? set.width : copy.WidthInBytes) = 32;
    record(kind + "exec_set_smaller", setExec(exec));
    (is_set ? set.width : copy.WidthInBytes) = 128;
    record(kind + "exec_set_larger", setExec(exec));
    if (!is_set) {
      copy.Height = 5;
      record(kind + "set_beyond_height", setNode());
    }
    (is_set ? set.height : copy.Height) = 2;
    record(kind + "exec_set_rows", setExec(exec));
    need(setNode(), "a node of two rows");
    recordUpdate(kind + "update_to_rows", exec, graph);
    exec = instantiated(graph);
    use(other.address());
    record(kind + "exec_set_of_rows", setExec(exec));
    need(setNode(), "a node of two rows");
    recordUpdate(kind + "update_of_rows", exec, graph);
    (is_set ? set.height : copy.Height) = 1;
    (is_set ? set.width : copy.WidthInBytes) = 0;
    record(kind + "exec_set_nothing", setExec(exec));
    if (is_set) {
      set.width = 128;
      set.height = 2;
      need(setNode(), "a memset of two rows");
      exec = instantiated(graph);
      set.height = 3;
      record(kind + "exec_set_more_rows", setExec(exec));
      set.height = 1;
    }

    // A graph as a child, and an update that changes a node, while what the one or the other has is
    // mapped nowhere.
    (is_set ? set.width : copy.WidthInBytes) = 128;
    window.vram();
    use(window.address());
    need(setNode(), "a node over mapped memory");
    window.nothing();
    CUgraph parent = nullptr;
    CUgraphNode child = nullptr;
    need(api.cuGraphCreate(&parent, 0), "cuGraphCreate");
    record(kind + "add_child_unmapped",
           api.cuGraphAddChildGraphNode(&child, parent, nullptr, 0, graph));
    window.vram();
    exec = instantiated(graph);
    use(other.address());
    need(setNode(), "a node over mapped memory");
    other.nothing();
    recordUpdate(kind + "update_changed_to_unmapped", exec, graph);
    other.vram();
    window.nothing();
    recordUpdate(kind + "update_changed_from_unmapped", exec, graph);

    // Another address, where it is memory of the other kind.
    window.vram();
    use(window.address());
    need(setNode(), "a node over mapped memory");
    exec = instantiated(graph);
    other.host();
    use(other.address());
    record(kind + "exec_set_to_other_in_host", setExec(exec));
    exec = instantiated(graph);
    need(setNode(), "a node over mapped memory");
    recordUpdate(kind + "update_to_other_in_host", exec, graph);
    exec = instantiated(graph);
    use(window.address());
    record(kind + "exec_set_to_other_in_vram", setExec(exec));
    need(setNode(), "a node over mapped memory");
    recordUpdate(kind + "update_to_other_in_vram", exec, graph);
  }
}

}  // namespace conformance
