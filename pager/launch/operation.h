// The memory that one GPU operation uses, as it was described: plain data, no lock. Access fills it
// on the program's thread; an Acquisition (acquisition.h) reads it, and has a copy of its own where
// the operation waits without its caller.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pager/types.h"

namespace olpager::pager {

struct StreamState;  // private
struct TimedLaunch;  // private: a launch between two events

/// Allocations that a graph reaches, gathered while it is captured or from its nodes. Copyable.
struct ReachSet {
  /// Ascending, unique: one address inside each allocation; of a very large one, one in each page
  /// that is named.
  std::vector<uint64_t> addresses;
  /// A range that a copy or memset names exactly.
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool only_set = false;  // the operation reads from nowhere, as far as is known: a memset
    auto operator<=>(const Range&) const = default;
  };
  std::vector<Range> ranges;  // ascending, unique
  bool everything = false;    // a kernel of it may reach any allocation
  /// Names of its kernels, the first ones, for reports. The names live as long as the process.
  std::array<const char*, 8> kernels{};
  bool empty() const { return addresses.empty() && !everything; }
  bool operator==(const ReachSet&) const = default;
  void add(uint64_t address);
  /// Unless the page has one.
  void addInPage(uint64_t address);
  void addRange(const Range& range);
  void add(const ReachSet& other);
  void addKernel(const char* name);
};

/// The addresses that an operation names, in the order of naming. The first ones without an
/// allocation.
class Uses {
 public:
  struct Use {
    uint64_t address;
    uint64_t bytes;  // 0: unknown (a kernel parameter)
    Mode mode;
  };
  Uses() = default;
  Uses(const Uses& other) : count_(other.count_), more_(other.more_) {
    std::copy_n(other.inline_, std::min(count_, kInline), inline_);
  }
  Uses& operator=(const Uses&) = delete;

  unsigned count() const { return count_; }
  const Use& operator[](unsigned i) const { return i < kInline ? inline_[i] : more_[i - kInline]; }
  Use& push() { return count_ < kInline ? inline_[count_++] : pushMore(); }

 private:
  static constexpr unsigned kInline = 40;
  Use& pushMore();

  Use inline_[kInline];
  unsigned count_ = 0;
  std::vector<Use> more_;  // beyond kInline
};

struct Operation {
  explicit Operation(const StreamKey& on) : stream(on) {}
  /// A kernel that names nothing uses something: a module variable or a texture, which may be gone
  /// before it ends, can lead it somewhere.
  bool usesNothing() const { return uses.count() == 0 && root_writes.empty() && !follows_pointers; }

  /// True if bytes from the host are looked through for pointers when the operation is acquired.
  bool hostIsRead() const {
    constexpr uint64_t kMostRead = 64 << 10;
    return host_source != nullptr && host_stable && host_bytes <= kMostRead;
  }

  StreamKey stream;  // where it will run
  const void* function = nullptr;
  const char* name = nullptr;         // it lives as long as the process
  const ReachSet* graph = nullptr;    // the caller's
  const void* host_source = nullptr;  // the caller's
  uint64_t host_bytes = 0;
  bool host_stable = false;
  bool follows_pointers = false;  // a kernel or a graph: its reach goes on through memory
  bool reaches_everything = false;
  bool only_shows = false;
  bool in_parts_beyond_vram = false;  // a graph: see Access::inPartsBeyondVram()
  Uses uses;
  std::vector<uint64_t> outside_words;  // parameters that may lie in a root
  std::vector<Uses::Use> root_writes;   // what is written where roots may lie
};

/// A graph that its caller makes in parts: what it reaches.
struct GraphBeyond {
  unsigned device = 0;
  uint64_t bytes = 0;
};

/// An operation that has its number: whoever makes its driver call says so when that is over
/// (Access::submitted()), on the thread that got it, whose hazard slot is entered. If there is
/// managed memory, no signal handler runs on that thread meanwhile: a touch of what the operation
/// reaches waits until it is submitted.
struct Submission {
  StreamState* stream = nullptr;  // nullptr: it has none
  uint64_t number = 0;            // without a stream: of the deferred launch (deferred.h); 0: none
  TimedLaunch* timed = nullptr;   // this launch is timed
  uint64_t traced = 0;            // when it was ready to go; 0: nobody traces
  bool holds_signals = false;     // base::releaseSignals() is owed
};

}  // namespace olpager::pager
