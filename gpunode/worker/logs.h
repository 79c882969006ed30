// Tells if a session's client hears what the driver logs. Thread-safety: any thread; its lock is
// held while the driver is called, and no other is taken under it.
#pragma once

#include <cuda.h>

#include <mutex>

namespace olpager::gpunode {

class Worker;

class LogListener {
 public:
  CUresult listen(Worker& worker);
  CUresult stop(const Worker& worker);

 private:
  std::mutex mutex_;
  CUlogsCallbackHandle handle_ = nullptr;
};

}  // namespace olpager::gpunode
