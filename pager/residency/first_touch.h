// Memory that the machine gives only when it is touched first. The memory of a virtual machine is
// often backed so: by less than 1 GB/s for one thread. A driver makes host chunks one at a time
// (NVIDIA's holds a lock of all GPUs meanwhile) and clears them there, so that threads that make
// chunks beside each other gain nothing, and all other calls that need the lock wait as long.
//
// Several threads that touch memory of the process's own at the same time do gain. They give it
// back, and the driver is asked for as much: the kernel hands out for the most part what came back
// last. That depends on the kernel and on the machine, so it is tried, timed, and not done again
// where it does not pay. Nothing is touched where the driver is fast, and never more than is about
// to be made.
//
//   fast     the driver makes chunks, nothing is touched; slow once it made kJudged bytes below
//            kSlowRate
//   slow     in waves: threads touch up to kAhead bytes; then all of it goes back, and one thread
//            makes chunks for as much. Fast once all portions of a wave came at kTouchedRate, or
//            when the system refused a portion
//   useless  for good, once a wave was not faster than the driver alone by a quarter: as fast
//
// Whoever makes chunks moves the state, under the lock of the chunks' store (PoolState::mutex).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace olpager::pager {

/// Memory of the process's own that was touched. Owns it: the system has it back at its end, or
/// with giveBack(). A forked child does not have it. Thread-safety: one thread at a time.
class TouchedMemory {
 public:
  /// Makes and touches `bytes`, whole huge pages where the system has them. Nothing: it refused.
  /// Lasts as long as the machine takes: 32 MiB 3 to 100 ms.
  static std::optional<TouchedMemory> of(size_t bytes);
  /// Bytes that may be touched without harm to others: of the memory that is available, and of the
  /// room that the process's cgroup leaves (which counts what is touched), the part beyond a
  /// reserve.
  static uint64_t room();

  TouchedMemory(TouchedMemory&& other) noexcept;
  TouchedMemory& operator=(TouchedMemory&& other) noexcept;
  TouchedMemory(const TouchedMemory&) = delete;
  TouchedMemory& operator=(const TouchedMemory&) = delete;
  ~TouchedMemory() { giveBack(); }

  void giveBack() noexcept;
  const void* data() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  TouchedMemory(void* memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
  void* memory_;
  size_t bytes_;
};

/// Decides who touches, who makes chunks and who waits. Times are nanoseconds of one clock that
/// does not go back. Without a lock of its own; no system calls.
class FirstTouch {
 public:
  static constexpr uint64_t kPortion = uint64_t{32} << 20;  // bytes of one touch
  /// Bytes touched in a wave. The kernel keeps some 10 MiB of what a processor gives back for what
  /// that processor asks for next in the same way, which the driver does not.
  static constexpr uint64_t kAhead = 16 * kPortion;
  static constexpr uint64_t kJudged = uint64_t{32} << 20;
  static constexpr uint64_t kSlowRate = 2'000'000'000;     // bytes a second
  static constexpr uint64_t kTouchedRate = 4'000'000'000;  // bytes a second

  enum class Task : uint8_t {
    kMake,   // a chunk
    kTouch,  // a portion, beginTouch() first
    kWait,   // for others that touch or make
  };
  /// What a thread that makes chunks ahead of need is to do, where chunks of `missing` bytes are
  /// wanted that nobody makes.
  Task next(uint64_t missing) const;

  void beginTouch(uint64_t now_ns);
  /// What beginTouch() announced has been tried, for `ns`.
  void endTouch(std::optional<TouchedMemory> portion, uint64_t ns);

  /// A chunk that the driver is about to make.
  struct Making {
    std::vector<TouchedMemory> back;  // goes first, with the lock released
    bool touched = false;             // as much as the chunk was touched for it
  };
  Making beginMaking(uint64_t bytes);
  /// The driver made it, or made nothing (`bytes` is 0), from `began_ns` to `ended_ns`.
  void endMaking(const Making& making, uint64_t bytes, uint64_t began_ns, uint64_t ended_ns);

  /// Everything that is touched, where nothing more is to be made: for the caller to give back.
  std::vector<TouchedMemory> takeAll();

  bool slow() const { return slow_; }
  bool useless() const { return useless_; }
  /// Bytes a second that the driver made alone when it was judged last; 0: never.
  uint64_t rate() const { return rate_; }
  uint64_t touchedAhead() const { return ready_.size() * kPortion + touching_; }

 private:
  void endWave(uint64_t ended_ns);

  bool slow_ = false, useless_ = false;
  unsigned making_ = 0;            // threads in the driver
  unsigned wave_making_ = 0;       // of these, with what was touched for them
  uint64_t touching_ = 0;          // bytes
  uint64_t credit_ = 0;            // given back, and not made yet
  uint64_t made_ = 0, taken_ = 0;  // since it was judged: bytes, and what the driver took for them
  uint64_t ended_ns_ = 0;          // when the driver was done last
  uint64_t rate_ = 0;
  uint64_t wave_began_ns_ = 0, wave_made_ = 0;  // of this wave: 0 before its first touch; bytes
  bool wave_was_slow_ = false;                  // a portion of it came below kTouchedRate
  std::vector<TouchedMemory> ready_;
};

}  // namespace olpager::pager
