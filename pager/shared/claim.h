// The claim of one acquisition on pages that other agents may have (pool_agent.h). A claim asks for
// the pages when some are away, has all of them at one moment, and keeps them until the operation
// is over.
//
//   asked      by ask() -> submitted, given up
//   submitted  by submit(), in one go with the operation's number: begun(). The operation is
//              complete when its stream has passed that number
//
// Thread-safety: under PoolState::mutex.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "pager/shared/pool_agent.h"

namespace olpager::pager {

class Claim {
 public:
  /// An operation that the calling thread makes outlives the claim.
  explicit Claim(PoolState& state);
  /// As cancel().
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// Claims the extents of `needed` that other agents may have, if some of it is away. `needed`
  /// only grows from call to call. False: the operation can't have it, and a line has said why.
  [[nodiscard]] bool ask(std::span<Extent* const> needed, Lock& lock);
  /// True: a thread's operation would ask now, and must not before the work ahead of it in its
  /// stream is over. Others wait for claimed pages, and that work may be among them.
  bool mayNotAskYet(std::span<Extent* const> needed) const;
  /// True: the claim has asked, and is not submitted.
  bool isAsked() const { return asked_; }
  /// True: submit() would be.
  bool isRunnable() const;
  /// True: the operation may go, as it has claimed nothing, or claims everything. The pages
  /// stay until the operation is over.
  [[nodiscard]] bool submit();
  /// The operation has this number.
  void begun(const StreamState& stream, uint64_t number);
  /// The work is done without a number: a submitted operation is complete, another one given up.
  void over(Lock& lock);
  /// Gives the operation up, unless it is submitted.
  void cancel(Lock& lock);
  /// `needed` begins anew: some of it has been freed, the rest comes again.
  void again();

 private:
  bool isAway() const;
  bool mayUseAgain(Lock& lock) const;
  void needUses();

  PoolState& state_;
  std::unique_ptr<ToldOperation> own_;  // where the claim is all of the operation
  ToldOperation* operation_;            // own_, or that of the thread
  std::vector<directory::Need> needs_;
  size_t looked_at_ = 0;  // of `needed`
  size_t told_ = 0;       // of needs_
  bool asked_ = false;    // and is not submitted
};

}  // namespace olpager::pager
