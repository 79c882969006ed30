// olbench transport: what the transports move and how fast they answer, beside raw sockets and
// memcpy in the same run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace olpager::tools::bench {

struct TransportOptions {
  unsigned lanes = 4;
  unsigned io_threads = 0;  // of each side; 0: what the transport chooses
  unsigned rounds = 5;
  double seconds = 0.5;  // of each timed part
  bool shaped = true;    // also over a veth pair shaped to 1 Gbit/s
  bool encrypted = false;
  std::string verbs;     // only RDMA, by the card with this address, to itself
  uint32_t spin_us = 0;  // before a thread that waits sleeps; 0: as the transport does
};

/// Bytes a second of raw sockets over loopback (congestion control as the transport's there), one
/// side only sends, the other only receives; and of one thread's memcpy. Limits to compare with. To
/// be called while this process has one thread.
double rawSocketRate(unsigned connections, double seconds);
double memcpyRate(double seconds);

nlohmann::json measureTransport(const TransportOptions& options);
void printTransport(const nlohmann::json& result);

}  // namespace olpager::tools::bench
