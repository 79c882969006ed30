// The protocol between sessions and memservers, as messages of the transport. Bytes of pages are
// not in it: they are read and written one-sided, by the keys that kLeaseReply and kAttachReply
// give.
//
// A message is a head (version, type, number) and the fields of its type, little-endian, one after
// the other; texts and lists with their length before them. decode() checks everything before it
// uses it: a message of another version, of an unknown type, too short, too long, or with a length
// beyond the limits below is an Error. Nothing else looks at the bytes.
//
// Requests (MessageClass::kRequest) are answered once, by the reply with the same number (kReply);
// notices (kNotice) are not. A session's first request is kHello; after a lost connection kAttach
// names the leases that it holds. A session that knows a lease's id, over a connection with the
// same key's name, is its holder.
//
// A memserver's status is asked for over the same connection, by coherence/status/status.h.
//
// Thread-safety: pure functions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "coherence/codec.h"

namespace olpager::memserver {

/// Random, given by the memserver. A lease that it does not know any more is gone for good.
struct LeaseId {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const LeaseId&) const = default;
  std::string text() const;  // its first 8 digits: enough for a log, too little to take it over
};

namespace protocol {

inline constexpr uint16_t kVersion = 2;
inline constexpr size_t kMaxText = codec::kMaxText;
inline constexpr size_t kMaxLeases = 256;  // in one message
inline constexpr size_t kMaxMessageBytes =
    32 << 10;  // the longest that encode() makes: below the transport's default
inline constexpr size_t kMaxRequestBytes = 8 << 10;  // and of what a session says

/// A slab of a lease, on the connection over which it is told.
struct LeasedSlab {
  LeaseId lease;
  uint64_t bytes = 0;
  uint64_t key =
      0;  // of a transport::RemoteKey of `bytes` bytes, to read and write; 0 (kAttachReply): gone
  bool operator==(const LeasedSlab&) const = default;
};

/// A memserver's capacity, told in several replies.
struct Capacity {
  uint64_t total = 0;
  uint64_t free = 0;
  uint64_t available = 0;  // to this session
  uint64_t recalled = 0;   // wanted back from this session
  uint32_t deadline_ms = 0;
  bool operator==(const Capacity&) const = default;
};

struct Hello {
  std::string label;
  bool operator==(const Hello&) const = default;
};
struct HelloReply {
  LeaseId instance;  // of this start of the memserver
  uint32_t lease_ms = 0;
  uint64_t slab_bytes = 0;
  Capacity capacity;
  bool operator==(const HelloReply&) const = default;
};

/// At most kMaxLeases slabs are given at once: ask again for the rest.
struct Lease {
  uint64_t bytes = 0;
  bool operator==(const Lease&) const = default;
};
struct LeaseReply {
  std::vector<LeasedSlab> slabs;
  std::string why;  // none, or fewer than asked for: the reason
  Capacity capacity;
  bool operator==(const LeaseReply&) const = default;
};

/// The sender holds these leases: it wants their keys for this connection.
struct Attach {
  std::vector<LeaseId> leases;
  bool operator==(const Attach&) const = default;
};
struct AttachReply {
  std::vector<LeasedSlab> slabs;  // one for each lease asked for, in its order
  bool operator==(const AttachReply&) const = default;
};

struct Renew {
  bool operator==(const Renew&) const = default;
};
struct RenewReply {
  Capacity capacity;
  bool operator==(const RenewReply&) const = default;
};

struct Release {
  std::vector<LeaseId> leases;
  bool operator==(const Release&) const = default;
};
struct ReleaseReply {
  Capacity capacity;
  bool operator==(const ReleaseReply&) const = default;
};

/// A request that can't be answered as asked: one line.
struct Refusal {
  std::string why;
  bool operator==(const Refusal&) const = default;
};

/// Notices of the memserver.
struct Recall {
  uint64_t bytes = 0;
  uint32_t deadline_ms = 0;
  std::string why;
  bool operator==(const Recall&) const = default;
};
struct Revoked {
  std::vector<LeaseId> leases;
  std::string why;
  bool operator==(const Revoked&) const = default;
};
/// Notice of the session: it ends; everything of it can be freed at once. Notice of the memserver:
/// it ends; everything that the session has there is gone.
struct Goodbye {
  bool operator==(const Goodbye&) const = default;
};

using Body = std::variant<Hello, HelloReply, Lease, LeaseReply, Attach, AttachReply, Renew,
                          RenewReply, Release, ReleaseReply, Refusal, Recall, Revoked, Goodbye>;

struct Message {
  uint64_t number = 0;  // of the request; in its reply the same
  Body body;
  bool operator==(const Message&) const = default;
};

/// Texts are cut at kMaxText; lists have to be within the limits.
std::vector<std::byte> encode(const Message& message);
Result<Message> decode(std::span<const std::byte> bytes);
const char* bodyName(const Body& body);
/// True if it is a session's kRenew: without the rest of decode().
bool isRenewal(std::span<const std::byte> bytes);

}  // namespace protocol
}  // namespace olpager::memserver
