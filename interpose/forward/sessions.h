// The program's sessions: one with each gpunode of the settings, in their order, which gives each
// its slot. A handle, an address and a device say which session they belong to; Route finds it for
// a call.
//
// States: none -> up (all of them, at first need) -> none in a forked child. One that is lost stays
// in its place: calls to it fail, the others go on. Sessions are never destroyed. Thread-safety:
// any thread. Errors: one line on standard error when one can't be had.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>

#include "base/result.h"
#include "base/settings.h"
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/forward/program.h"

namespace olpager::forward {

class Session;

static_assert(kMostSessions >= base::kMostGpunodes && kMostSessions <= kCommonSlot);

/// How the program sees the GPUs of its sessions, where that is not each as a device.
struct View {
  /// Ok if sessions that have started can be seen so. The Error says why not.
  Status (*accepts)(std::span<Session* const> all) = nullptr;
  /// The function behind a symbol instead of forwarded mode's; null: that.
  void* (*function)(api::Symbol symbol) = nullptr;
};

/// Makes the program's sessions, once.
struct Connecting {
  std::mutex mutex;  // held while they are connected
  base::Settings settings;
  View view;
  bool configured = false;
  bool tried = false;
  bool forks_are_heard = false;
  std::once_flag asked_ahead;  // what every runtime asks first (contexts.cpp)
};

void configureSessions(const base::Settings& settings, const View& view = {});
/// All of them, connected at first need; none when one can't be had (told once), or in a forked
/// child of a program that had some.
std::span<Session* const> sessions();
/// Those that there are, without connecting.
std::span<Session* const> existingSessions();
bool inForkedChild();

/// True if the program has more than one.
inline bool severalSessions() {
  return program().session_count.load(std::memory_order_relaxed) > 1;
}

/// The session of a handle; null: none, or it means the same in all of them. In the unified view
/// they are all of one.
Session* sessionOfHandle(uint64_t handle);
/// In whose part of the range of addresses it is; null: in nobody's. No memory of the program's
/// lies there.
Session* sessionOfRange(uint64_t address);
/// In whose part of the range of addresses, or among whose noted memory outside of it, an address
/// is; null: in nobody's.
Session* sessionOfAddress(uint64_t address);
/// The session of the calling thread's current context, else the first. Connects at first need;
/// null as sessions().
Session* currentSession();
/// The same without connecting.
Session* existingSession();
/// The program's session where it has several executors (group.h); null: it has none that has.
Session* sessionOfGroup();

/// Chooses the session for a call: that of the first of its arguments that belongs to one, else of
/// the current context.
class Route {
 public:
  /// Does an argument belong to one, it decides unless an earlier one has.
  Route& address(uint64_t address) {
    if (open()) session_ = sessionOfAddress(address);
    return *this;
  }
  Route& device(CUdevice device) {
    if (open()) toDevice(device);
    return *this;
  }
  Route& location(const CUmemLocation* location) {
    if (open() && location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE)
      toDevice(location->id);
    return *this;
  }
  template <typename T>
  Route& handle(T handle) {
    static_assert(sizeof handle == sizeof(uint64_t));
    if (!open()) return *this;
    uint64_t bits = 0;
    std::memcpy(&bits, &handle, sizeof bits);
    session_ = sessionOfHandle(bits);
    return *this;
  }
  Session* session() const { return session_ != nullptr ? session_ : currentSession(); }

 private:
  bool open() const { return session_ == nullptr && severalSessions(); }
  void toDevice(CUdevice device);

  Session* session_ = nullptr;
};

}  // namespace olpager::forward
