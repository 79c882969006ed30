// Daemons asked over the network (--node): what they answer, and what follows from two answers.
// The answer says what a daemon is: tiers, figures, sessions are shown for any kind.
//
// Thread-safety: one thread. Only NodeSource touches the network.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/status/ask.h"
#include "tools/olpagestat/terminal.h"

namespace olpager::tools {

struct NodeSample {
  double seconds = 0;   // CLOCK_MONOTONIC
  std::string address;  // as asked for
  std::optional<status::Told> told;
  std::string error;  // one line: why nothing was told
};

struct NodeOptions {
  std::vector<std::string> addresses;
  std::string key;  // file; "": that of the settings (OL_KEY, olpager.toml)
  std::string tls;  // "": that of the settings
};

class NodeSource {
 public:
  /// `answer_ms`: how long a daemon may take, to be reached and for each answer.
  static Result<NodeSource> make(const NodeOptions& options, uint32_t answer_ms);
  /// All of them, in their order. Those that can't be asked say why.
  std::vector<NodeSample> ask();

 private:
  struct Node {
    std::string address;
    std::unique_ptr<status::Asker> asker;
  };
  std::vector<Node> nodes_;
};

/// Bytes a second that the daemon moved, of a session or of all, between two answers; absent where
/// that is not known.
std::optional<double> movedRate(const NodeSample& now, const NodeSample* before,
                                const status::Session* session);

/// Calls a second that a gpunode made for a session, between two answers; absent where that is not
/// known.
std::optional<double> callRate(const NodeSample& now, const NodeSample* before,
                               const status::Session& session);

/// One node as tables. Without an answer: "".
std::string nodeTable(const NodeSample& now, const NodeSample* before);
/// One node in at most `most` lines of the live screen.
std::vector<Line> nodeScreen(const NodeSample& now, const NodeSample* before, size_t most);
std::string nodesJson(const std::vector<NodeSample>& nodes);
std::string nodeWatchHead();
std::string nodeWatchLine(const NodeSample& now, const NodeSample* before);

}  // namespace olpager::tools
