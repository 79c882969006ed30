// Attributes of a stream or of a kernel's node are told back as they were set, go from stream to
// stream by cuStreamCopyAttributes, and into the nodes of kernels that the stream captures. And the
// functions that don't take the legacy default stream, of which batches are most.
#include "driver_program.h"

namespace {

constexpr unsigned kWords = 512 * 1024;

CUstreamAttrValue windowOver(CUdeviceptr memory) {
  CUstreamAttrValue value{};
  value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(memory + 400);
  value.accessPolicyWindow.num_bytes = 64 << 10;
  value.accessPolicyWindow.hitRatio = 0.5f;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  return value;
}

void checkWindow(const CUaccessPolicyWindow& got, CUdeviceptr memory, const char* whose) {
  const CUaccessPolicyWindow set = windowOver(memory).accessPolicyWindow;
  CHECK(got.base_ptr == set.base_ptr && got.num_bytes == set.num_bytes &&
            got.hitRatio == set.hitRatio && got.hitProp == set.hitProp &&
            got.missProp == set.missProp,
        "%s: a window of %zu bytes at %p", whose, got.num_bytes, got.base_ptr);
}

void checkStream(CUstream stream, CUdeviceptr memory, const char* whose) {
  CUstreamAttrValue got{};
  DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
  checkWindow(got.accessPolicyWindow, memory, whose);
  DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
  CHECK(got.syncPolicy == CU_SYNC_POLICY_YIELD, "%s: synchronization policy %d", whose,
        int(got.syncPolicy));
  DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &got));
  CHECK(got.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE, "%s: domain %d", whose,
        int(got.memSyncDomain));
}

void streams(CUstream stream, CUdeviceptr memory) {
  CUstreamAttrValue value = windowOver(memory);
  DRIVER_OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  value = {};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  DRIVER_OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value = {};
  value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  DRIVER_OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &value));
  checkStream(stream, memory, "the stream");
  CUstream other = nullptr;
  DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  CHECK(value.accessPolicyWindow.num_bytes == 0, "a new stream has a window");
  DRIVER_OK(cuStreamCopyAttributes(other, stream));
  checkStream(other, memory, "a stream with the other's attributes");
  DRIVER_OK(cuStreamDestroy(other));
}

