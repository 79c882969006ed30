// Files that the driver writes and the program names. A client names none here: the driver gets a
// file without a name, in memory, and the client puts what it has written where the program wants
// it.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/fd.h"
#include "base/log.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

class NamelessFile {
 public:
  NamelessFile() : file_(memfd_create("olgpunode", MFD_CLOEXEC)) {
    if (file_.get() < 0)
      base::logError("no file for the driver to write into: %s", std::strerror(errno));
  }
  bool ok() const { return file_.get() >= 0; }
  /// By which the driver opens it.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }
  /// Appends the file's bytes to the results. False: they are too many for an answer, or can't be
  /// read.
  bool appendTo(std::vector<std::byte>& results) const {
    struct stat about {};
    if (fstat(file_.get(), &about) != 0) return false;
    const auto bytes = static_cast<uint64_t>(about.st_size);
    if (bytes > forward::kMostBytes - results.size()) {
      base::logWarn(
          "the driver has written %llu bytes into a file of the program's: too many for an answer",
          static_cast<unsigned long long>(bytes));
      return false;
    }
    const size_t before = results.size();
    results.resize(before + bytes);
    for (uint64_t at = 0; at < bytes;) {
      const ssize_t got =
          pread(file_.get(), results.data() + before + at, bytes - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        results.clear();
        return false;
      }
      at += static_cast<uint64_t>(got);
    }
    return true;
  }

 private:
  const base::UniqueFd file_;
};

}  // namespace

CUresult graphDotPrint(Invocation& in) {
  const auto graph = in.handle<CUgraph>();
  const auto flags = in.value<unsigned>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuGraphDebugDotPrint == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const NamelessFile file;
  if (!file.ok()) return CUDA_ERROR_OPERATING_SYSTEM;
  const CUresult result = in.driver().cuGraphDebugDotPrint(graph, file.path().c_str(), flags);
  if (result != CUDA_SUCCESS) return result;
  return file.appendTo(in.results().bytes) ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult logsDump(Invocation& in) {
  auto* const iterator = in.array<CUlogIterator>(1);
  const auto flags = in.value<unsigned>();
  if (!in.ok()) return in.refusal();
  if (in.driver().cuLogsDumpToFile == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const NamelessFile file;
  if (!file.ok()) return CUDA_ERROR_OPERATING_SYSTEM;
  const CUresult result = in.driver().cuLogsDumpToFile(iterator, file.path().c_str(), flags);
  if (result != CUDA_SUCCESS) return result;
  in.results().value(iterator != nullptr ? *iterator : CUlogIterator{});
  return file.appendTo(in.results().bytes) ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace olpager::gpunode
