// The handles that a session's client knows, and what they are here. Only what is in the table ever
// reaches the driver. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/wire.h"

namespace olpager::gpunode {

enum class HandleKind : uint8_t {
  kContext = 1,
  kModule,
  kFunction,  // CUfunction and CUkernel: the runtime passes one in the other's place
  kLibrary,
  kArray,
  kMipmappedArray,
  kTexref,
  kSurfref,
  kEvent,
  kStream,
  kGraph,
  kGraphNode,
  kGraphExec,
  kMemoryPool,
  kUserObject,
  kGreenContext,
  kResourceDesc,
  kLinkState,
  kAllocation,
  kOther,
};

template <typename T>
constexpr HandleKind kKindOf = HandleKind::kOther;
template <>
inline constexpr HandleKind kKindOf<CUcontext> = HandleKind::kContext;
template <>
inline constexpr HandleKind kKindOf<CUmodule> = HandleKind::kModule;
template <>
inline constexpr HandleKind kKindOf<CUfunction> = HandleKind::kFunction;
template <>
inline constexpr HandleKind kKindOf<CUkernel> = HandleKind::kFunction;
template <>
inline constexpr HandleKind kKindOf<CUlibrary> = HandleKind::kLibrary;
template <>
inline constexpr HandleKind kKindOf<CUarray> = HandleKind::kArray;
template <>
inline constexpr HandleKind kKindOf<CUmipmappedArray> = HandleKind::kMipmappedArray;
template <>
inline constexpr HandleKind kKindOf<CUtexref> = HandleKind::kTexref;
template <>
inline constexpr HandleKind kKindOf<CUsurfref> = HandleKind::kSurfref;
template <>
inline constexpr HandleKind kKindOf<CUevent> = HandleKind::kEvent;
template <>
inline constexpr HandleKind kKindOf<CUstream> = HandleKind::kStream;
template <>
inline constexpr HandleKind kKindOf<CUgraph> = HandleKind::kGraph;
template <>
inline constexpr HandleKind kKindOf<CUgraphNode> = HandleKind::kGraphNode;
template <>
inline constexpr HandleKind kKindOf<CUgraphExec> = HandleKind::kGraphExec;
template <>
inline constexpr HandleKind kKindOf<CUmemoryPool> = HandleKind::kMemoryPool;
template <>
inline constexpr HandleKind kKindOf<CUuserObject> = HandleKind::kUserObject;
template <>
inline constexpr HandleKind kKindOf<CUgreenCtx> = HandleKind::kGreenContext;
template <>
inline constexpr HandleKind kKindOf<CUdevResourceDesc> = HandleKind::kResourceDesc;
template <>
inline constexpr HandleKind kKindOf<CUlinkState> = HandleKind::kLinkState;
template <>
inline constexpr HandleKind kKindOf<CUmemGenericAllocationHandle> = HandleKind::kAllocation;

template <typename T>
uint64_t bitsOf(T handle) {
  static_assert(sizeof handle == sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &handle, sizeof bits);
  return bits;
}
template <typename T>
T handleFrom(uint64_t bits) {
  T handle;
  std::memcpy(&handle, &bits, sizeof handle);
  return handle;
}

/// A kernel's parameters, in their order.
using ParameterPlaces = std::vector<forward::ParameterPlace>;

class HandleTable {
 public:
  /// `slot`: of the session, in all numbers that are made here.
  explicit HandleTable(unsigned slot = 0)
      : next_(forward::kHandleMark | forward::kWorkersHandle | forward::slotBits(slot) | 1) {}

  /// The number that the client knows `value` by; 0 for 0. A value that has none gets the first of
  /// `names` (may be null), which the client has drawn for it; if none are left, or that one means
  /// something already, one is made here.
  uint64_t numberOf(HandleKind kind, uint64_t value, forward::Names* names = nullptr);
  /// Gives a number of the client's own its meaning. One that has a meaning already keeps it:
  /// false.
  bool bind(uint64_t number, HandleKind kind, uint64_t value);
  /// Finds what a number means; false when it means nothing, or something of another kind. `places`
  /// (may be null): what was noted of it, or null.
  bool find(uint64_t number, HandleKind kind, uint64_t* value,
            const ParameterPlaces** places = nullptr) const;
  /// The places of a kernel's parameters, which stay as long as the table. Places noted before are
  /// kept; null: the number is no kernel's.
  const ParameterPlaces* notePlaces(uint64_t number, ParameterPlaces places);
  /// The driver took it away. Allocations are counted by the driver: their numbers stay. A number
  /// never comes to mean something else: behind a module or a library that is gone, what the driver
  /// names anew has a new number.
  void gone(uint64_t number);
  /// The driver may give this handle to something else. That gets a number of its own; what number
  /// there is keeps its meaning, as the program's handle does.
  void mayComeAgain(HandleKind kind, uint64_t value);
  size_t size() const;
  /// Every number that means something, with its kind. `each` asks nothing of the table.
  void forEach(const std::function<void(uint64_t number, HandleKind kind)>& each) const;

 private:
  struct Entry {
    HandleKind kind;
    uint64_t value;
    const ParameterPlaces* places = nullptr;  // of a kernel, once they are known
  };
  struct Key {
    HandleKind kind;
    uint64_t value;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return key.value * 0x9e3779b97f4a7c15u ^ static_cast<size_t>(key.kind) << 56;
    }
  };
  uint64_t newNumber(forward::Names* names);  // under mutex_

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::unordered_map<Key, uint64_t, KeyHash> numbers_;
  std::deque<ParameterPlaces> places_;  // launches use them without the mutex
  uint64_t next_;
};

}  // namespace olpager::gpunode
