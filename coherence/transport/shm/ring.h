// A ring of bytes in memory that two processes share: one produces frames, the other consumes them.
// The other side may write anything anywhere in it at any time: what is read is copied out first
// and checked then, and indices are never trusted.
//
// Thread-safety: one producer, one consumer at a time (their own locks). A consumer that wants to
// sleep says so with sleep() and is rung; a producer without room says so with wantRoom() and is
// rung.
#pragma once

#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace olpager::transport {

/// Shared; 64-bit indices that only grow. All bytes 0 is an empty ring whose consumer is awake.
struct RingControl {
  alignas(64) std::atomic<uint64_t> head;  // consumed up to here
  alignas(64) std::atomic<uint64_t> tail;  // produced up to here
  alignas(64) std::atomic<uint32_t> asleep;
  alignas(64) std::atomic<uint32_t> room_wanted;
  // Bytes that the producer has copied to and from mapped memory of the consumer's: for who counts
  // there, nothing depends on them.
  std::atomic<uint64_t> copied_to, copied_from;
};
static_assert(sizeof(RingControl) == 256 && std::atomic<uint64_t>::is_always_lock_free);

/// One side's view of a ring. The side's own index is kept in private memory (atomic, since other
/// threads poll it; written by one at a time, under the locks of its users).
class Ring {
 public:
  Ring() = default;
  /// `capacity`: a power of two.
  void attach(RingControl* control, std::byte* bytes, uint64_t capacity) {
    assert(std::has_single_bit(capacity));
    control_ = control;
    bytes_ = bytes;
    capacity_ = capacity;
  }

  // The producer. How far the consumer is it looks up only when there seems to be no room: the
  // consumer writes there for each frame, and a look would take the line from it.
  bool fits(uint64_t length) {
    if (length <= room()) return true;
    consumed_ = control_->head.load(std::memory_order_acquire);
    return length <= room();
  }
  /// Appends to what publish() will show.
  void put(const void* from, uint64_t length) {
    move(own(), length, [&](std::byte* place, uint64_t done, uint64_t part) {
      std::memcpy(place, static_cast<const std::byte*>(from) + done, part);
    });
    advance(length);
  }
  /// True when the consumer sleeps: ring its bell.
  bool publish() {
    control_->tail.store(own(), std::memory_order_seq_cst);
    // The next frame's first lines, which the consumer read a round ago: taken from it now, not
    // while the next waits for them.
    for (uint64_t line = 0; line < kAhead; line += kLine)
      asm volatile("prefetchw %0" : : "m"(bytes_[(own() + line) & (capacity_ - 1)]));
    return control_->asleep.load(std::memory_order_seq_cst) != 0 &&
           control_->asleep.exchange(0) != 0;
  }
  void wantRoom() { control_->room_wanted.store(1, std::memory_order_seq_cst); }
  /// Memory of the peer's was copied without a word. Any thread.
  void noteCopied(uint64_t bytes, bool to_peer) {
    (to_peer ? control_->copied_to : control_->copied_from)
        .fetch_add(bytes, std::memory_order_relaxed);
  }

  // The consumer.
  /// Bytes to read; more than capacity(): the producer broke the ring.
  uint64_t available() const { return control_->tail.load(std::memory_order_acquire) - own(); }
  uint64_t capacity() const { return capacity_; }
  /// Prefetches the first cache lines of `bytes` that can be read, so that they arrive together
  /// instead of one by one.
  void expect(uint64_t bytes) const {
    for (uint64_t line = 0; line < kAhead && line < bytes; line += kLine)
      __builtin_prefetch(&bytes_[(own() + line) & (capacity_ - 1)]);
  }
  void copyOut(void* into, uint64_t skip, uint64_t length) const {
    move(own() + skip, length, [&](std::byte* place, uint64_t done, uint64_t part) {
      std::memcpy(static_cast<std::byte*>(into) + done, place, part);
    });
  }
  /// Bytes that the producer says that it has copied to memory here, or from it.
  uint64_t copied(bool to_here) const {
    return (to_here ? control_->copied_to : control_->copied_from).load(std::memory_order_relaxed);
  }
  /// True when the producer waits for room: ring its bell.
  bool consumed(uint64_t length) {
    advance(length);
    control_->head.store(own(), std::memory_order_seq_cst);
    return control_->room_wanted.load(std::memory_order_seq_cst) != 0 &&
           control_->room_wanted.exchange(0) != 0;
  }
  /// From now on the producer rings the bell. False: there is something already.
  bool sleep() {
    control_->asleep.store(1, std::memory_order_seq_cst);
    return control_->tail.load(std::memory_order_seq_cst) == own();
  }

 private:
  static constexpr uint64_t kLine = 64,
                            kAhead = 4 * kLine;  // of the cache; a short call and what is around it
  uint64_t own() const { return own_.load(std::memory_order_relaxed); }
  void advance(uint64_t length) { own_.store(own() + length, std::memory_order_relaxed); }
  uint64_t room() const {
    const uint64_t used = own() - consumed_;
    return used <= capacity_ ? capacity_ - used : 0;  // an index that can't be: no room
  }
  template <typename Copy>
  void move(uint64_t from, uint64_t length, Copy&& copy) const {
    for (uint64_t done = 0; done < length;) {
      const uint64_t place = (from + done) & (capacity_ - 1);
      const uint64_t part = length - done < capacity_ - place ? length - done : capacity_ - place;
      copy(bytes_ + place, done, part);
      done += part;
    }
  }

  RingControl* control_ = nullptr;
  std::byte* bytes_ = nullptr;
  uint64_t capacity_ = 0;
  std::atomic<uint64_t> own_{0};
  uint64_t consumed_ = 0;  // of the producer: as far as it knows
};

}  // namespace olpager::transport
