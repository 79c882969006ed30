// Data that a session's worker sends unasked for the program's memory: bytes behind a copy in
// stream order, and kernels' changes of exchanged memory. Thread-safety: any thread. Lock: one of
// its own, a leaf.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>

#include "interpose/forward/rows.h"

namespace olpager::forward {

class Session;

class Arrivals {
 public:
  explicit Arrivals(Session& session) : session_(session) {}

  /// Bytes that come later, behind a copy in stream order: written to `into`. The number goes with
  /// the copy's call.
  uint32_t expectBytes(void* into, uint64_t bytes) { return expectRows(Rows::linear(into, bytes)); }
  uint32_t expectRows(const Rows& into);  // one behind the other
  void bytesDoNotCome(uint32_t number);   // the copy's call was not sent
  /// The bytes are here, or none are: they are there already, or the copy has failed. False: they
  /// are not as many as it asked for.
  bool bytesCome(uint32_t number, std::span<const std::byte> bytes);

  /// Changes of exchanged memory that come later (one of those that an Answer::kHostBytes counts).
  void expectChanges();
  /// The call that was to bring them was not sent.
  void changesDoNotCome();
  /// So many answers are in place, of those that are expected at most.
  void changesCome(uint32_t count);
  /// True if some of these are still to come. Answers are counted, not told apart, so one may stand
  /// for another: it is false only where all have come that were expected by then.
  bool changesOutstanding() const;

  /// True if bytes of copies to [address, + bytes) are still to come.
  bool bytesOutstanding(uint64_t address, uint64_t bytes);
  /// Waits until none are: their streams have come to the copies, of whatever context, or will not
  /// any more.
  void awaitBytes(uint64_t address, uint64_t bytes);
  /// True if bytes are to come for any of the program's memory.
  bool any() const { return bytes_come_.load() != 0 || changesOutstanding(); }
  /// The session is lost: nobody waits any more.
  void wake();

 private:
  bool expects(uint64_t address, uint64_t bytes) const;

  Session& session_;
  std::mutex mutex_;
  std::condition_variable came_;  // or do not come
  std::unordered_map<uint32_t, Rows> expected_;
  std::atomic<uint32_t> bytes_come_{0};  // entries of expected_
  uint32_t next_ = 1;
  std::atomic<uint64_t> changes_expected_{0}, changes_answered_{0};
};

}  // namespace olpager::forward
