// How a client gets a session: one message to the supervisor, one back, over a link whose key is
// proved. A client that only wants to know the gpunode's devices and users asks for its status
// (coherence/status) over such a link.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

#include "base/settings.h"
#include "coherence/transport/options.h"
#include "forwarding/wire/driver_environment.h"

namespace olpager::forward {

inline constexpr uint32_t kMostSlots = 16;
inline constexpr uint32_t kSessionMagic = 0x73504c4f;  // "OLPs"
inline constexpr uint32_t kSessionVersion = 19;

enum class SessionAsk : uint32_t {
  kOpen = 1,
  kWhatBecameOf = 2,
  kWouldOpen = 3,  // as kOpen, but nothing is opened: refused, or `text` says how many sessions and
                   // which GPUs there are
};

struct SessionRequest {
  uint32_t magic = kSessionMagic;
  uint32_t version = kSessionVersion;
  SessionAsk ask = SessionAsk::kOpen;
  uint32_t process = 0;        // kOpen: the client's, for lists
  uint64_t specification = 0;  // kOpen, kWouldOpen
  uint64_t session = 0;        // kWhatBecameOf
  char program[40] = {};       // kOpen: printable, NUL-terminated
  uint32_t sees_some =
      0;  // kOpen: `visible` is the program's CUDA_VISIBLE_DEVICES; else it sees all devices
  char visible[508] = {};  // NUL-terminated
  base::ExportableSetting exportable =
      base::ExportableSetting::kUnset;  // kOpen: whose memory is that the program creates as
                                        // exportable (OL_EXPORTABLE)
  uint8_t unified = 0;                  // kOpen: 1: what the client makes means the same in all of
                                        // the program's sessions (kCommonSlot), and so do primary
                                        // contexts
  uint8_t beside = 0;  // kOpen: how many other sessions the program opens at this gpunode, which
                       // get as much of its RAM
  uint8_t reserved[5] = {};
  uint32_t slot = 0;         // kOpen: which of the program's sessions it is, below `slots`
  uint32_t slots = 1;        // kOpen: how many the program has, at most kMostSlots
  uint64_t processes = 0;    // kOpen: the name space that `process` is a number of
                             // (base::processNamespace); 0: unknown
  DriverEnvironment driver;  // kOpen
};
static_assert(sizeof(SessionRequest) == 616);

struct SessionReply {
  uint32_t magic = kSessionMagic;
  uint32_t refused = 0;  // 1: `text` says why; kWhatBecameOf: what became of it
  uint64_t session = 0;  // also the route to its worker, at the address that the client knows
  uint32_t reserved = 0;
  uint32_t grace_ms = 0;  // for which the client tries to connect again
  uint8_t key[32] = {};   // the session's
  char text[192] = {};
};
static_assert(sizeof(SessionReply) == 248);

/// GPUs of two machines may have one PCI address: to a program with several gpunodes the domain
/// says which one's they are.
constexpr uint32_t pciDomainOf(unsigned slot, uint32_t domain) {
  return (domain + slot * 0x1000) & 0xffff;
}

/// The name of every session's key.
inline constexpr char kSessionKeyName[] = "session";

/// A connection may be lost at one end alone. The end that notices late has not noticed for
/// `silentMs`, and the worker keeps the session for longer than both together: whatever the client
/// tries within its grace time finds it.
constexpr uint32_t silentMs(uint32_t grace_ms) { return std::clamp(grace_ms / 3, 500u, 10'000u); }
constexpr uint32_t workerGraceMs(uint32_t grace_ms) { return grace_ms + silentMs(grace_ms) + 1000; }

/// Threads that wait for an answer, and a worker that waits for calls, stay awake this long
/// (microseconds) before they sleep: a short kernel and its synchronisation take 10 to 20, and to
/// be woken about
/// 5. Less where there are few processors.
inline uint32_t awakeMicroseconds() { return std::thread::hardware_concurrency() >= 8 ? 100 : 20; }

/// Connections of a session's link, and threads for them: a thread copies 3 to 6 GB/s, so bulk
/// copies take several where there are processors. Unlike a pager's link it carries nothing that
/// could be in the way of something more urgent.
inline void setLanes(transport::Options& options) {
  constexpr uint32_t kMost = 8;
  options.io_threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMost);
  options.lanes = std::max(options.lanes, options.io_threads);
}

}  // namespace olpager::forward
