// Options of an endpoint: transports, amounts at once, timeouts, limits for peers. Plain data;
// everything has a default that works. Times are milliseconds, sizes bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/settings.h"

namespace olpager::transport {

class KeyRing;

inline constexpr uint32_t kMostRails = base::kMostRails;

using Choice = base::TransportSetting;
using Tls = base::TlsSetting;

/// Versions of all that travels between two ends, above the layout of frames: messages of every
/// layer. Two ends speak the newest that both know (Link::peer().version). A change of any
/// message raises `newest`; `oldest` rises when what an older end says is no longer understood.
struct Versions {
  uint8_t oldest = 5;
  uint8_t newest = 5;
};

/// Bounds on what a peer can make this process hold or do. Crossing one ends the link (or the
/// attempt at one).
struct Limits {
  uint32_t links = 1024;  // accepted and up or on their way
  uint32_t handshakes =
      64;  // at the same time, of links; each with a connection more for each lane
  uint32_t handshakes_per_second = 1024;  // of links that begin; a quarter of them from one address
  uint32_t handshake_ms = 5000;           // to a greeting (first bytes: 1000), and again to a link
  uint32_t message_bytes = 64 << 10;      // the longest message
  uint32_t slices =
      4096;  // of reads and writes that a peer has asked for and that are not answered
  uint64_t unread_bytes = 64 << 20;  // that wait for peers with one key that do not read (unread.h)
};

struct Options {
  Choice choice = Choice::kAuto;
  std::string node;  // what peers call this one in their log; "" is "pid@host"
  std::string
      release;        // of the program (base/version.h): for the line that refuses unlike versions
  Versions versions;  // another range than this build's is for tests

  // Speed.
  uint32_t lanes = 4;  // connections for bulk, beside the one for messages; 1 to 16
  /// Numeric addresses of this host's RDMA cards, kMostRails at most, the first of them connected
  /// to the first of the peer's, and so on. If an end has none, a link has one rail: the card at
  /// its connection's address.
  std::vector<std::string> rails;
  uint32_t io_threads = 0;  // of the endpoint, shared by its links; 0: by the number of processors
  uint32_t slice_bytes =
      256 << 10;  // at most this much of prefetch and write-back is in a demand's way
  uint32_t demand_window = 16 << 20;  // asked for and not yet here
  uint32_t prefetch_window =
      16
      << 20;  // at most: it adapts, so that little waits somewhere on the path (core/scheduler.h)
  uint32_t write_window = 16 << 20;
  uint32_t operations = 1024;  // outstanding reads and writes of one link
  uint32_t requests = 256;     // messages of the class that the peer may send before one is taken
  uint32_t notices = 256;
  uint32_t stream = 256;
  uint32_t spin_us = 20;  // at most, before a thread that waits goes to sleep; adapts down to none

  // Life and death.
  uint32_t connect_ms = 5000;      // for connect() as a whole
  uint32_t connect_answer_ms = 0;  // for each answer of the peer's in it; 0: as long as that
  uint32_t ping_ms = 1000;         // silence before a ping
  uint32_t silent_ms =
      10000;  // a peer that answers nothing for so long is lost; 0: a stopped peer is kept
  uint32_t dead_ms = 15000;  // a host that acknowledges nothing for so long is lost (tcp)

  // Trust.
  std::shared_ptr<const KeyRing> keys;  // none: loopback and the own user's Unix sockets only
  Tls tls = Tls::kAll;
  Limits limits;
};

}  // namespace olpager::transport
