// One GPU operation that uses memory of a pool.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "pager/launch/operation.h"
#include "pager/types.h"

namespace olpager::pager {

class Pool;
struct Region;  // private

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
    operation_.function = function;
    operation_.follows_pointers = true;  // also without parameters: module globals
  }
  /// The kernel's name, for reports (Pool::asksNames). `name` lives as long as the process.
  void setName(const char* name) { operation_.name = name; }
  /// Every 8-byte word at 4-byte steps of a kernel parameter (or an `extra` buffer) that lies in
  /// the range names an allocation; the launch reads and writes it. `bytes` may be below 8 (then
  /// nothing).
  void addParameter(const void* bytes_at, size_t bytes);
  /// A kernel whose parameters nobody can tell: it may reach any allocation.
  void addEverything() { operation_.reaches_everything = operation_.follows_pointers = true; }
  /// An exact range, known from the function's specification. 0 bytes: nothing. Outside the range
  /// only writes matter, where a root may lie.
  void addRange(uint64_t address, uint64_t bytes, Mode mode);
  /// The operation copies `bytes` from host memory, whose words may be addresses of the range that
  /// kernels follow later. `stable`: the bytes can't change before the copy is made (pageable
  /// source, or a synchronous copy).
  void addHostSource(const void* host, uint64_t bytes, bool stable);
  /// Everything that a graph reaches.
  void addReach(const ReachSet& set);
  /// A graph that its caller can make as the operations that it stands for: acquire() refuses it
  /// with CUDA_ERROR_OUT_OF_MEMORY, and mustBeInParts() is true then, where it reaches more memory
  /// than VRAM has room for and its parts may reach less (Acquisition::isBetterInParts). While
  /// everything is in VRAM that is never asked.
  void inPartsBeyondVram() { operation_.in_parts_beyond_vram = true; }
  bool mustBeInParts() const { return beyond_.has_value(); }
  /// The graph's parts have been made.
  void madeInParts() const;
  /// Nothing is used: the driver only looks where the ranges are mapped, and notes it. Those that
  /// belong to no allocation any more are left out; what is in host memory in place comes to VRAM
  /// if that can be had in a bounded time.
  void onlyShow() { operation_.only_shows = true; }
  /// True when something was named.
  bool any() const {
    return operation_.uses.count() != 0 || operation_.reaches_everything ||
           !operation_.root_writes.empty();
  }
  /// For a launch recorded by a capture or put in a graph node: what it names, instead of
  /// acquire().
  void collect(ReachSet& into) const;
  /// True if a range that has been added is of managed memory.
  bool namesManaged() const;

  /// Makes all of it mapped: waits for fetches a bounded time, then maps in place.
  /// CUDA_ERROR_OUT_OF_MEMORY when neither can be had; an address in the range that belongs to no
  /// allocation is CUDA_ERROR_ILLEGAL_ADDRESS for addRange and ignored for parameters (ordinary
  /// data can look like an address).
  /// `suspends`: an operation that a worker makes need not wait on this thread: kSuspended
  /// (external_operation.h). Nothing that the caller has done before may be of harm when it is done
  /// again.
  CUresult acquire(bool suspends = false);
  /// The driver call was made (or refused: result != CUDA_SUCCESS).
  void submitted(CUresult result);

 private:
  void addWord(uint64_t word);
  void addOutside(uint64_t word);
  CUresult acquireSlow(bool suspends);
  bool crosses(const StreamState& stream, const Region& region) const;
  void reachAcross(StreamState& stream);
  void findDevice(StreamState& stream) const;

  Pool& pool_;
  Operation operation_;    // its graph: until acquire() returns
  Submission submission_;  // while acquired
  std::optional<GraphBeyond> beyond_;
};

/// From now on this is called on each thread that waits for an operation's memory, once for each
/// operation, when that has waited for a moment. No lock is held; it must not throw. One `call` for
/// the process; nullptr: nobody asks.
void onWait(void (*call)());
/// The calling thread is about to wait for an operation that another thread is making: whoever
/// onWait() has named is told, as for memory. No lock is held.
void tellOfWait();

}  // namespace olpager::pager
