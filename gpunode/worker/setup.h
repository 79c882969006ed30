// Messages between a supervisor and a worker that it has started, over the socket that the worker
// inherits as descriptor kSetupFd: one message of the supervisor's first, one answer, then reports
// and questions from the worker and orders from the supervisor as long as both live. Settings of
// the driver and of the pager come by the environment. Both are of one build: no version is needed.
// By a second one, kConnectionsFd, the supervisor's listener hands over the connections that
// clients make to the worker (transport::Routes).
#pragma once

#include <cstdint>

namespace olpager::gpunode {

inline constexpr int kSetupFd = 3;
inline constexpr int kConnectionsFd = 4;
inline constexpr uint32_t kMostDevices = 16;  // further ones are not reported
inline constexpr uint32_t kReportMs = 500;

inline constexpr uint32_t kNoLink = UINT32_MAX;

enum class WorkerTask : uint32_t {
  kSession = 1,   // answered by WorkerReady, then a WorkerReport each kReportMs
  kDescribe = 2,  // answered by NodeDescription; the worker ends
};

struct WorkerSetup {
  WorkerTask task = WorkerTask::kSession;
  uint32_t grace_ms = 0;   // without a link
  int32_t supervisor = 0;  // its process; launchWorker() says which
  uint64_t session = 0;
  uint8_t key[32] = {};  // the session's
  uint8_t key_group[32] =
      {};                  // what the sessions of one key have in common (gpunode/worker/exports.h)
  uint32_t transport = 0;  // transport::Choice
  uint32_t tls = 0;        // transport::Tls
  char rails[192] = {};    // transport::Options::rails, with commas between; "none"
  uint64_t pinned_bytes = 0;  // the most that the client may have of pinned memory
  uint64_t host_bytes = 0;    // the host tier's limit that it begins with
  uint64_t cache_bytes = 0;   // the most of the modules' folder
  uint32_t confined = 1;      // gpunode/worker/confine.h
  uint32_t slot = 0;          // which of the program's sessions it is
  uint32_t slots = 1;         // how many it has
  uint32_t handle_slot = 0;   // in the numbers of primary contexts
  uint32_t straight = 0;      // links to the workers of the program's other sessions
  char program[64] = {};      // the client's, as it calls itself
  char library[512] = {};     // kSession: libolpager.so; kDescribe: the driver
  char cache[512] = {};       // the folder of this key's modules; "": none
};

struct WorkerReady {
  uint32_t failed = 0;  // 1: `text` says why
  char text[252] = {};
};

struct WorkerReport {
  uint64_t calls = 0;   // made so far
  uint64_t moved = 0;   // bytes of calls and answers so far
  uint64_t pinned = 0;  // bytes of pinned memory
  uint64_t host = 0;    // bytes of the host tier
  uint64_t host_limit =
      0;  // of them: what was ordered, or more where less would leave pages without a place
  uint32_t device_count = 0;
  uint32_t link = kNoLink;  // to the client: transport::LinkKind
  struct Device {
    uint64_t allocated, budget, resident;
  } devices[kMostDevices] = {};
};

/// Asks for a connection to another worker's socket (named_sockets.h). Answered by
/// Order::kConnection.
struct ConnectionWanted {
  uint64_t number = 0;  // of the question
  char name[64] = {};
};
static_assert(sizeof(ConnectionWanted) != sizeof(WorkerReport));  // that tells which one it is

enum class Order : uint32_t {
  kVramBudget = 1,
  kHostLimit,     // answered by a report at once
  kClientIsDead,  // its process has ended: without a link nobody will come back
  kEnd,           // the gpunode ends: the client is told
  kConnection,    // that was asked for comes with it; none: it can't be made
};

struct WorkerOrder {
  Order order = Order::kVramBudget;
  int32_t device = 0;  // kVramBudget: the worker's
  uint64_t bytes = 0;  // kVramBudget, kHostLimit; kConnection: the question's number
};

struct DeviceDescription {
  char name[96];
  uint8_t uuid[16];
  int32_t pci_domain, pci_bus, pci_device;
  int32_t compute_major, compute_minor, multiprocessors;
  uint64_t total;
  uint64_t peers;  // a bit for each device whose memory it can reach
};
struct NodeDescription {
  // Why there are no devices, in `text`: for now, or for as long as the file is what it is.
  enum class Failure : uint32_t { kNone, kNow, kNoDriver };
  Failure failed = Failure::kNone;
  int32_t cuda_version = 0;
  uint32_t device_count = 0;
  uint32_t reserved = 0;
  char text[240] = {};
  DeviceDescription devices[kMostDevices] = {};
};

}  // namespace olpager::gpunode
