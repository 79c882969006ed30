// Device memory that the program has freed in the order of a stream: it is free when the stream has
// come to the free, of which its worker gives notice (host_functions.h). Nobody waits for that.
//
//   awaits its stream -> come       the notice (comes)
//   come -> free                    who gives addresses back (takeCome)
//   awaits its stream -> allocated  an allocation of as many bytes in the order of the same stream:
//                                   what uses it is behind the free (takeBack)
//   awaits its stream -> stuck      the stream never comes there: its context is broken, or it is
//                                   no stream. The memory goes with its context
//
// Owner: AllocationBook. Thread-safety: any thread. Lock: one of its own, a leaf.
#pragma once

#include <cuda.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace olpager::forward {

class FreedInOrder {
 public:
  struct Memory {
    CUdeviceptr address;
    uint64_t context;  // with which it ends
    uint64_t bytes;
  };
  /// `stream`: a number that means the same stream at any time. The number of the free, for comes()
  /// or drop().
  uint64_t add(const Memory& memory, uint64_t stream);
  /// The stream is there; not `well`: it never will be. Nothing where the memory was taken back.
  void comes(uint64_t number, bool well);
  /// The free has not taken place.
  void drop(uint64_t number);
  /// Memory of just so many bytes that waits for this stream; 0: there is none.
  CUdeviceptr takeBack(uint64_t context, uint64_t stream, uint64_t bytes);
  std::vector<Memory> takeCome();
  /// All of a context that has ended.
  std::vector<Memory> takeOf(uint64_t context);

  /// How many have come so far.
  uint64_t count() const;
  /// True if one is on its way.
  bool anyWaits() const;
  /// Waits until it is more than that. False: none is on its way, or none has come for so long.
  bool awaitMore(uint64_t count, std::chrono::milliseconds patience);

 private:
  struct Waiting {
    CUdeviceptr address;
    uint64_t number;
  };
  using Key = std::array<uint64_t, 3>;  // context, stream, bytes
  using Entries = std::multimap<Key, Waiting>;

  mutable std::mutex mutex_;
  std::condition_variable more_;
  Entries waiting_;
  std::unordered_map<uint64_t, Entries::iterator> by_number_;
  std::vector<Memory> come_, stuck_;
  uint64_t next_ = 1, count_ = 0;
};

}  // namespace olpager::forward
