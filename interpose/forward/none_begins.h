// While one of these lives no stream of the program's begins to capture: a thread that is about to
// send what would spoil a capture asks capturing() (captures.h) and sends it meanwhile. Locks: one
// of its own (locks.h), which who begins a capture has for a moment before the call.
#pragma once

namespace olpager::forward {

class NoneBegins {
 public:
  NoneBegins();
  NoneBegins(const NoneBegins&) = delete;
  NoneBegins& operator=(const NoneBegins&) = delete;
  ~NoneBegins();
};

}  // namespace olpager::forward
