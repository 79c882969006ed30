// The calls that tell workers of blocks (block_table.h). Thread-safety: as calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "interpose/forward/block_table.h"
#include "interpose/forward/call.h"

namespace olpager::forward {

inline constexpr uint64_t kHostPage = 4096;
inline uint64_t wholePages(uint64_t bytes) {
  return (bytes + kHostPage - 1) / kHostPage * kHostPage;
}

/// Memory that every worker may be told to read or write by itself, with its descriptor or -1.
void makeRegions(Block& block, void* address, uint64_t bytes, int fd);

/// The same call in several sessions at once. A session that is lost counts for nothing as long as
/// another one is there.
class InSessions {
 public:
  void add(std::unique_ptr<Call> call) {
    const CUresult begun = call->begin(true);
    calls_.push_back({std::move(call), begun});
  }
  /// Waits for all. `each` gets each call that succeeded.
  template <typename Each>
  CUresult finish(Each each) {
    CUresult error = CUDA_SUCCESS;
    size_t lost = 0;
    for (auto& [call, begun] : calls_) {
      const CUresult result = begun == CUDA_SUCCESS ? call->finish() : begun;
      if (call->answered()) each(*call);
      if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
        ++lost;
      } else if (error == CUDA_SUCCESS) {
        error = result;
      }
    }
    return error == CUDA_SUCCESS && lost != 0 && lost == calls_.size()
               ? CUDA_ERROR_DEVICE_UNAVAILABLE
               : error;
  }

 private:
  struct One {
    std::unique_ptr<Call> call;
    CUresult begun;
  };
  std::vector<One> calls_;
};

/// `region` null, or without a descriptor: the memory can't be shared. `registered`: natively it is
/// there, and what is asked of it is allowed while a stream captures.
std::unique_ptr<Call> allocCall(Session* session, uint64_t address, uint64_t bytes,
                                const transport::RegionPtr& region, bool has_descriptor,
                                bool registered);
/// The kind that the worker has made of the block.
BlockSide::Kind kindIn(Call& answered);
std::unique_ptr<Call> freeCall(Session* session, uint64_t address);
/// A worker that has the block now.
struct SideMade {
  Session* session;
  unsigned side;
  BlockSide::Kind kind;
};
/// Those that have answered such a call.
void addSides(Call& answered, std::vector<SideMade>& made);
/// Undoes a block that only some workers have made.
void takeBack(Session* session, uint64_t address);
void takeBack(const std::vector<SideMade>& made, uint64_t address);

}  // namespace olpager::forward
