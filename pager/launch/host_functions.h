// The program's host functions that are before the next work of a stream.
//
// A host function may touch managed memory, which waits for whoever has taken it. So a launch
// behind a function must not take what the function may touch before the function is over
// (Acquisition::followsFunction). This table knows of each stream which functions are before it:
//
//   its own      those that were put in it
//   of others    all that were not over when the stream began to wait for an event: which of them
//                the event is behind is not known
//   legacy       the legacy default stream is behind all of its context that are in streams which
//                it waits for, and the others of the context are behind what it is behind
//
// A stream so may be said to be behind a function that it is not behind, never the other way round.
// Under PoolState::mutex, but for any().
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "pager/clock.h"
#include "pager/types.h"

namespace olpager::pager {

class HostFunctions {
 public:
  /// Work behind a function that is not deferred waits no longer for the function's end: the
  /// function may wait for the work.
  static constexpr uint64_t kPatienceNs = 5'000'000'000;
  /// A kernel behind a function of its own stream is deferred then (launch/deferred.h).
  static constexpr uint64_t kSoonNs = 100'000'000;
  /// A function is about to be put in the stream. `blocking`: the legacy default stream waits for
  /// that stream. The number is never 0.
  uint64_t begins(const StreamKey& stream, bool blocking);
  /// The function has returned. Deferred work behind it gets its memory next; ended() follows.
  void returned(uint64_t number) {
    for (Function& one : begun_)
      if (one.number == number) one.returned = true;
  }
  /// The function is over, or the driver did not take it.
  void ended(uint64_t number);
  /// The context is gone or has ended: what is in its streams is not called any more.
  void contextGone(CUcontext context);
  /// The stream is gone, its functions are not: another stream may get its handle.
  void streamGone(const StreamKey& stream) {
    before_.erase(stream);
    for (Function& one : begun_)
      if (one.stream == stream) one.stream.thread = kGone;
  }
  /// The stream is about to wait for an event.
  void waits(const StreamKey& stream);
  /// True if a function that has not returned is before the stream's next work.
  bool areBefore(const StreamKey& stream) { return isAnyBefore(stream, false); }
  /// True if a function that has returned and is not over is before it.
  bool areServedBefore(const StreamKey& stream) { return isAnyBefore(stream, true); }
  /// True if a function of the context, with this number at most, has not returned, and was put in
  /// its stream less than kPatienceNs before `now`.
  bool mayTouch(CUcontext context, uint64_t upto, uint64_t now) const {
    return std::any_of(begun_.begin(), begun_.end(), [&](const Function& one) {
      return !one.returned && one.stream.context == context && one.number <= upto &&
             now < one.since_ns + kPatienceNs;
    });
  }
  uint64_t last() const { return last_; }
  /// True if a function with this number at most is not over.
  bool anyUpTo(uint64_t number) const { return !begun_.empty() && begun_.front().number <= number; }
  /// The last one that was put in the stream and has not returned; 0: none is there.
  uint64_t lastIn(const StreamKey& stream) const {
    for (auto one = begun_.rbegin(); one != begun_.rend(); ++one)
      if (!one->returned && one->stream == stream) return one->number;
    return 0;
  }
  /// The context of a function that is not over; null: the function is over.
  CUcontext contextOf(uint64_t number) const {
    for (const Function& one : begun_)
      if (one.number == number) return one.stream.context;
    return nullptr;
  }
  /// True if a function is not over. Any thread.
  bool any() const { return count_.load() != 0; }

 private:
  static constexpr uint64_t kGone = ~uint64_t{0};  // no thread has that
  struct Function {
    uint64_t number;
    StreamKey stream;
    bool blocking;
    uint64_t since_ns;
    bool returned = false;
  };
  bool isAnyBefore(const StreamKey& stream, bool returned);
  void joins(const StreamKey& stream, const std::vector<uint64_t>& numbers);
  bool isOver(uint64_t number) const;

  std::vector<Function> begun_;  // and not over, ascending
  std::map<StreamKey, std::vector<uint64_t>> before_;
  uint64_t last_ = 0;
  std::atomic<size_t> count_{0};  // of begun_. seq_cst against the marks of launches
};

inline bool HostFunctions::isOver(uint64_t number) const {
  return std::none_of(begun_.begin(), begun_.end(),
                      [number](const Function& one) { return one.number == number; });
}

inline void HostFunctions::joins(const StreamKey& stream, const std::vector<uint64_t>& numbers) {
  std::vector<uint64_t>& all = before_[stream];
  std::erase_if(all, [this](uint64_t number) { return isOver(number); });
  for (const uint64_t number : numbers)
    if (std::find(all.begin(), all.end(), number) == all.end()) all.push_back(number);
}

inline uint64_t HostFunctions::begins(const StreamKey& stream, bool blocking) {
  areBefore(stream);  // what the stream is behind by now, whoever is behind it is behind as well
  begun_.push_back({++last_, stream, blocking, nowNs()});
  count_.store(begun_.size());
  joins(stream, {last_});
  return last_;
}

inline void HostFunctions::ended(uint64_t number) {
  std::erase_if(begun_, [number](const Function& one) { return one.number == number; });
  if (begun_.empty()) before_.clear();
  count_.store(begun_.size());
}

inline void HostFunctions::waits(const StreamKey& stream) {
  std::vector<uint64_t> all;
  for (const Function& one : begun_) all.push_back(one.number);
  if (!all.empty()) joins(stream, all);
}

inline bool HostFunctions::isAnyBefore(const StreamKey& stream, bool returned) {
  if (begun_.empty()) return false;
  StreamKey legacy = stream;
  legacy.stream = CU_STREAM_LEGACY;
  legacy.thread = 0;
  std::vector<uint64_t> more;
  if (stream == legacy) {
    for (const Function& one : begun_)
      if (one.blocking && one.stream.context == stream.context) more.push_back(one.number);
  } else if (const auto found = before_.find(legacy); found != before_.end()) {
    more = found->second;
  }
  joins(stream, more);
  const auto own = before_.find(stream);
  if (own->second.empty()) {
    before_.erase(own);
    return false;
  }
  return std::any_of(begun_.begin(), begun_.end(), [&](const Function& one) {
    return one.returned == returned &&
           std::find(own->second.begin(), own->second.end(), one.number) != own->second.end();
  });
}

inline void HostFunctions::contextGone(CUcontext context) {
  std::erase_if(begun_, [context](const Function& one) { return one.stream.context == context; });
  if (begun_.empty()) before_.clear();
  count_.store(begun_.size());
}

}  // namespace olpager::pager
