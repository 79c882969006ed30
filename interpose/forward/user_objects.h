// User objects: the driver at the worker counts who holds one, the program's destructor is called
// here when it says that nobody does any more. Thread-safety: any thread. Its lock is a leaf.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

class Session;

/// By who receives.
void userObjectGone(Session& session, uint64_t number);
/// The session is lost, and with it who would say that they are gone. Their destructors are not
/// called: what they free may still be the program's, which can't give back its own references any
/// more.
void forgetUserObjects(unsigned slot);
/// As cuUserObjectCreate, in the session.
CUresult createUserObject(Session* session, CUuserObject* out, void* data, CUhostFn destroy,
                          unsigned references, unsigned flags);

}  // namespace olpager::forward
