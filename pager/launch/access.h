// One GPU operation that uses memory of a pool, and what a graph reaches.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pager/types.h"

namespace olpager::pager {

class Closure;       // private: what one operation reaches
class ManagedClaim;  // private: what one operation claims of managed memory
class Pool;
struct Region;       // private
struct StreamState;  // private
struct TimedLaunch;  // private: a launch between two events

/// Allocations that a graph reaches, gathered while it is captured or from its nodes. Copyable.
struct ReachSet {
  /// Ascending, unique: one address inside each allocation; of a very large one, one in each page
  /// that is named.
  std::vector<uint64_t> addresses;
  /// What a copy or memset names exactly.
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool only_set = false;  // the operation reads from nowhere, as far as is known: a memset
    auto operator<=>(const Range&) const = default;
  };
  std::vector<Range> ranges;  // ascending, unique
  bool everything = false;    // a kernel of it may reach any allocation
  /// Names of its kernels, the first ones, for reports. They live as long as the process.
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

/// One GPU operation (launch, copy, memset, graph launch) that uses pool memory: names what it
/// uses, gets it mapped, stays valid while the driver call is made. A stack object of one thread;
/// the resident path takes no lock and makes no system call. Members are called in this order:
/// add*, acquire, (driver call), submitted. Destroying it without submitted() releases it as if the
/// driver had refused the call.
class Access {
 public:
  /// `context`/`stream`: where the operation will run. An operation that names no pool memory costs
  /// a few nanoseconds.
  Access(Pool& pool, const StreamKey& stream);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  /// A kernel: gives the launch its signature in the learned order. Call before addParameters.
  void setFunction(const void* function) {
    function_ = function;
    follows_pointers_ = true;  // also without parameters: module globals
  }
  /// The kernel's name, for reports (Pool::asksNames). It lives as long as the process.
  void setName(const char* name) { name_ = name; }
  /// Every 8-byte word at 4-byte steps of a kernel parameter (or an `extra` buffer) that lies in
  /// the range names an allocation; the launch reads and writes it. `bytes` may be below 8 (then
  /// nothing).
  void addParameter(const void* bytes_at, size_t bytes);
  /// A kernel whose parameters nobody can tell: it may reach any allocation.
  void addEverything() { reaches_everything_ = follows_pointers_ = true; }
  /// An exact range, known from the function's specification. 0 bytes: nothing. Of an address
  /// outside the range only that it is written matters, where a root may lie.
  void addRange(uint64_t address, uint64_t bytes, Mode mode);
  /// The operation copies `bytes` from host memory, whose words may be addresses of the range that
  /// kernels follow later. `stable`: the bytes can't change before the copy is made (pageable
  /// source, or a synchronous copy).
  void addHostSource(const void* host, uint64_t bytes, bool stable);
  /// Everything that a graph reaches.
  void addReach(const ReachSet& set);
  /// Nothing is used: the driver only looks where the ranges are mapped, and notes it. Those that
  /// belong to no allocation any more are left out; what is in host memory in place comes to VRAM
  /// if that can be had in a bounded time.
  void onlyShow() { only_shows_ = true; }
  /// True when something was named.
  bool any() const { return count_ != 0 || reaches_everything_ || !root_writes_.empty(); }
  /// For a launch recorded by a capture or put in a graph node: what it names, instead of
  /// acquire().
  void collect(ReachSet& into) const;

  /// Makes all of it mapped: waits for fetches a bounded time, then maps in place.
  /// CUDA_ERROR_OUT_OF_MEMORY when neither can be had; an address in the range that belongs to no
  /// allocation is CUDA_ERROR_ILLEGAL_ADDRESS for addRange and ignored for parameters (ordinary
  /// data can look like an address).
  CUresult acquire();
  /// The driver call was made (or refused: result != CUDA_SUCCESS).
  void submitted(CUresult result);

 private:
  struct Use {
    uint64_t address;
    uint64_t bytes;  // 0: unknown (a kernel parameter)
    Mode mode;
  };
  static constexpr unsigned kInlineUses = 40;
  Use& push();
  Use& pushMore();
  const Use& use(unsigned i) const { return i < kInlineUses ? inline_[i] : more_[i - kInlineUses]; }
  void addWord(uint64_t word);
  void addOutside(uint64_t word);
  CUresult acquireSlow();
  CUresult nameAll(Closure& closure);
  CUresult await(Closure& closure, ManagedClaim& claim, Lock& lock, uint64_t* waited_ns);
  void commit(Closure& closure, uint64_t waited_ns);
  void assumeStored(const Closure& closure);
  void noteWritten(const Use& write, Region& region, const Closure& closure, uint64_t number);
  bool crosses(const StreamState& stream, const Region& region) const;
  void reachAcross(StreamState& stream);
  void findDevice(StreamState& stream) const;
  void writesRoots(const Closure& closure, uint64_t number);
  TimedLaunch* chooseTimed(std::span<Region* const> named);

  Pool& pool_;
  StreamKey stream_;
  const void* function_ = nullptr;
  const char* name_ = nullptr;
  const ReachSet* graph_ = nullptr;  // until acquire() returns
  const void* host_source_ = nullptr;
  uint64_t host_bytes_ = 0;
  bool host_stable_ = false;
  bool follows_pointers_ =
      false;  // a kernel or a graph: its reach goes on through pointers in memory
  bool reaches_everything_ = false;
  bool only_shows_ = false;
  Use inline_[kInlineUses];
  std::vector<Use> more_;                // beyond kInlineUses
  std::vector<uint64_t> outside_words_;  // parameters that may lie in a root
  std::vector<Use> root_writes_;         // what is written where roots may lie
  unsigned count_ = 0;
  StreamState* stream_state_ = nullptr;  // set while acquired
  uint64_t number_ = 0;                  // of this operation, while acquired
  TimedLaunch* timed_ = nullptr;         // this launch is timed
  uint64_t traced_ = 0;                  // when it was ready to go; 0: nobody traces
};

}  // namespace olpager::pager
