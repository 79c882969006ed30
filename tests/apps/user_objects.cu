// User objects that a program ties to graphs: the driver calls their destructor once, on a thread
// of its own, when the last reference is given back, by the program or with the last graph,
// executable graph or launch that has one, and not before. Some objects are still there when the
// program ends.
#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace {

constexpr int kObjects = 200, kThreads = 3;

struct Resource {
  std::atomic<int> gone{0};
};
void CUDART_CB destroy(void* data) { static_cast<Resource*>(data)->gone.fetch_add(1); }

CUuserObject make(Resource& resource, unsigned references) {
  CUuserObject object = nullptr;
  DRIVER_OK(cuUserObjectCreate(&object, &resource, destroy, references,
                               CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK(object != nullptr, "no object");
  return object;
}

// Nobody waits for destructors: they come soon.
void goes(const Resource& resource, const char* what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (resource.gone == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(resource.gone == 1, "%s: the destructor was called %d times, not once", what,
        resource.gone.load());
}
void stays(const Resource& resource, const char* what) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(resource.gone == 0, "%s: the destructor was called too early", what);
}

void countReferences() {
  Resource one, several;
  DRIVER_OK(cuUserObjectRelease(make(one, 1), 1));
  goes(one, "the only reference");
  const CUuserObject object = make(several, 3);
  DRIVER_OK(cuUserObjectRelease(object, 2));
  DRIVER_OK(cuUserObjectRetain(object, 4));
  DRIVER_OK(cuUserObjectRelease(object, 1));
  DRIVER_OK(cuUserObjectRelease(object, 3));
  stays(several, "one of seven references is left");
  DRIVER_OK(cuUserObjectRelease(object, 1));
  goes(several, "all of seven references");

  CUuserObject none = nullptr;
  constexpr auto kFlags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
  CHECK(cuUserObjectCreate(&none, &one, nullptr, 1, kFlags) == CUDA_ERROR_INVALID_VALUE,
        "without a destructor");
  CHECK(cuUserObjectCreate(&none, &one, destroy, 0, kFlags) == CUDA_ERROR_INVALID_VALUE,
        "without a reference");
  CHECK(cuUserObjectCreate(&none, &one, destroy, 1, 0) == CUDA_ERROR_INVALID_VALUE,
        "without the flag");
  CHECK(cuUserObjectCreate(nullptr, &one, destroy, 1, kFlags) == CUDA_ERROR_INVALID_VALUE,
        "with no place for it");
  goes(one, "one that was refused");  // once, as before
}

void CUDART_CB takeTime(void* data) {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  *static_cast<std::atomic<bool>*>(data) = true;
}

void holdByGraphs() {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  std::atomic<bool> ran{false};
  const CUDA_HOST_NODE_PARAMS slow{takeTime, &ran};
  Resource moved, shared, returned;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  DRIVER_OK(cuGraphAddHostNode(&node, graph, nullptr, 0, &slow));
  DRIVER_OK(cuGraphRetainUserObject(graph, make(moved, 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
  const CUuserObject both = make(shared, 1);
  DRIVER_OK(cuGraphRetainUserObject(graph, both, 2, 0));
  const CUuserObject back = make(returned, 1);
  DRIVER_OK(cuGraphRetainUserObject(graph, back, 1, CU_GRAPH_USER_OBJECT_MOVE));
  DRIVER_OK(cuGraphReleaseUserObject(graph, back, 1));
  goes(returned, "given back by the graph");
  DRIVER_OK(cuGraphReleaseUserObject(graph, both, 1));
  DRIVER_OK(cuUserObjectRelease(both, 1));
  stays(shared, "the graph has a reference");

  CUgraphExec exec = nullptr;
  DRIVER_OK(cuGraphInstantiate(&exec, graph, 0));
  DRIVER_OK(cuGraphDestroy(graph));
  stays(moved, "the executable graph has a reference");
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuGraphLaunch(exec, stream));
  DRIVER_OK(cuGraphExecDestroy(exec));
  // The launch has them until it is through. Nothing is called meanwhile.
  goes(moved, "with the executable graph");
  goes(shared, "likewise, after two references");
  CHECK(ran, "%s", "the destructors were called before the graph's launch was through");
  DRIVER_OK(cuStreamSynchronize(stream));
  DRIVER_OK(cuStreamDestroy(stream));
}

// As libraries do it: what a capture uses lives as long as its graph.
void holdByCapture(uint32_t* words, size_t bytes, uint32_t seed) {
  Resource used;
  cudaStream_t stream = nullptr;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  apps::add(words, bytes, 3, stream);
  CUstreamCaptureStatus status{};
  CUgraph captured = nullptr;
  cuuint64_t id = 0;
#if CUDA_VERSION >= 13000
  DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, nullptr, nullptr, nullptr));
#else
  DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, &id, &captured, nullptr, nullptr));
#endif
  cudaUserObject_t object = nullptr;
  RUNTIME_OK(cudaUserObjectCreate(&object, &used, destroy, 1, cudaUserObjectNoDestructorSync));
  RUNTIME_OK(cudaGraphRetainUserObject(captured, object, 1, cudaGraphUserObjectMove));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));
  RUNTIME_OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) RUNTIME_OK(cudaGraphLaunch(exec, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  stays(used, "captured");
  apps::verify(words, bytes, seed, 6, "what the graph adds");
  RUNTIME_OK(cudaGraphExecDestroy(exec));
  goes(used, "captured, with the executable graph");
  RUNTIME_OK(cudaStreamDestroy(stream));
}

void manyAtOnce(uint64_t seed) {
  static Resource resources[kThreads][kObjects];
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, seed] {
      apps::Random random(seed + uint64_t(t));
      for (Resource& one : resources[t]) {
        const unsigned references = 1 + unsigned(random.below(3));
        const CUuserObject object = make(one, references);
        CUgraph graph = nullptr;
        if (random.below(2) != 0) {
          DRIVER_OK(cuGraphCreate(&graph, 0));
          DRIVER_OK(cuGraphRetainUserObject(graph, object, 1, 0));
        }
        for (unsigned r = 0; r < references; ++r) DRIVER_OK(cuUserObjectRelease(object, 1));
        if (graph != nullptr) DRIVER_OK(cuGraphDestroy(graph));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& of_thread : resources) {
    for (Resource& one : of_thread) goes(one, "one of many");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  RUNTIME_OK(cudaFree(nullptr));
  const size_t bytes = size_t{1} << 18;
  uint32_t* words = nullptr;
  RUNTIME_OK(cudaMalloc(&words, bytes));
  apps::fill(words, bytes, uint32_t(options.seed));
  RUNTIME_OK(cudaDeviceSynchronize());
  countReferences();
  holdByGraphs();
  holdByCapture(words, bytes, uint32_t(options.seed));
  manyAtOnce(options.seed);
  // The last objects are not promised their destructor any more: the program ends with them.
  static Resource left[3];
  CUgraph graph = nullptr;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  DRIVER_OK(cuGraphRetainUserObject(graph, make(left[0], 1), 1, CU_GRAPH_USER_OBJECT_MOVE));
  for (Resource& one : left) (void)make(one, 2);
  RUNTIME_OK(cudaFree(words));
  return apps::ok("user_objects: %d objects", kThreads * kObjects);
}
