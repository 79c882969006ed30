// How a call is made in a session of several executors (group.h): to one of them, in its turn, or
// to all. A Call has one where its session has a group, and leaves begin, finish and post to it.
// Thread-safety: belongs to the call's thread.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "interpose/forward/executor.h"
#include "interpose/forward/group.h"
#include "interpose/forward/kept_call.h"

namespace olpager::forward {

class Session;

class GroupCall {
 public:
  /// Puts room for the age into the record where such a call has one: behind the head, so before
  /// anything else.
  GroupCall(Session& session, std::vector<std::byte>& record);

  /// False: nobody has that memory; it was freed, or never allocated.
  bool uses(uint64_t address, uint64_t bytes);
  /// Each word of [words, + bytes), at multiples of 4, that is an address of the range or of a
  /// variable (group_code.h).
  void usesAddresses(const void* words, uint64_t bytes);
  /// The call asks about an address. If that is a variable's, the call goes to executor 0, whose
  /// addresses of variables the program has.
  void asksAbout(uint64_t address) {
    if (group_.code().variableAt(address) != nullptr) only_ = 0;
  }
  /// The call runs that function, in that context.
  void runs(uint64_t function, uint64_t context);
  void inStream(CUstream stream, bool per_thread) {
    stream_ = stream;
    per_thread_ = per_thread;
  }
  void mayJoinCapture() { joins_ = true; }
  void only(unsigned executor) { only_ = executor; }
  void operatesAt(unsigned executor) { at_ = executor; }

  // As the executor's. The answer in `wait` is that of the first that it went to; where another one
  // failed, the result is the other one's.
  bool begin(std::vector<std::byte>& record, std::span<const std::byte> bulk, Wait& wait,
             bool flush);
  CUresult finish(Wait& wait);
  bool finishWithin(Wait& wait, std::chrono::milliseconds time) {
    return executor(first_).finishWithin(wait, time);
  }
  void leave(const Wait& wait);
  /// The reason why a call was not sent.
  CUresult refusal() const { return refusal_; }
  CUresult post(std::vector<std::byte>& record, std::span<const std::byte> bulk, bool flush);

  /// Each answer of a call that went to several, or the one; of those that were answered.
  template <typename Each>
  void eachAnswer(Wait& wait, Each each) {
    if (wait.answered) each(first_, wait);
    for (const auto& other : others_)
      if (other.wait->answered) each(other.executor, *other.wait);
  }

 private:
  struct Other {
    Other(unsigned number, std::unique_ptr<Wait> its) : executor(number), wait(std::move(its)) {}
    unsigned executor;
    std::unique_ptr<Wait> wait;
    bool waits = false;
  };
  // One to which the call goes now.
  template <typename Send>
  bool send(std::vector<std::byte>& record, std::span<const std::byte> bulk, Send send);
  Goes whereNow() const;
  Executor& executor(unsigned number) const;
  void usesVariable(std::shared_ptr<const SharedVariable> variable, uint64_t address);
  bool isManaged(std::span<const std::byte> bulk) const;
  void bindWhereNeeded(std::span<const std::byte> bulk);
  bool mayBeKept(uint16_t function, std::span<const std::byte> bulk) const;
  void keep(Group::Turn& turn, std::vector<std::byte>& record, std::span<const std::byte> bulk);

  Session& session_;
  Group& group_;
  const Goes goes_;
  std::vector<Named> named_;
  AddressesInRecord addresses_;
  std::vector<CodeThere> code_;
  std::optional<CUstream> stream_;
  bool per_thread_ = false, joins_ = false;
  bool posted_ = false;  // nobody waits for it
  std::optional<unsigned> only_, at_;
  CUresult refusal_ = CUDA_ERROR_DEVICE_UNAVAILABLE;
  unsigned first_ = 0;
  std::vector<Other> others_;
};

}  // namespace olpager::forward
