// A session's book of device memory: which addresses are given out in the part of the worker's
// range that is set aside for the client, and which plain allocations there are. Allocation and
// free are in device_memory.cpp.
//
// Thread-safety: any thread. Locks: AllocationBook::mutex, held while a call is written, so that
// the worker hears of addresses in the order in which they changed hands; below it those of calls
// and that of session_contexts.h. `known_mutex`, a leaf.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/space/address_allocator.h"
#include "base/space/slab_allocator.h"
#include "interpose/forward/freed_in_order.h"

namespace olpager::forward {

class Group;
class Session;

struct AllocationBook {
  // Bytes that may be allocated without asking. Valid for one device at a time: devices share host
  // memory.
  struct Credit {
    CUdevice device = -1;
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  struct Held {
    uint64_t context;  // with which it ends
    uint64_t bytes;
    uint64_t number = 0;  // of what is known: no other allocation has had it
  };

  std::mutex mutex;
  bool tried = false;
  std::unique_ptr<space::AddressAllocator> addresses;  // null: the worker gives out addresses
  Group* group = nullptr;  // of a session of several executors: who gives pages their places
  std::map<uint64_t, std::unique_ptr<space::SlabAllocator>> slabs;  // by context
  std::unordered_map<CUdeviceptr, Held> held;
  // In a group: freed while a stream captures, when nobody may wait for what uses it.
  std::vector<std::pair<CUdeviceptr, Held>> later;
  FreedInOrder in_order;           // likewise: freed in the order of a stream
  std::set<CUmemoryPool> limited;  // of a group: pools that give so much and no more
  uint64_t pages = 0;              // taken, without guards
  Credit credit;
  std::atomic<uint64_t> spent{0};  // calls that ended what is known of free memory
  uint64_t spent_seen = 0;         // when `credit` was told

  // Plain allocations, also those at the worker's addresses.
  mutable std::shared_mutex known_mutex;
  std::map<CUdeviceptr, Held> known;
  uint64_t newest = uint64_t{1} << 52;  // workers count what is their own from less

  // Under the mutex.

  /// True once addresses are given out here.
  bool ready(const Session& session);
  /// Pages that the worker has for what is allocated. A slab that is kept empty here has gone
  /// there.
  uint64_t usedPages() const;
  /// An address for so many bytes; 0: the part is full.
  uint64_t take(uint64_t context, uint64_t bytes);
  void give(uint64_t context, uint64_t address, uint64_t bytes);
  /// Frees the memory whose frees their streams have come to.
  void giveFreedInOrder();

  // Without a lock.

  void know(CUdeviceptr address, const Held& memory);
  /// False: no allocation that is known begins there.
  bool forget(CUdeviceptr address);
  /// Bytes from the address to the end of the plain allocation that it is in.
  std::optional<uint64_t> leftInKnown(CUdeviceptr address) const;
  /// The start and the bytes of the plain allocation that holds the address.
  std::optional<std::pair<CUdeviceptr, uint64_t>> findKnown(CUdeviceptr address) const;
  /// The number of the plain allocation that begins there; 0: there is none.
  uint64_t numberOf(CUdeviceptr address) const;
  bool knowsAny(uint64_t context) const;
  /// Frees all that was allocated in the context.
  void dropOf(uint64_t context);

 private:
  uint64_t takePages(uint64_t count);
  void givePages(uint64_t address);
  bool addToGroup(uint64_t address, uint64_t count);
  void takeReleased(bool wait);
  space::SlabAllocator& slabsOf(uint64_t context);
};

/// The memory allocated in one context: it goes with the context.
class MemoryOfContext {
 public:
  MemoryOfContext(AllocationBook& book, uint64_t context) : book_(book), context_(context) {}
  ~MemoryOfContext();
  MemoryOfContext(const MemoryOfContext&) = delete;
  MemoryOfContext& operator=(const MemoryOfContext&) = delete;

 private:
  AllocationBook& book_;
  const uint64_t context_;
};

}  // namespace olpager::forward
