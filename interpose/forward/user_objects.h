// User objects: the driver at the worker counts who holds one, the program's destructor is called
// here when it says that nobody does any more. Thread-safety: any thread. The lock is a leaf.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace olpager::forward {

class Session;

/// Those of a session that may still come to their end. When the session is lost nobody says so any
/// more, and their destructors are not called: what they free may still be the program's, which
/// can't give back its own references any more.
class UserObjects {
 public:
  struct Destructor {
    CUhostFn function;
    void* data;
  };
  void expect(uint64_t number, Destructor destructor);
  bool take(uint64_t number, Destructor* taken);

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, Destructor> of_;  // by number
};

/// By the receiver.
void userObjectGone(Session& session, uint64_t number);
/// As cuUserObjectCreate, in the session.
CUresult createUserObject(Session* session, CUuserObject* out, void* data, CUhostFn destroy,
                          unsigned references, unsigned flags);

}  // namespace olpager::forward
