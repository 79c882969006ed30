// User objects: a program's resources, released by its destructor when the last graph or instance
// that refers to them is gone. Thread-safety: all members from any thread. Destructors run on the
// thread that drops the last reference.
#pragma once

#include <cuda.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace olpager::simgpu {

class UserObject {
 public:
  UserObject(void* pointer, CUhostFn destroy, unsigned references)
      : pointer_(pointer), destroy_(destroy), references_(references) {}

  CUuserObject handle = nullptr;

  void retain(unsigned count);
  /// CUDA_ERROR_INVALID_VALUE for more references than there are. The last one runs the destructor
  /// and ends the handle.
  CUresult release(unsigned count);

 private:
  void* const pointer_;
  const CUhostFn destroy_;
  std::mutex mutex_;
  uint64_t references_;
};

/// The references that one graph or instance holds; dropped with it.
class UserObjectReferences {
 public:
  UserObjectReferences() = default;
  ~UserObjectReferences();
  UserObjectReferences(const UserObjectReferences&) = delete;
  UserObjectReferences& operator=(const UserObjectReferences&) = delete;

  /// Takes over `count` references that the caller has made.
  void adopt(const std::shared_ptr<UserObject>& object, unsigned count);
  CUresult release(const std::shared_ptr<UserObject>& object, unsigned count);
  /// Holds one more reference to each object that `other` refers to.
  void retainAll(const UserObjectReferences& other);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::shared_ptr<UserObject>, unsigned> counts_;
};

}  // namespace olpager::simgpu
