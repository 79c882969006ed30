// Handles that are numbers, not addresses: a destroyed or invented handle is found out, never
// dereferenced. Handle values are unique in the process and never reused. Thread-safety: all
// members from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace olpager::simgpu {

/// Kinds of handle; the kind is part of the value, so a stream passed as an event is found out too.
enum class HandleKind : uint64_t {
  kContext = 1,
  kStream,
  kEvent,
  kModule,
  kFunction,
  kLibrary,
  kKernel,
  kGraph,
  kGraphNode,
  kGraphExec,
  kArray,
  kTexture,
  kSurface,
  kMemPool,
  kLinker,
  kUserObject,
  kMemory,  // CUmemGenericAllocationHandle
  kResourceDesc,
  kGreenContext,
};

inline std::atomic<uint64_t> next_handle_serial{1};

/// A new handle value: (kind << 40) | (serial << 4). Never 0, 1, 2 or anything below 2^40.
inline uint64_t newHandleValue(HandleKind kind) {
  return (static_cast<uint64_t>(kind) << 40) |
         (next_handle_serial.fetch_add(1, std::memory_order_relaxed) << 4);
}

/// handle value -> shared object.
template <typename T>
class HandleTable {
 public:
  explicit HandleTable(HandleKind kind) : kind_(kind) {}

  /// Registers `object` and returns its handle value.
  uint64_t add(std::shared_ptr<T> object) {
    const uint64_t value = newHandleValue(kind_);
    set(value, std::move(object));
    return value;
  }
  /// Registers `object` under a value from newHandleValue().
  void set(uint64_t value, std::shared_ptr<T> object) {
    std::unique_lock lock(mutex_);
    objects_[value] = std::move(object);
  }
  /// The object, or null when the handle was never given out or is destroyed.
  std::shared_ptr<T> find(uint64_t value) const {
    std::shared_lock lock(mutex_);
    auto it = objects_.find(value);
    return it == objects_.end() ? nullptr : it->second;
  }
  template <typename Handle>
  std::shared_ptr<T> find(Handle* handle) const {
    return find(reinterpret_cast<uint64_t>(handle));
  }
  /// A value of this kind that exists, or did.
  template <typename Handle>
  bool wasGivenOut(Handle* handle) const {
    const uint64_t kind = static_cast<uint64_t>(kind_) << 40,
                   value = reinterpret_cast<uint64_t>(handle);
    return value > kind &&
           value < (kind | (next_handle_serial.load(std::memory_order_relaxed) << 4));
  }
  /// Takes the object out; null when it was not there.
  std::shared_ptr<T> remove(uint64_t value) {
    std::unique_lock lock(mutex_);
    auto it = objects_.find(value);
    if (it == objects_.end()) return nullptr;
    auto object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  template <typename Handle>
  std::shared_ptr<T> remove(Handle* handle) {
    return remove(reinterpret_cast<uint64_t>(handle));
  }
  bool empty() const {
    std::shared_lock lock(mutex_);
    return objects_.empty();
  }
  /// Takes out every object that `gone` says true for.
  template <typename Gone>
  void removeIf(Gone gone) {
    std::unique_lock lock(mutex_);
    std::erase_if(objects_, [&](const auto& entry) { return gone(*entry.second); });
  }
  std::vector<std::shared_ptr<T>> all() const {
    std::shared_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> out;
    out.reserve(objects_.size());
    for (const auto& entry : objects_) out.push_back(entry.second);
    return out;
  }

 private:
  const HandleKind kind_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace olpager::simgpu
