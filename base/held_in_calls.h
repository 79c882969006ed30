// Signals of the program during a whole call that it makes, where that call waits for others now
// and then (base/held_signals.h has the rest):
//
//   HeldInCall    all of the call, but its waits that nothing else is held across: those for a
//                 Condition, and those that LetSignals is around
//   LetSignals    around a wait, or between two
//
// Locks held across such a wait are HoldingMutexes, so that no signal comes in it.
#pragma once

#include <cstdint>

namespace olpager::base {

/// The calling thread is in a call of the program's while it lives.
class HeldInCall {
 public:
  HeldInCall() noexcept;
  ~HeldInCall();
  HeldInCall(const HeldInCall&) = delete;
  HeldInCall& operator=(const HeldInCall&) = delete;

 private:
  const bool holds_;
};

/// While it lives signals come to a thread for which signalsMayCome().
class LetSignals {
 public:
  LetSignals() noexcept;
  ~LetSignals();
  LetSignals(const LetSignals&) = delete;
  LetSignals& operator=(const LetSignals&) = delete;

 private:
  const uint32_t calls_;  // that held them back
};

/// True: signals matter, and none of the calling thread's are held back but for the calls that it
/// is in: they are to come between its waits.
bool signalsMayCome() noexcept;

/// How many system calls all this has made in the calling thread.
uint64_t signalCalls() noexcept;

}  // namespace olpager::base
