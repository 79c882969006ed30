// The client's records of one session's objects, beside the connection itself (session.h). Made
// with the session, never destroyed. Thread-safety: any thread; each part has locks of its own
// (locks.h).
#pragma once

#include <memory>
#include <mutex>

#include "interpose/forward/captures.h"
#include "interpose/forward/stand_ins.h"
#include "interpose/forward/user_objects.h"

namespace olpager::forward {

class DriverMemory;
class SessionContexts;
struct AllocatingGraphs;
struct AllocationBook;
struct FailureCounts;
struct Linkers;
struct NodeFunctions;
struct StandInTable;
struct StreamIndex;
struct ToldNodes;
struct Trips;
struct Variables;

/// State that ends when the session is lost: the worker would have to tell of it, or to be told.
struct WhileThere {
  UserObjects user_objects;
  Captures captures;
  StandIns launched;  // what launches under way use; under StandInTable::mutex
};

struct SessionParts {
  explicit SessionParts(Session& session);
  ~SessionParts();
  SessionParts(const SessionParts&) = delete;
  SessionParts& operator=(const SessionParts&) = delete;

  const std::unique_ptr<SessionContexts> contexts;            // session_contexts.h
  const std::unique_ptr<FailureCounts> failures;              // context_failures.h
  const std::unique_ptr<StreamIndex> streams;                 // streams.h
  const std::unique_ptr<AllocationBook> book;                 // allocation_book.h
  const std::unique_ptr<DriverMemory> driver_memory;          // driver_memory.h
  const std::unique_ptr<Variables> variables;                 // variables.h
  const std::unique_ptr<StandInTable> stand_ins;              // stand_in_table.h
  const std::unique_ptr<AllocatingGraphs> allocating_graphs;  // captures.h
  const std::unique_ptr<NodeFunctions> node_functions;        // graph_nodes.h
  const std::unique_ptr<ToldNodes> told_nodes;                // node_calls.h
  const std::unique_ptr<Linkers> linkers;                     // links.h
  const std::unique_ptr<Trips> trips;                         // trips.h

  /// After the loss it is another one, in which nothing stays: no call succeeds any more.
  std::shared_ptr<WhileThere> whileThere() const;
  void lost();

 private:
  mutable std::mutex mutex_;  // a leaf
  std::shared_ptr<WhileThere> while_there_;
};

}  // namespace olpager::forward
