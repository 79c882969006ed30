#include "gpunode/worker/thread_streams.h"

#include "forwarding/wire/wire.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {

CUresult ThreadStreams::find(uint32_t thread, uint64_t context, CUstream* stream) {
  const api::DriverTable& driver = worker_.driver();
  std::lock_guard lock(mutex_);
  ThreadStream& known = all_[{context, forward::threadPlace(thread)}];
  // The stream of a thread that has ended serves the next thread in its place, unless work is still
  // in the stream that this one would wait for.
  if (known.stream != nullptr && known.thread != thread &&
      driver.cuStreamQuery(known.stream) != CUDA_SUCCESS) {
    // The debts of the stream's launches go into the stream while somebody can still name it.
    const CUcontext before = Worker::current();
    if (worker_.exchange().owes()) worker_.exchange().settle();
    worker_.setCurrent(before);
    (void)driver.cuStreamDestroy_v2(known.stream);  // goes when it is through
    known.stream = nullptr;
  }
  known.thread = thread;
  if (known.stream == nullptr) {
    if (driver.cuStreamCreate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    const CUresult result = driver.cuStreamCreate(&known.stream, CU_STREAM_DEFAULT);
    if (result != CUDA_SUCCESS) {
      known.stream = nullptr;
      return result;
    }
  }
  *stream = known.stream;
  return CUDA_SUCCESS;
}

void ThreadStreams::contextGone(uint64_t context) {
  std::lock_guard lock(mutex_);
  std::erase_if(all_, [&](const auto& entry) { return entry.first.first == context; });
}

}  // namespace olpager::gpunode
