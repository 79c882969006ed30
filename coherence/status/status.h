// A daemon's status as others may ask for it (olpagestat --node, olmemserver --state, olgpunode
// --state, NVML of forwarded programs): its tiers of memory, its devices, its figures, its users'
// shares. One question for every kind of daemon, over the ordinary connection: who may ask is who
// may connect.
//
// A message begins with kMagic, so that a daemon tells it from those of its own protocol. decode
// checks everything before it uses it (coherence/codec.h). Thread-safety: pure functions. Bytes are
// bytes, times milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace olpager::status {

inline constexpr uint32_t kMagic = 0x54534c4f;  // "OLST" on the wire
inline constexpr uint16_t kVersion = 2;
inline constexpr size_t kMaxTiers = 32;
inline constexpr size_t kMaxFigures = 96;
inline constexpr size_t kMaxDevices = 16;
inline constexpr size_t kMaxRows = 16;            // in one message
inline constexpr size_t kMaxSessions = 64 << 10;  // in all messages together
inline constexpr size_t kMaxMessageBytes = 60 << 10;

/// A kind of memory that the node has. Bytes neither used nor free are on their way between the
/// two.
struct Tier {
  std::string name;  // "RAM", "VRAM 0"
  uint64_t total = 0, used = 0, free = 0;
  bool operator==(const Tier&) const = default;
};

inline constexpr uint32_t kUnknown =
    UINT32_MAX;  // a figure of a device that the daemon can't ask for

/// A GPU of a gpunode. The tier of device i is "VRAM i".
struct Device {
  std::string name, uuid;  // "GPU-01234567-89ab-...", as the driver tells it
  uint32_t pci_domain = 0, pci_bus = 0, pci_device = 0;
  uint32_t pci_id = 0,
           pci_subsystem = 0;  // device in the upper half, vendor in the lower; 0 unknown
  uint32_t minor = kUnknown;   // of /dev/nvidiaN
  uint32_t compute_major = 0, compute_minor = 0;
  uint32_t multiprocessors = 0;
  uint64_t peers = 0;  // a bit for each device whose memory it can reach
  uint64_t total = 0, used = 0, free = 0;
  uint32_t gpu_percent = kUnknown, memory_percent = kUnknown;  // utilisation
  uint32_t temperature = kUnknown;                             // Celsius
  uint32_t power_mw = kUnknown, power_limit_mw = kUnknown;
  uint32_t sm_mhz = kUnknown, memory_mhz = kUnknown;
  bool operator==(const Device&) const = default;
};

/// As at /metrics, without the daemon's name before it: "lent_bytes",
/// `links_total{transport="tcp"}`. A name that ends with _total, before labels, only grows: two
/// answers give a rate.
struct Figure {
  std::string name;
  uint64_t value = 0;
  bool operator==(const Figure&) const = default;
};

/// Somebody who is connected, or has something there.
struct Session {
  uint64_t number = 0;  // counted from 1; never used twice by one start of the daemon
  std::string key_name, node, program, address, transport;
  std::vector<uint64_t> bytes;  // that it has, by tier
  uint64_t pieces = 0;          // leases, allocations
  uint64_t recalled = 0;        // bytes wanted back from it
  uint64_t moved = 0;  // bytes that the daemon has moved for it so far; by shared memory it moves
                       // most of them itself
  std::vector<uint64_t> budgets;  // the most that it may have, by tier; empty: what there is
  uint64_t calls = 0;             // that the daemon has made for it so far
  uint32_t process = 0;           // its number at its node; 0 unknown
  std::string state;              // in words, where there is more to say than the three below
  uint32_t connected = 0;         // 1: it is
  uint32_t heard_ms = 0;          // since it was last heard of
  uint32_t left_ms = 0;           // not connected: until its memory is taken
  bool operator==(const Session&) const = default;
};

struct Status {
  std::string kind;  // "memserver", "gpunode"
  uint64_t uptime_ms = 0;
  uint32_t serving = 0;        // 1: it takes new work; 0: it is ending
  uint64_t session_count = 0;  // also those that the asker may not see
  std::string driver;  // version of the GPU's driver; "" where there is none, or it does not say
  uint32_t cuda_version = 0;  // that it offers, as cuDriverGetVersion says it
  std::vector<Device> devices;
  std::vector<Tier> tiers;
  std::vector<Figure> figures;
  std::vector<Session> sessions;
  uint64_t next = 0;  // in a message: ask on from here; 0: that was all
  bool operator==(const Status&) const = default;

  /// 0 where there is none of that name.
  uint64_t figure(std::string_view name) const;
};

/// "Tell me, of the sessions those from `first` on."
struct Question {
  uint64_t number = 0;  // comes back with the answer
  uint64_t first = 0;
  bool operator==(const Question&) const = default;
};
struct Answer {
  uint64_t number = 0;
  Status status;
  bool operator==(const Answer&) const = default;
};

/// By its first bytes.
bool isQuestion(std::span<const std::byte> bytes);
std::vector<std::byte> encode(const Question& question);
std::vector<std::byte> encode(const Answer& answer);
Result<Question> decodeQuestion(std::span<const std::byte> bytes);
Result<Answer> decodeAnswer(std::span<const std::byte> bytes);

}  // namespace olpager::status
