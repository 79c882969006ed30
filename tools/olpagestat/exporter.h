// Figures of a whole node for Prometheus (--prometheus): its programs' counters, and what daemons
// say that are asked for it. Names: docs/reference/metrics.md.
//
// Writers of counters, and daemons, may lie: names become text of a label, figures stay what they
// are, and of programs and daemons' figures no more than so many are told. As root it tells of all
// users' programs. The exporter reads each user's files as that user, so that nothing a user puts
// in a folder leads anywhere where that user could not go.
//
// Thread-safety: exporterText() is a pure function. runExporter() has its thread for the daemons
// and the endpoint's for clients.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coherence/status/metrics.h"
#include "tools/olpagestat/node.h"
#include "tools/olpagestat/sample.h"

namespace olpager::tools {

/// Programs of one user.
struct UsersPrograms {
  std::string user;
  pager::CountersReading reading;
};

/// All that is told, in the text format 0.0.4.
std::string exporterText(const std::vector<UsersPrograms>& users,
                         const std::vector<NodeSample>& nodes);

/// The programs of this user, or as root of all users. `programs`: its folders, where any are
/// named.
std::vector<UsersPrograms> readAllUsers(const Programs& programs);

struct ExporterOptions {
  status::MetricsOptions endpoint;
  NodeOptions nodes;  // daemons that are asked
  Programs programs;
  double duration = 0;  // seconds; 0: until a signal
};
/// Until SIGINT or SIGTERM. The exit status. Called while there is one thread.
int runExporter(const ExporterOptions& options);

}  // namespace olpager::tools
