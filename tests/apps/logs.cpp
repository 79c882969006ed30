// The driver's log: read from where it was at a moment into memory and into a file of the
// program's, and told to functions that it has registered, until they are taken out.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "driver_program.h"

#if CUDA_VERSION >= 12090
namespace {

struct Heard {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<int> count{0};
  CUlogsCallbackHandle own = nullptr;  // of one that takes itself out
};
void CUDA_CB hear(void* data, CUlogLevel level, char* message, size_t length) {
  auto* const heard = static_cast<Heard*>(data);
  if (level != CU_LOG_LEVEL_ERROR && level != CU_LOG_LEVEL_WARNING) return;
  {
    const std::lock_guard<std::mutex> lock(heard->mutex);
    heard->lines.emplace_back(message, length);
  }
  ++heard->count;
}
void CUDA_CB hearOnce(void* data, CUlogLevel level, char* message, size_t length) {
  auto* const heard = static_cast<Heard*>(data);
  DRIVER_OK(cuLogsUnregisterCallback(heard->own));
  hear(data, level, message, length);
}

// A call that a driver logs something about, each time.
void fail() {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr none = 0;
  DRIVER_OK(cuGraphCreate(&graph, 0));
  CHECK(cuGraphInstantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != CUDA_SUCCESS,
        "%s", "a graph without nodes can be launched by a device");
  CHECK(cuMemAlloc(&none, 0) != CUDA_SUCCESS, "%s", "no memory was allocated");
  DRIVER_OK(cuGraphDestroy(graph));
}

void comes(const Heard& heard, int more_than, const char* what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (heard.count <= more_than && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(heard.count > more_than, "%s: nothing was told", what);
}

std::string inMemory(CUlogIterator* from, size_t room) {
  std::string text(room, '?');
  size_t size = room;
  DRIVER_OK(cuLogsDumpToMemory(from, text.data(), &size, 0));
  CHECK(size < room && (size == 0 || text[size] == '\0'), "%zu bytes were written", size);
  text.resize(size);
  return text;
}

std::string inFile(CUlogIterator* from, const std::string& path) {
  DRIVER_OK(cuLogsDumpToFile(from, path.c_str(), 0));
  std::ifstream file(path);
  CHECK(file.good(), "no file %s", path.c_str());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace
#endif

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
#if CUDA_VERSION < 12090
  apps::skip("the toolkit is older than 12.9");
#else
  const CUdevice device = apps::usePrimaryContext();
  constexpr size_t kRoom = 25601;
  CUlogIterator begin = 0;
  const CUresult there = cuLogsCurrent(&begin, 0);
  if (there == CUDA_ERROR_NOT_SUPPORTED || there == CUDA_ERROR_NOT_FOUND)
    apps::skip("this driver has no logs");
  DRIVER_OK(there);
  CUlogIterator at = begin, again = begin, from = begin;
  CHECK(inMemory(&at, kRoom).empty(), "%s", "something was logged before anything failed");

  Heard heard, other, once;
  CUlogsCallbackHandle handle = nullptr, other_handle = nullptr;
  DRIVER_OK(cuLogsRegisterCallback(hear, &heard, &handle));
  DRIVER_OK(cuLogsRegisterCallback(hear, &other, &other_handle));
  DRIVER_OK(cuLogsRegisterCallback(hearOnce, &once, &once.own));
  fail();
  const std::string text = inMemory(&at, kRoom);
  if (text.empty()) apps::skip("this driver logs nothing of what fails here");
  CHECK(text.back() == '\n', "%s", "the last line has no end");
  CHECK(inMemory(&at, kRoom).empty(), "%s", "what was read is read again");
  comes(heard, 0, "the first");
  comes(other, 0, "the second");
  comes(once, 0, "the one that takes itself out");
  {
    const std::lock_guard<std::mutex> lock(heard.mutex);
    CHECK(text.find(heard.lines.front().substr(0, heard.lines.front().find('\n'))) !=
              std::string::npos,
          "what was told is not in the log: %s", heard.lines.front().c_str());
  }

  const char* const folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/olpager-logs-XXXXXX";
  const int file = mkstemp(path.data());
  CHECK(file >= 0, "no file %s", path.c_str());
  close(file);
  const std::string dumped = inFile(&from, path);
  CHECK(dumped == text && from == at && from != begin, "the file has %zu bytes, expected %zu",
        dumped.size(), text.size());
  const std::string nowhere = path + "/log";
  CHECK(cuLogsDumpToFile(&again, nowhere.c_str(), 0) != CUDA_SUCCESS, "%s",
        "below a file there was another");
  CHECK(again == begin, "%s", "what could not be written is not to come again");
  CHECK(inFile(nullptr, path).size() >= text.size(), "%s",
        "all of the log is less than a part of it");
  unlink(path.c_str());

  // The others still listen when one is taken out; none of them does at the end.
  DRIVER_OK(cuLogsUnregisterCallback(other_handle));
  CHECK(cuLogsUnregisterCallback(other_handle) == CUDA_ERROR_INVALID_VALUE, "%s",
        "one was taken out twice");
  const int before = heard.count;
  const int other_before = other.count;
  fail();
  comes(heard, before, "the first, again");
  CHECK(other.count == other_before && once.count == 1, "%s", "who was taken out is told");
  DRIVER_OK(cuLogsUnregisterCallback(handle));
  const int last = heard.count;
  fail();
  CHECK(!inMemory(&at, kRoom).empty(), "%s", "nothing is logged any more");
  CHECK(heard.count == last, "%s", "who was taken out is told");
  CHECK(cuLogsRegisterCallback(nullptr, nullptr, &handle) == CUDA_ERROR_INVALID_VALUE, "%s",
        "no function is none");
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("logs: %zu bytes", text.size());
#endif
}
