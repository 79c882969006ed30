// OL_SIM_CTXLOCK: what a call of the driver does that waits for work of its context and lets no
// other call of that context be answered meanwhile. Thread-safety: one thread has it, which may
// take it again (locks.h).
#pragma once

namespace olpager::simgpu {

class Context;

class CallLock {
 public:
  /// Nothing without that setting.
  explicit CallLock(Context& context);
  ~CallLock();
  CallLock(const CallLock&) = delete;
  CallLock& operator=(const CallLock&) = delete;

  bool isHeld() const { return held_ != nullptr; }

 private:
  Context* const held_;
};

}  // namespace olpager::simgpu
