// Memory that was freed in stream order: it goes when its stream has come to the free.
//
// Locks: everything runs under PoolState::mutex, which collect() releases while it asks the driver.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_set>
#include <vector>

#include "pager/driver_api.h"
#include "pager/types.h"

namespace olpager::pager {

class DeferredFrees {
 public:
  struct Entry {
    CUdeviceptr address;
    CUevent event;  // behind the free in its stream; whoever takes the entry destroys it
  };

  /// True if the address was freed and is still in use.
  bool contains(CUdeviceptr address) const { return addresses_.contains(address); }
  /// True if something waits of which is(address) is true.
  template <typename Is>
  bool any(Is is) const {
    return std::any_of(addresses_.begin(), addresses_.end(), is);
  }
  /// Nothing waits, and nobody asks the driver about what does.
  bool idle() const { return of_stream_.empty() && asking_ == 0; }
  void add(const StreamKey& stream, const Entry& entry);
  /// The memory goes now: its address may be given out again.
  void forget(CUdeviceptr address) { addresses_.erase(address); }
  /// Asks the driver about the first frees of some streams, others each time. Returns the addresses
  /// whose turn has come, each to be forgotten when its memory goes; their events are destroyed.
  /// Releases the mutex.
  std::vector<CUdeviceptr> collect(const DriverApi& driver, Lock& lock);
  /// Until nobody asks the driver.
  void awaitAsking(base::Condition& changed, Lock& lock) const;
  /// Takes the frees in streams of the context, each to be forgotten when its memory goes.
  std::vector<Entry> takeStreamsOf(CUcontext context);
  /// Takes what takes(address) names out of the lists. Returns the events that belong to streams of
  /// other contexts than `context`, whose own go with it.
  template <typename Takes>
  std::vector<CUevent> takeMemory(CUcontext context, Takes takes);

 private:
  std::map<StreamKey, std::deque<Entry>> of_stream_;  // in the order of each stream
  StreamKey asked_last_;                              // whose were looked at last
  unsigned asking_ = 0;  // threads that hold some of these and ask the driver about them
  std::unordered_set<CUdeviceptr> addresses_;  // of the same
};

template <typename Takes>
std::vector<CUevent> DeferredFrees::takeMemory(CUcontext context, Takes takes) {
  std::vector<CUevent> events;
  for (auto stream = of_stream_.begin(); stream != of_stream_.end();) {
    std::erase_if(stream->second, [&](const Entry& entry) {
      if (!takes(entry.address)) return false;
      if (stream->first.context != context) events.push_back(entry.event);
      addresses_.erase(entry.address);
      return true;
    });
    stream = stream->second.empty() ? of_stream_.erase(stream) : std::next(stream);
  }
  return events;
}

}  // namespace olpager::pager
