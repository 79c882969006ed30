// Files that the driver writes: at the worker into one without a name
// (gpunode/worker/driver_files.cpp), whose text comes back and is put here where the program wants
// it. The worker never hears the name.
#include <cstdio>
#include <memory>
#include <span>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"

namespace olpager::forward {
namespace {

bool writeFile(const char* path, std::span<const std::byte> text) {
  std::FILE* const file = std::fopen(path, "we");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && written;
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kGraphDotPrint, Route().handle(graph));
  call.value(reinterpret_cast<uint64_t>(graph));
  call.value(flags);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  return writeFile(path, call.reply().raw(call.reply().left())) ? result
                                                                : CUDA_ERROR_OPERATING_SYSTEM;
}

// The iterator is the program's once it has the logs before it.
CUresult ol_forward_cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned flags) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Call call(Operation::kLogsDump, currentSession());
  call.needsNoContext();
  call.array(iterator, 1);
  call.value(flags);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  const auto goes_on = call.reply().value<CUlogIterator>();
  if (!writeFile(path, call.reply().raw(call.reply().left()))) return CUDA_ERROR_INVALID_VALUE;
  if (iterator != nullptr) *iterator = goes_on;
  return result;
}

}  // extern "C"
