#include "interpose/forward/session_parts.h"

#include <utility>

#include "interpose/forward/allocation_book.h"
#include "interpose/forward/context_failures.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/graph_nodes.h"
#include "interpose/forward/links.h"
#include "interpose/forward/node_calls.h"
#include "interpose/forward/session_contexts.h"
#include "interpose/forward/stand_in_table.h"
#include "interpose/forward/streams.h"
#include "interpose/forward/trips.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {

SessionParts::SessionParts(Session& session)
    : contexts(std::make_unique<SessionContexts>(session)),
      failures(std::make_unique<FailureCounts>()),
      streams(std::make_unique<StreamIndex>()),
      book(std::make_unique<AllocationBook>()),
      driver_memory(std::make_unique<DriverMemory>()),
      variables(std::make_unique<Variables>()),
      stand_ins(std::make_unique<StandInTable>()),
      allocating_graphs(std::make_unique<AllocatingGraphs>()),
      node_functions(std::make_unique<NodeFunctions>()),
      told_nodes(std::make_unique<ToldNodes>()),
      linkers(std::make_unique<Linkers>()),
      trips(std::make_unique<Trips>()),
      while_there_(std::make_shared<WhileThere>()) {}

SessionParts::~SessionParts() = default;

std::shared_ptr<WhileThere> SessionParts::whileThere() const {
  std::lock_guard lock(mutex_);
  return while_there_;
}

void SessionParts::lost() {
  auto other = std::make_shared<WhileThere>();  // what there was ends as this, without the lock
  std::lock_guard lock(mutex_);
  while_there_.swap(other);
}

}  // namespace olpager::forward
