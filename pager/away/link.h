// The link of a pool that is an executor: requests to the owner of the links to the home and to
// other executors (olgpunode's worker, by forwarding/agent.h; tests).
//
// All of it is called under PoolState::mutex: it leaves a note, takes no lock that is held around a
// call of the pool's, and returns at once.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "coherence/directory/types.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::pager {

class AwayLink {
 public:
  virtual ~AwayLink() = default;

  /// Messages for the home, a batch (coherence/pages/batch.h). In order.
  virtual void post(std::span<const std::byte> batch) = 0;
  /// The page's bytes lie at `bytes`, in host memory, and stay there until taken back: that
  /// executor may read them. Before the post of its kReady. `hash`: of them, if it is known.
  virtual void given(directory::ExtentId extent, directory::Number number, directory::AgentId taker,
                     const void* bytes, std::optional<ContentHash> hash) = 0;
  /// The taker has read them.
  virtual void takenBack(directory::ExtentId extent, directory::Number number) = 0;
  /// Brings the page that executor `from` gives by that number to `into`, in host memory. Answered
  /// by ExecutorMemory::landed(), once: until then others may write the memory. `has`: the hash of
  /// what is there; what is given with the same need not be brought.
  virtual void fetch(directory::ExtentId extent, directory::Number number, directory::AgentId from,
                     void* into, std::optional<ContentHash> has) = 0;
  /// The session can't go on. `why`: half a line, the caller's.
  virtual void failed(const char* why) = 0;
};

}  // namespace olpager::pager
