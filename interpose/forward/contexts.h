// Contexts on the client: pure bookkeeping, no call. Thread-safety: the stack is each thread's own;
// the rest any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace olpager::forward {

class Session;

/// The calling thread's current context; 0: none.
uint64_t currentContext();
/// The context that a call of the calling thread to this session is made in: the current one, else
/// one of that session's; 0: none.
uint64_t contextIn(const Session* session);
/// Those of the session that are known to be there.
std::vector<uint64_t> contextsOf(const Session& session);
/// The program's device of a context that exists; false for any other number.
bool deviceOf(uint64_t context, CUdevice* device);
/// The context whose memory is what is allocated in this one, and ends with it: of one that stands
/// for a green context its device's primary one. Others are their own.
uint64_t memoryOwner(uint64_t context);
/// The same for memory that is allocated in a stream's order, whatever context is current. The
/// worker is asked where there are several.
uint64_t memoryOwner(CUstream stream);

/// Makes a context the calling thread's current one for as long as it lives; 0: leaves it as it is.
class WithContext {
 public:
  explicit WithContext(uint64_t context);
  ~WithContext();
  WithContext(const WithContext&) = delete;
  WithContext& operator=(const WithContext&) = delete;

 private:
  const bool pushed_;
};

}  // namespace olpager::forward
