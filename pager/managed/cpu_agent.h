// The program's CPU as an agent of the directory: managed memory that pages between it and the
// GPUs. A touch of a page that the CPU does not have is a fault (userfaults.h); the agent asks the
// directory for the page, and publishes it in the region's view (frames.h) when it comes.
//
// The page's frame is its place in host memory for everybody: an agent that gives a page to the CPU
// has its bytes in the frame before saying so, and the CPU gives one by dropping its view. So
// nothing is copied here.
//
// A page to the CPU:
//
//   absent      a touch is a fault
//   granted     the CPU owns it, its view is not mapped: a touch is a fault that waits for nobody
//   published   the CPU owns it, its view is mapped: a touch costs nothing. Pages touched by reads
//               are published for reading, where the kernel can: the first write is a fault that
//               asks nobody. So the next owner knows whether the CPU may have written it
//               (Frames::written)
//   gone        it is freed: a touch is a SIGSEGV
//   lost        its frame has no memory, and so its bytes are lost: a touch is a SIGBUS
//
// An operation (of the directory) is a fault, or a page asked for ahead of one:
//
//   waiting     it lacks pages
//   held        it has them and they are published. Pages stay for a while, so that the touch gets
//               done; then it is complete, and others may have them. A page that others take again
//               and again stays for longer
//
// Threads: all of this is one thread's own, without any lock: the fault thread. Others hand it a
// command and wait until it has taken that (add, remove, want). The fault thread takes the
// exchange's mutex (a leaf): its holder touches no managed memory, in no signal handler either
// (base/held_signals.h). With no lock held it may serve another agent of the process (start():
// `serve_others`), which only tries its own mutex. The thread says nothing, logs nothing: its news
// is in the counters.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "coherence/cpu/frames.h"
#include "coherence/cpu/touches.h"
#include "coherence/cpu/userfaults.h"
#include "coherence/directory/exchange.h"
#include "pager/managed/hold.h"
#include "pager/tiers/elsewhere.h"

namespace olpager::pager {

using cpu::Frames;
using cpu::Touches;
using cpu::UserFault;
using cpu::UserFaults;

/// All that is locked where one thread does it all.
struct OneThread {};

/// Read by anybody, at any time.
struct CpuCounters {
  std::atomic<uint64_t> faults{0};          // of threads that had to wait
  std::atomic<uint64_t> write_faults{0};    // writes of pages that were published for reading
  std::atomic<uint64_t> published{0};       // pages
  std::atomic<uint64_t> given{0};           // pages that other agents took
  std::atomic<uint64_t> ahead{0};           // pages asked for ahead of sequential touches
  std::atomic<uint64_t> contended{0};       // times that a page's hold was made longer
  std::atomic<uint64_t> long_waits{0};      // touches that waited for more than a second
  std::atomic<uint64_t> last_long_wait{0};  // where the last of them is
  std::atomic<uint64_t> violations{0};      // messages that the protocol excludes: a mistake
};

// Many members: a step for each state of a page that the CPU touches.
class CpuAgent final : private Residence<OneThread> {
 public:
  /// Joins the exchange. `serve_others`: called by the fault thread when it has posted something,
  /// without a lock; another agent of the process may take it there and then. `serve_others` never
  /// waits, and touches no managed memory.
  static Result<std::unique_ptr<CpuAgent>> start(directory::Exchange& exchange,
                                                 directory::AgentId id,
                                                 std::unique_ptr<UserFaults> faults,
                                                 std::function<void()> serve_others = {});
  ~CpuAgent() override;

  /// The region's extents, one for each page; allocated at the exchange. The frames stay until
  /// remove().
  Status add(directory::ExtentId first, Frames& frames);
  /// After Exchange::free() and kReleased of every extent. On return no touch of the region waits
  /// here: it is a SIGSEGV, or whatever comes to be mapped there.
  void remove(directory::ExtentId first);
  /// As touches of these extents, which nobody waits for.
  void want(directory::ExtentId first, uint32_t count);
  /// How many of these extents a touch would wait for: the CPU has not got them, and they are
  /// neither freed nor lost. None when faults are served no more.
  uint32_t awayOf(directory::ExtentId first, uint32_t count);
  /// The thread has done with its touches: it is in a call of the driver. Pages held for it alone
  /// others may have now. Costs nothing where nothing is held.
  void passed(pid_t thread);

  /// In a forked child, which has neither the thread nor the views: the parent's descriptors are
  /// closed. Only this object's destructor may follow.
  void forked() noexcept;
  /// Faults are served no more. Pages that the CPU has are published. A touch of another page is a
  /// SIGSEGV then.
  void stop() noexcept;

  const CpuCounters& counters() const { return counters_; }

