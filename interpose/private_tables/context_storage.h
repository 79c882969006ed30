// Values that libraries attach to a context: (context, key) -> value, with a destructor that runs
// when the context is reset or destroyed (the CUDA runtime keeps its per-context state this way).
// Thread-safety: all members may be called from any thread; destructors run on the caller's thread,
// outside the lock, so that they may call back in. Ownership: values stay the caller's; only their
// destructor is called.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <unordered_map>

namespace olpager::interpose {

class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  /// Sets the value of (context, key), replacing an earlier one without running its destructor.
  void put(CUcontext context, void* key, void* value, Destructor destructor);

  /// Forgets (context, key) without running its destructor; false where there was none.
  bool erase(CUcontext context, void* key);

  /// Writes the value of (context, key) and returns true, or returns false and leaves `value`
  /// alone.
  bool get(CUcontext context, void* key, void** value) const;

  /// The context is reset or destroyed: removes all of its values and runs their destructors.
  void contextGone(CUcontext context);

 private:
  struct Key {
    CUcontext context;
    void* key;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return std::hash<const void*>{}(k.context) * 0x9e3779b97f4a7c15u ^
             std::hash<const void*>{}(k.key);
    }
  };
  struct Entry {
    void* value;
    Destructor destructor;
  };

  mutable std::mutex mutex_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
};

}  // namespace olpager::interpose
