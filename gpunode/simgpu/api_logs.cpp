#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "gpunode/simgpu/logs.h"

namespace olpager::simgpu {
namespace {

constexpr size_t kMostBytes = 25600;  // of all messages, as cuda.h has it
constexpr const char* kTruncated = "older messages are not here any more\n";

struct Listener {
  CUlogsCallback function;
  void* data;
};
struct Logs {
  std::recursive_mutex calling;  // a function may take itself out
  std::mutex mutex;
  std::deque<std::string> messages;  // each with its end of line
  size_t bytes = 0;
  CUlogIterator first = 0;  // number of the oldest
  std::map<uint64_t, Listener> listeners;
  uint64_t next = 1;
};
Logs& logs() {
  static auto* const instance = new Logs;
  return *instance;
}

CUlogIterator end(const Logs& all) {
  return all.first + static_cast<CUlogIterator>(all.messages.size());
}

// From an iterator on, or all; the newest of them where they have to fit into `most`. Under the
// mutex.
std::string text(const Logs& all, const CUlogIterator* from, size_t most, bool* any) {
  const bool lost = from != nullptr ? *from < all.first : all.first != 0;
  const size_t begin =
      from == nullptr || lost ? 0 : std::min<size_t>(*from - all.first, all.messages.size());
  *any = begin != all.messages.size();
  size_t kept = all.messages.size(), bytes = 0;
  while (kept > begin && bytes + all.messages[kept - 1].size() <= most)
    bytes += all.messages[--kept].size();
  std::string made;
  if (lost || kept > begin) {
    // The mark has its place too.
    while (kept < all.messages.size() && bytes + std::strlen(kTruncated) > most)
      bytes -= all.messages[kept++].size();
    if (kept < all.messages.size()) made = kTruncated;
  }
  for (; kept < all.messages.size(); ++kept) made += all.messages[kept];
  return made;
}

}  // namespace

void logMessage(CUlogLevel level, std::string message) {
  Logs& all = logs();
  const std::lock_guard calling(all.calling);
  std::vector<Listener> listeners;
  {
    const std::lock_guard lock(all.mutex);
    all.messages.push_back(message + "\n");
    all.bytes += all.messages.back().size();
    while (all.bytes > kMostBytes) {
      all.bytes -= all.messages.front().size();
      all.messages.pop_front();
      ++all.first;
    }
    for (const auto& [number, listener] : all.listeners) listeners.push_back(listener);
  }
  for (const Listener& listener : listeners)
    listener.function(listener.data, level, message.data(), message.size());
}

}  // namespace olpager::simgpu

using namespace olpager::simgpu;

extern "C" {

CUresult CUDAAPI cuLogsRegisterCallback(CUlogsCallback function, void* data,
                                        CUlogsCallbackHandle* out) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  all.listeners[all.next] = {function, data};
  if (out != nullptr) *out = reinterpret_cast<CUlogsCallbackHandle>(all.next);
  ++all.next;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  Logs& all = logs();
  const std::lock_guard calling(all.calling);
  const std::lock_guard lock(all.mutex);
  return all.listeners.erase(reinterpret_cast<uint64_t>(handle)) != 0 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuLogsCurrent(CUlogIterator* out, unsigned flags) {
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  *out = end(all);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned flags) {
  if (path == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  bool any = false;
  const std::string made = text(all, iterator, kMostBytes * 2, &any);
  const bool written = std::fwrite(made.data(), 1, made.size(), file) == made.size();
  if (std::fclose(file) != 0 || !written) return CUDA_ERROR_INVALID_VALUE;
  if (iterator != nullptr) *iterator = end(all);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size,
                                    unsigned flags) {
  if (buffer == nullptr || size == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Logs& all = logs();
  const std::lock_guard lock(all.mutex);
  bool any = false;
  const std::string made = *size != 0 ? text(all, iterator, *size - 1, &any) : std::string();
  const bool fits = *size != 0 && (!made.empty() || !any);
  if (*size != 0) std::memcpy(buffer, made.c_str(), made.size() + 1);
  *size = made.size();
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  if (iterator != nullptr) *iterator = end(all);
  return CUDA_SUCCESS;
}

}  // extern "C"
