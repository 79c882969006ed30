// The executors of the unified view over several gpunodes, as a session's group: it has the home,
// the links for pages, and the order of what is sent (interpose/forward/group.h says what a group
// is for, and its states).
//
// A move. An operation goes where Home::route says. Where that is another executor than the active
// one, the order is held while the active one comes to its end: all contexts are synchronised, for
// kPatience at most. What does not end by then may wait for what only this or a later operation
// brings (a kernel that spins, a host function), so the operation stays where it is and its pages
// come there. Until that has ended no other move is tried. While a stream captures nothing moves:
// to synchronise would end the capture.
//
// Owner: its session. Thread-safety: any thread. Locks: order_ (interpose/forward/locks.h), held
// from an operation's turn until its record is written; below it the page links' and the home's.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/status/unified_counters.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/group.h"
#include "interpose/unified/code_states.h"
#include "interpose/unified/home.h"
#include "interpose/unified/managed_memory.h"
#include "interpose/unified/page_link.h"
#include "interpose/unified/unfinished.h"

namespace olpager::forward {
class Session;
}  // namespace olpager::forward

namespace olpager::unified {

/// Where operations go.
enum class Routing : uint8_t {
  kOwner,       // where Home::routed() says
  kRoundRobin,  // to one executor after the other
  kOne,         // to one
};

/// What one executor's driver says of its device; nullopt: it does not.
std::optional<int> attributeAt(forward::Session& session, unsigned executor,
                               CUdevice_attribute attribute, CUdevice device);

class Executors final : public forward::Group {
 public:
  /// Of a session whose executors have started. It is not of use before start(). `counters`: where
  /// it tells of its executors, for as long as it lives. `one`: of Routing::kOne. `managed`:
  /// whether managed memory is spread over them.
  Executors(forward::Session& session, status::UnifiedCounters& counters, Routing routing,
            unsigned one, bool managed);
  ~Executors() override;

  /// Whether they can be one device, and their links. The Error is one line.
  Status start();

  void leaves() override;
  void bind(const std::string& what) override;
  std::shared_ptr<const forward::SharedVariable> share(forward::CodeThere code,
                                                       const std::string& name) override;
  void contextGone(uint64_t context) override;
  bool add(uint64_t base, uint64_t bytes) override;
  void remove(uint64_t base) override;
  std::vector<uint64_t> released(bool wait) override;
  void awaitReleased() override;
  uint64_t freeBytes() const override;
  uint64_t totalBytes() const override;
  std::optional<forward::ManagedRange> managedAt(uint64_t address) override {
    return managed_.at(address);
  }
  void attachManaged(uint64_t base, unsigned flags, CUstream stream) override {
    managed_.attach(base, flags, stream);
  }
  CUresult giveManaged(const forward::ManagedUse& use) override { return managed_.give(use); }

  ManagedMemory& managed() { return managed_; }

 private:
  unsigned enter(const Uses& uses, forward::Aged* aged) override;
  void leave(bool sent, const forward::Aged& aged) override;
  forward::Aged draw(unsigned executor) override;
  void forget(uint64_t owner) override;

  std::optional<unsigned> asked();
  Status linkPeers(unsigned from, unsigned to);
  bool isFinished(std::chrono::milliseconds patience);
  bool moveTo(const Home::Routed& routed, std::chrono::steady_clock::time_point begun);
  std::optional<Home::Sent> sendElsewhere(const Home::Routed& routed,
                                          std::span<const forward::Named> named);
  void bindHere(const std::string& what);
  bool finishActive(std::chrono::milliseconds patience);
  void heard();
  uint64_t freeOf(const std::vector<uint64_t>& pages, uint64_t of_all) const;

  forward::Session& session_;
  status::UnifiedCounters& counters_;
  const std::vector<uint64_t> holds_;  // pages that each can hold
  const std::vector<uint64_t> told_;   // of these, what the program is told of (OL_REPORT)
  // Of all executors, with what memservers lend counted once: pages that the program may get, and
  // that it is told of.
  const uint64_t most_, most_told_;
  const Routing routing_;
  unsigned next_;  // of Routing::kOne and kRoundRobin: where an operation is to go. Under order_
  Home home_;
  PageLinks links_;
  std::mutex order_;

  ManagedMemory managed_;

  // Under order_. What the active executor has not come to the end of within kPatience.
  std::vector<std::unique_ptr<Unfinished>> unfinished_;
  bool faulted_ = false;       // one of them tells of a kernel's fault
  uint64_t finishing_ns_ = 0;  // until it was finished, when it was last found so
  CodeStates code_;            // variables of code that ran

  // Regions that were removed and are not released: who needs their room waits.
  std::mutex releasing_;  // above the home's
  std::condition_variable released_;
  size_t leaving_ = 0;
  std::vector<uint64_t> bases_;  // of regions that are released, for released()
};

}  // namespace olpager::unified
