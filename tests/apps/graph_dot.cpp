// The driver's text of a graph is in the file that the program names, which lies where the program
// runs: made, replaced, and an error where there can be none.
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "driver_program.h"

namespace {

std::string textOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

size_t countIn(const std::string& text, const char* word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  CUcontext context = nullptr;
  DRIVER_OK(cuCtxGetCurrent(&context));
  CUdeviceptr words = 0;
  DRIVER_OK(cuMemAlloc(&words, 4096));
  CUgraph graph = nullptr;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  // A chain: as many edges as nodes but one.
  constexpr size_t kNodes = 2000;
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = words, fill.elementSize = 4, fill.width = 1024, fill.height = 1,
  fill.value = unsigned(options.seed);
  CUgraphNode before = nullptr, node = nullptr;
  for (size_t i = 0; i < kNodes; ++i) {
    DRIVER_OK(cuGraphAddMemsetNode(&node, graph, &before, i == 0 ? 0 : 1, &fill, context));
    before = node;
  }

  const char* const folder = std::getenv("TMPDIR");
  const std::string own =
      std::string(folder != nullptr ? folder : "/tmp") + "/olpager-graph-dot-XXXXXX";
  std::string made = own;
  const int file = mkstemp(made.data());
  CHECK(file >= 0, "no file in %s: %s", own.c_str(), std::strerror(errno));
  const std::string longer(1 << 20, 'x');
  CHECK(write(file, longer.data(), longer.size()) == ssize_t(longer.size()), "%s",
        "the file could not be written");
  close(file);
  const CUresult printed = cuGraphDebugDotPrint(graph, made.c_str(), 0);
  const std::string text = textOf(made);
  unlink(made.c_str());
  CHECK(printed == CUDA_SUCCESS, "cuGraphDebugDotPrint: CUresult %d", int(printed));
  CHECK(text.rfind("digraph", 0) == 0 && text.find('}') != std::string::npos &&
            text.find('x' + std::string(9, 'x')) == std::string::npos,
        "the file does not have a graph alone, but %zu bytes: %.60s", text.size(), text.c_str());
  CHECK(countIn(text, "->") == kNodes - 1, "%zu edges, expected %zu", countIn(text, "->"),
        kNodes - 1);

  // One that is not there is made; where there can be none is an error, and nothing is made.
  DRIVER_OK(cuGraphDebugDotPrint(graph, made.c_str(), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
  CHECK(textOf(made).rfind("digraph", 0) == 0, "%s", "no file was made");
  const std::string nowhere = made + "/graph.dot";
  CHECK(cuGraphDebugDotPrint(graph, nowhere.c_str(), 0) != CUDA_SUCCESS, "%s",
        "below a file there was another");
  unlink(made.c_str());
  CHECK(cuGraphDebugDotPrint(graph, nullptr, 0) == CUDA_ERROR_INVALID_VALUE, "%s",
        "no name is no error");

  DRIVER_OK(cuGraphDestroy(graph));
  DRIVER_OK(cuMemFree(words));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("graph_dot: %zu bytes", text.size());
}
