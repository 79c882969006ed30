// The cache of compiled code that a driver keeps for NVRTC and nvJitLink: before they compile they
// ask for what the same input gave before. Libraries that compile at run time (cuDNN's attention
// for each new shape) are slow without it. Here it is memory of the process and files: a compiler's
// output under a key of its kind, its input, its options and the compiler's build.
//
// Files lie in a folder of the user's own (mode 0700), one for each output, written beside and
// renamed into place; one that does not hold together is no entry. Beyond a limit the oldest go. As
// the driver's: CUDA_CACHE_DISABLE=1 turns them off, CUDA_CACHE_MAXSIZE is the limit in bytes.
//
// Thread-safety: any thread. The lock is taken alone; files are read and written without it.
// Nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace olpager::interpose {

class CompileCache {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  /// `folder` is made at first need; empty: no files. `limit`: bytes of all files together.
  CompileCache(std::string folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  /// The process's, by its environment: $XDG_CACHE_HOME/olpager/compiled or
  /// ~/.cache/olpager/compiled, 256 MiB.
  static CompileCache& instance();

  /// The name of an output.
  static std::string keyOf(uint32_t kind, std::span<const std::byte> input, const char* options,
                           const char* compiler);

  /// Null where there is none.
  Bytes find(const std::string& key) noexcept;
  void store(const std::string& key, std::span<const std::byte> output) noexcept;

 private:
  Bytes read(const std::string& key) const;
  void write(const std::string& key, const std::vector<std::byte>& output) const;
  void trim() const;

  const std::string folder_;
  const uint64_t limit_;
  std::mutex mutex_;
  std::map<std::string, Bytes> known_;
};

/// The private table through which the compilers ask (da9151d3): seven words. The functions'
/// arguments were found by watching NVRTC 13.0 use the driver's table:
///   [1] (handle*, kind, input, bytes, options, compiler)  a question; kind 1: machine code, 2: PTX
///   [3] (handle, 0, data*, bytes*)                        its answer, CUDA_ERROR_NOT_FOUND where
///                                                         there is none
///   [6] (data)                                            gives an answer back
///   [4] (handle, 0, data, bytes)                          what it was compiled to
///   [2] (handle)                                          the question is over
const void* compileCacheTable();

}  // namespace olpager::interpose
