// A program's links: what crossed each, and the rails of those over verbs. For tables, the screen,
// JSON and metrics. Pure functions of a copy of the counters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pager/counters/counters.h"

namespace olpager::tools {

/// A link as it is shown. One to a memserver carries pages alone: its figures are what the pager
/// has sent and received.
struct LinkFigures {
  size_t number = 0;  // among those of its kind
  std::string peer;
  std::string to;         // "memserver", "gpunode", "program" (a worker's), "worker" (another's)
  std::string transport;  // "tcp", "shm", "verbs"; "": it is not up, or nobody knows
  uint64_t sent = 0, received = 0;
  /// The part of `sent` and `received` that is exchanged pinned memory. Only for a gpunode's link.
  uint64_t pinned_sent = 0, pinned_received = 0;
  struct Rail {
    std::string device;
    uint64_t port = 0;
    bool in_use = true;  // else set aside
    uint64_t bytes = 0;
  };
  std::vector<Rail> rails;
};
/// Those that have carried something, or have rails: to memservers first, in the order of the
/// setting.
std::vector<LinkFigures> linksOf(const pager::Counters& counters);

/// A line for each link but those to memservers: "127.0.0.1:7071 (gpunode, tcp): 12MiB sent, 4MiB
/// received".
std::vector<std::string> linkLines(const pager::Counters& counters);
/// Lines of a program's table; "" where it has no link.
std::string linksTable(const pager::Counters& counters);
/// True if its GPU work goes to gpunodes.
bool isForwarded(const pager::Counters& counters);

/// A line for each link over verbs to a memserver: its peer, and what each rail has moved since the
/// link came about: "10.0.0.2:7001: mlx5_0 port 1 in use 12GiB, mlx5_1 port 1 set aside 3MiB".
std::vector<std::string> railLines(const pager::RdmaCounters& rdma);
/// Lines of a program's table; "" where it has no link over verbs, and had none.
std::string railsTable(const pager::RdmaCounters& rdma);
/// The links, an array of objects.
nlohmann::ordered_json linksJson(const pager::Counters& counters);

}  // namespace olpager::tools
