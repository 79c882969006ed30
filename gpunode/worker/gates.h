// Places in streams that wait for the client: until it says that what they wait for elsewhere is
// done (docs/internals/forwarding.md, several gpunodes). A gate is a word of pinned memory that the
// stream waits for, so no thread of the driver's is held: host functions run one after the other,
// and one that waited would keep all others from ending.
//
// States of a gate: put -> open (by the client) -> gone (the stream is through, or the context is
// gone). Thread-safety: any thread; no lock is held while the driver is called. Errors: CUDA's.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interpose/api/driver_table.h"

namespace olpager::gpunode {

class Gates {
 public:
  /// The stream, of `context` (the client's number), which is current, waits here until
  /// open(number).
  CUresult put(const api::DriverTable& driver, uint64_t context, CUstream stream, uint32_t number);
  /// True if a stream waits, or will wait, for this gate.
  bool isPut(uint32_t number);
  /// How many have not been opened.
  uint32_t closed() const { return closed_count_.load(); }
  /// A number that means nothing is none of an error: its context may be gone.
  void open(uint32_t number);
  void contextGone(uint64_t context);

 private:
  struct Words;  // of one context
  struct Word {
    std::shared_ptr<Words> of;
    size_t index;
  };
  std::shared_ptr<Words> wordsOf(const api::DriverTable& driver, uint64_t context);
  static void CUDA_CB passed(void* data);

  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Words>> words_;  // by context
  std::map<uint32_t, Word> closed_;
  std::atomic<uint32_t> closed_count_{0};  // of closed_
};

}  // namespace olpager::gpunode