 private:
  static constexpr size_t kMostExtents = Touches::kRemembered;
  enum class Kind : uint8_t { kFault, kAhead };
  struct Page {
    bool granted = false;
    bool published = false;
    bool writable = false;  // published for writing
    bool writes = false;    // what the page was last asked for by may be writes
    bool used = false;      // the frame may hold something else than zeros
    bool gone = false;
    bool lost = false;
    bool marked = false;  // asked for ahead, and to be told of its first touch (touches.h)
    Hold hold;
    uint64_t published_at = 0;
    uint64_t taken_at = 0;  // by another agent, while it was published
  };
  struct Region {
    directory::ExtentId first = 0;
    Frames* frames = nullptr;
    std::vector<Page> pages;
  };
  struct Operation {
    directory::Age age = 0;
    Kind kind = Kind::kFault;
    bool held = false;
    bool long_wait = false;  // counted
    uint8_t count = 0;
    std::array<directory::ExtentId, kMostExtents> extents{};
    pid_t thread = 0;      // that waits; 0: several, or nobody knows
    uint64_t touched = 0;  // where somebody waits; 0: nobody does
    uint64_t began = 0;
    uint64_t until = 0;  // held
    bool needs(directory::ExtentId extent) const {
      for (size_t i = 0; i < count; ++i) {
        if (extents[i] == extent) return true;
      }
      return false;
    }
  };
  struct Place {
    Region* region = nullptr;
    uint32_t index = 0;
    explicit operator bool() const { return region != nullptr; }
    Page& page() const { return region->pages[index]; }
    Frames& frames() const { return *region->frames; }
    directory::ExtentId extent() const { return region->first + index; }
    uint64_t view() const { return region->frames->view(index); }
  };
  struct Range {
    directory::ExtentId next = 0;
    uint32_t count = 0;
  };
  struct Command;

  CpuAgent(directory::Exchange& exchange, directory::AgentId id, std::unique_ptr<UserFaults> faults,
           std::shared_ptr<base::UniqueFd> bell);

  // Any thread.
  void hand(Command& command);

  // The fault thread.
  void serve();
  void takeCommands();
  void takeMessages();
  void takeFaults();
  void obey(Command& command);
  void leave(Region& region);
  void closeAll();
  Place placeOf(uint64_t address) const;
  Place placeOf(directory::ExtentId extent) const;
  void fault(const UserFault& fault);
  size_t together(const Place& place, pid_t thread, Touches::Pages& extents) const;
  bool isWaitedFor(directory::ExtentId extent) const;
  void askAhead(const Place& place, pid_t thread);
  bool worthAsking(const Place& place) const;
  void begin(Kind kind, std::span<const directory::ExtentId> extents, pid_t thread = 0);
  void askWanted();
  void settle();
  void run(directory::Age age);
  void giveUp(directory::Age age);
  void complete(size_t operation);
  void drop(size_t operation);
  void publish(const Place& place, uint64_t touched);
  void allowWrites(const Place& place);
  bool isAwaited() const;
  void end(const Place& place);
  uint64_t hold(const Operation& operation) const;
  void expire();
  timespec untilNext() const;
  size_t find(directory::Age age) const;

  void fetch(directory::ExtentId extent, directory::AgentId from, directory::Number number,
             directory::Content have, OneThread& lock) override;
  void clear(directory::ExtentId extent, OneThread& lock) override;
  void grant(directory::ExtentId extent, directory::Mode mode, OneThread& lock) override;
  void yield(directory::ExtentId extent, OneThread& lock) override;
  void release(directory::ExtentId, OneThread&) override {}
  void stop(directory::ExtentId, OneThread&) override {}
  void go(directory::ExtentId, OneThread&) override {}
  void lend(directory::ExtentId, OneThread&) override {}
  void lendOver(directory::ExtentId, OneThread&) override {}
  void runnable(directory::Age age) override { runnable_.push_back(age); }
  void failed(directory::Age age, directory::ExtentId) override { failed_.push_back(age); }
  void post(const directory::Message& message) override {
    posted_ = true;
    exchange_.post(message);
  }
  void violated(const directory::Action&) override { ++counters_.violations; }

  directory::Exchange& exchange_;
  const directory::AgentId id_;
  std::unique_ptr<UserFaults> faults_;
  std::shared_ptr<base::UniqueFd> bell_;  // an eventfd, the exchange's too
  CpuCounters counters_;
  std::atomic<Command*> commands_{nullptr};
  std::atomic<uint32_t> holds_{0};  // operations that are held; written by the fault thread
  pthread_t thread_{};
  bool runs_ = false;  // the thread; of whoever owns this object

  // The fault thread's own; while there is none, the owner's:
  OneThread here_;
  Elsewhere<OneThread> elsewhere_;
  bool ended_ = false;
  std::vector<std::unique_ptr<Region>> by_address_;  // ascending
  std::vector<Region*> by_extent_;                   // ascending
  std::vector<Operation> operations_;
  std::vector<directory::Age> runnable_;
  std::vector<directory::Age> failed_;
  std::vector<directory::Message> messages_;
  std::deque<Range> wanted_;
  size_t asking_ = 0;    // operations of kAhead
  bool posted_ = false;  // in this turn
  std::function<void()> serve_others_;
  Touches touches_;
};

}  // namespace olpager::pager