// Checks a node that was added, one that has its attributes, and one that a stream with attributes
// has captured.
void nodes(const apps::Bump& bump, CUstream stream, CUdeviceptr memory) {
  CUgraph graph = nullptr, captured = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  uint32_t count = kWords, value = 1;
  void* parameters[] = {&memory, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = bump.kernel();
  kernel.gridDimX = kWords / 128, kernel.gridDimY = 1, kernel.gridDimZ = 1;
  kernel.blockDimX = 128, kernel.blockDimY = 1, kernel.blockDimZ = 1;
  kernel.kernelParams = parameters;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  DRIVER_OK(cuGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
  DRIVER_OK(cuGraphAddKernelNode(&second, graph, &first, 1, &kernel));
  const CUkernelNodeAttrValue window = windowOver(memory);
  CUkernelNodeAttrValue got{};
  DRIVER_OK(
      cuGraphKernelNodeSetAttribute(first, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &window));
  DRIVER_OK(cuGraphKernelNodeCopyAttributes(second, first));
  for (const CUgraphNode node : {first, second}) {
    DRIVER_OK(
        cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
    checkWindow(got.accessPolicyWindow, memory,
                node == first ? "a node" : "a node with the other's attributes");
  }
  DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  bump(memory, kWords, 1, stream);
  DRIVER_OK(cuStreamEndCapture(stream, &captured));
  size_t all = 1;
  DRIVER_OK(cuGraphGetNodes(captured, &first, &all));
  DRIVER_OK(
      cuGraphKernelNodeGetAttribute(first, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
  checkWindow(got.accessPolicyWindow, memory, "a captured node");
  for (const CUgraph one : {graph, captured}) {
    CUgraphExec exec = nullptr;
    DRIVER_OK(cuGraphInstantiate(&exec, one, 0));
    DRIVER_OK(cuGraphLaunch(exec, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    DRIVER_OK(cuGraphExecDestroy(exec));
    DRIVER_OK(cuGraphDestroy(one));
  }
  uint32_t word = 0;
  DRIVER_OK(cuMemcpyDtoH(&word, memory, 4));
  CHECK(word == 3, "after three kernels a word is %u", word);
}

// Batches, by the functions of CUDA 12.8 and 13.0, and memory that is attached to one stream.
void legacyRefused(CUstream stream, CUdeviceptr memory) {
  using Batch12 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                               size_t*, size_t, size_t*, CUstream);
  using Batch13 = CUresult (*)(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*,
                               size_t*, size_t, CUstream);
  Batch12 batch12 = nullptr;
  Batch13 batch13 = nullptr;
  CUdriverProcAddressQueryResult found{};
  DRIVER_OK(
      cuGetProcAddress("cuMemcpyBatchAsync", reinterpret_cast<void**>(&batch12), 12080, 0, &found));
  DRIVER_OK(
      cuGetProcAddress("cuMemcpyBatchAsync", reinterpret_cast<void**>(&batch13), 13000, 0, &found));
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUdeviceptr to = memory + 8192, from = memory;
  size_t bytes = 4096, start = 0, failed = 0;
  CUDA_MEMCPY3D_BATCH_OP box{};
  box.src.type = box.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  box.src.op.ptr.ptr = from, box.dst.op.ptr.ptr = to;
  box.extent = {4096, 1, 1};
  box.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  for (const CUstream in : {CUstream(nullptr), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, stream}) {
    const CUresult expected =
        in == nullptr || in == CU_STREAM_LEGACY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    const CUresult of12 = batch12(&to, &from, &bytes, 1, &attributes, &start, 1, &failed, in);
    const CUresult of13 = batch13(&to, &from, &bytes, 1, &attributes, &start, 1, in);
    const CUresult of_boxes = cuMemcpy3DBatchAsync(1, &box, 0, in);
    CHECK(of12 == expected && of13 == expected && of_boxes == expected,
          "batches in stream %p: %d, %d, %d", static_cast<void*>(in), int(of12), int(of13),
          int(of_boxes));
  }
  DRIVER_OK(cuCtxSynchronize());
  CUdeviceptr managed = 0;
  if (cuMemAllocManaged(&managed, kWords * 4, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return;
  CUmemLocation here{};
  here.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t whole = kWords * 4;
  for (const CUstream in : {CUstream(nullptr), CU_STREAM_LEGACY}) {
    const CUresult prefetched =
        cuMemPrefetchBatchAsync(&managed, &whole, 1, &here, &start, 1, 0, in);
    const CUresult attached = cuStreamAttachMemAsync(in, managed, 0, CU_MEM_ATTACH_SINGLE);
    CHECK(prefetched == CUDA_ERROR_INVALID_VALUE && attached == CUDA_ERROR_INVALID_VALUE,
          "in the legacy stream: prefetches %d, attached memory %d", int(prefetched),
          int(attached));
  }
  DRIVER_OK(cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
  DRIVER_OK(cuStreamSynchronize(stream));
  DRIVER_OK(cuMemFree(managed));
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump bump(4);
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> pieces;
  for (size_t done = 0; done < options.bytes; done += kWords * 4) {
    DRIVER_OK(cuMemAlloc(&pieces.emplace_back(), kWords * 4));
    DRIVER_OK(cuMemsetD32(pieces.back(), 0, kWords));
  }
  streams(stream, pieces[0]);
  // With a window over memory that is elsewhere by then.
  for (const CUdeviceptr piece : pieces) bump(piece, kWords, 0, stream);
  DRIVER_OK(cuStreamSynchronize(stream));
  checkStream(stream, pieces[0], "the stream after launches");
  nodes(bump, stream, pieces[0]);
  legacyRefused(stream, pieces[1]);
  DRIVER_OK(cuStreamDestroy(stream));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("attributes of streams and nodes, and functions that refuse the legacy stream");
}
