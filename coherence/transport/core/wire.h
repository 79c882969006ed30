// The format on every transport: frames with one fixed header, little-endian, the payload behind
// it. The receiver checks each field before it uses it; a frame that breaks a rule ends the link
// with a reason. tcp carries kData and kPush on the lanes and everything else on the first
// connection; shm carries all but page bytes in rings.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "coherence/transport/transport.h"

namespace olpager::transport::wire {

static_assert(std::endian::native == std::endian::little,
              "wire structures are little-endian in memory");

/// The layout of Header, Preamble and Hello: the same for every version in Options::versions, so
/// that two ends can always read each other's first words.
inline constexpr uint8_t kFormat = 5;

enum class Frame : uint8_t {
  kHello = 1,  // the first in each direction; payload Hello
  kReady,      // acceptor: the link is up
  kPull,       // reader: send me `bytes` at (key, offset) as slice (operation, index)
  kData,       // answer to kPull; payload the bytes
  kPush,       // writer: slice (operation, index) for (key, offset); payload the bytes
  kAck,        // answer to kPush, or to what shm copied by itself: the bytes are in place
  kRefuse,     // answer to kPull or kPush; code: an Outcome
  kMessage,    // klass: a MessageClass; payload the message
  kCredit,     // klass: a MessageClass; code: how many messages were taken
  kPing,       // answered by kPong
  kPong,
  kGoodbye,      // the last; payload one line for the log
  kMap,          // shm: may I map (key)?
  kMapped,       // shm: answer; code 1: the memfd is on the socket, 0: it can't be mapped
  kBouncePull,   // shm: copy `bytes` at (key, offset) to bounce slot `code`, as slice (operation,
                 // index)
  kBouncePush,   // shm: the same towards (key, offset)
  kUnmap,        // shm, verbs: (key) was taken back; may cross kMap and kReach
  kReach,        // verbs: how does the card of rail `index` reach (key)?
  kReached,      // verbs: answer, for rail `index`; payload Reach, or none and code: the Outcome
                 // kRevoked or kUnreachable
  kRailEnded,    // verbs: the queue pairs of rail `index` are gone here, so that nothing arrives by
                 // them any more; `offset`: how many bytes of messages have
  kMessageRest,  // verbs: payload: bytes of messages that a rail which ended did not carry any more
};

struct Header {  // the frame's kind is its first byte
  Frame frame = Frame::kGoodbye;
  uint8_t format = kFormat;
  uint8_t klass = 0;
  uint8_t zero = 0;
  uint32_t length = 0;  // of the payload
  uint64_t operation = 0;
  uint32_t index = 0;
  uint32_t code = 0;
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 48 && std::is_trivially_copyable_v<Header>);

inline constexpr uint32_t kMaxGoodbye = 256;
/// Codes of a kGoodbye that refuses a link. kUnlikeVersions: no version in common. kLater: whoever
/// comes again may be taken. Else 0.
inline constexpr uint32_t kUnlikeVersions = 1;
inline constexpr uint32_t kLater = 2;
inline constexpr uint32_t kMaxSlice = 1 << 20;  // longest payload of kData and kPush
inline constexpr uint32_t kMinSlice = 64 << 10;
inline constexpr uint32_t kMaxLanes = 16;
inline constexpr uint32_t kMaxMessage = 1 << 20;
inline constexpr uint32_t kMaxRoom = 1 << 16;  // messages of a class

/// The address at which a rail's queue pairs are connected.
struct RailAddress {
  uint8_t address[16] = {};  // IPv6, or IPv4 within it; zeros: that of the link's first connection
  uint16_t port = 0;         // 0: nobody listens there
  uint16_t zero = 0;
};
static_assert(sizeof(RailAddress) == 20);

/// The first bytes of every connection, in the clear: what it wants to be, which versions its end
/// speaks, and whom it is for. An end without a version in common ends here.
struct Preamble {
  static constexpr uint32_t kMagic = 0x4f4c5031;  // "1PLO"
  enum class Kind : uint8_t { kPlainLink = 1, kTlsLink, kLane };
  uint32_t magic = kMagic;
  uint8_t oldest = kFormat;  // version that this end speaks
  Kind kind = Kind::kPlainLink;
  uint8_t newest = 0;  // and the newest; 0: `oldest` alone
  uint8_t zero = 0;
  uint64_t route = 0;  // 0: for who listens
};
static_assert(sizeof(Preamble) == 16 && std::is_trivially_copyable_v<Preamble>);

/// Both ends' first frame on a link's first connection: who I am, what I can take. Text is padded
/// with zeros.
struct Hello {
  uint8_t version = kFormat;  // connector: Preamble::oldest; acceptor: the one that both speak
  uint8_t tls = 0;            // Tls: wanted; the stricter one holds
  uint8_t kinds =
      0;  // Kinds (core/choose.h): what can be (connector), the one that it will be (acceptor)
  uint8_t lanes = 0;           // wanted (connector), granted (acceptor)
  uint32_t message_bytes = 0;  // longest that I take
  uint32_t slices = 0;         // most that I answer at once
  uint32_t requests = 0;       // room for messages
  uint32_t notices = 0;
  uint32_t stream = 0;
  uint32_t uid = 0;
  uint8_t rails = 0;   // verbs: how many it has of its own (connector), how many the link may have
                       // (acceptor)
  uint8_t newest = 0;  // connector: as in the preamble, and inside TLS nobody can have changed it;
                       // acceptor: the newest that it speaks
  uint8_t zero[2] = {};
  RailAddress rail[kMostRails] = {};  // acceptor, verbs
  uint8_t link_id[16] = {};           // acceptor: the new link's
  uint8_t replaces[16] = {};          // connector: the link that it takes the place of
  uint8_t secret[32] = {};            // acceptor, without TLS: what tickets are MACed with
  char boot_id[40] = {};
  char node[64] = {};
  char unix_path[104] = {};  // acceptor: where shm links are made; "" nowhere
};
static_assert(sizeof(Hello) == 384 && std::is_trivially_copyable_v<Hello>);

/// How a card reaches a region of the peer's.
struct Reach {
  uint64_t address = 0;  // of its first byte
  uint64_t length = 0;
  uint64_t flush_address =
      0;  // of 8 bytes that may be read, behind writes to memory that may not be
  uint32_t rkeys[kClasses] = {};  // for each class's queue pair
  uint32_t access = 0;
  uint32_t flush_rkey = 0;
};
static_assert(sizeof(Reach) == 48 && std::is_trivially_copyable_v<Reach>);

/// Opens each further connection of a link: proves that it comes from the link's own connector.
/// Used once.
struct Ticket {
  uint8_t link_id[16] = {};
  uint32_t index = 0;  // of the lane
  uint32_t rails = 0;  // verbs: bits of those that are connected, 0 otherwise
  uint8_t nonce[16] = {};
  uint8_t mac[32] = {};  // HMAC-SHA256 over what is before it
};
static_assert(sizeof(Ticket) == 72);

/// The acceptor's answer: proves that it is the link's own acceptor.
struct TicketReply {
  uint8_t mac[32] = {};  // HMAC-SHA256 over "reply" and the ticket
};
static_assert(sizeof(TicketReply) == 32);

}  // namespace olpager::transport::wire
