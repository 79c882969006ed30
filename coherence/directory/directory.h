// The home's side of the ownership protocol: for each extent its owner, its replicas, and the one
// transaction that may be open. Pure: no I/O, no clock, no lock. Each call is a step, which appends
// to `actions` what has to be sent, in that order.
//
//   extent       Phase (home_table.h); the steps below move it by the table. At rest 16 bytes; what
//                is under way is in pools
//   operation    sent to an agent, complete. Ages are given out by the router of operations; the
//                directory is told
//
// A free while a transaction is open follows when the transaction is over. Thread-safety: none;
// the directory's owner brings the lock.
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "coherence/directory/ages.h"
#include "coherence/directory/home_table.h"
#include "coherence/directory/pool.h"
#include "coherence/directory/types.h"

namespace olpager::directory {

class Directory {
 public:
  /// Extents of a new region: nobody owns them. The numbers were never allocated, or are kReleased.
  void allocate(ExtentId first, ExtentId count);
  /// The program has freed them: no operation that is under way reaches them. kReleased tells of
  /// each when nothing is left.
  void free(ExtentId first, ExtentId count, Actions& actions);

  /// An agent takes part, from now to the end.
  void join(AgentId agent);

  /// The age of the next operation of the program.
  Age operation();
  /// The operation goes to that agent.
  void sent(Age age, AgentId agent);
  /// The home asks on behalf of an operation that it has sent or will send: a hint, since the
  /// operation may wait for whatever it will. So a hint acts with no age: no claim is lost to it,
  /// and what it brings is anybody's who needs it.
  void ask(Age age, AgentId agent, ExtentId first, ExtentId count, Mode mode, Actions& actions);
  /// The operation will not be sent.
  void cancel(Age age, Actions& actions);
  /// All operations below are complete.
  Age oldest() const { return routes_.empty() ? next_ : routes_.front().age; }
  bool complete(Age age) const { return complete_.has(age); }

  void receive(const Message& message, Actions& actions);

  Phase phase(ExtentId extent) const;
  AgentId owner(ExtentId extent) const { return records_[extent].owner; }
  AgentSet replicas(ExtentId extent) const { return replicasOf(records_[extent]); }
  Number number(ExtentId extent) const { return records_[extent].number; }
  size_t extents() const { return records_.size(); }
  /// Transactions that are open, or wait.
  size_t busy() const { return open_.used(); }
  /// Requests that wait for a transaction.
  size_t waiting() const { return requests_.used(); }
  static constexpr size_t kBytesAtRest = 16;

  template <typename Sink>
  void describe(Sink& sink) const;

 private:
  struct Record {
    uint64_t number : 48 = 0;  // of the last transaction
    uint64_t owner : 8 = kNoAgent;
    uint64_t gone : 1 = 1;  // at rest: it is not allocated
    uint64_t busy : 1 = 0;
    uint64_t wide : 1 = 0;
    uint64_t : 5;
    // A bit for each agent below 32; `wide`: others are among them, and it is a slot of wide_.
    uint32_t replicas = 0;
    uint32_t link = kNone;  // busy: Open
  };
  static_assert(sizeof(Record) == kBytesAtRest);

  /// A transaction, and who waits for the next.
  struct Open {
    Phase phase = Phase::kRest;
    bool hint = false;     // it serves one
    bool free = false;     // a free follows
    bool opening = false;  // the next is being looked for
    Mode mode = Mode::kShared;
    AgentId taker = kNoAgent;
    Age age = kNobody;     // that it acts with: of the oldest that waits for it
    Age served = kNobody;  // of the request that it serves
    AgentSet pending = 0;  // that have not answered
    uint32_t waiting = kNone;
  };
  /// One for each agent, mode and kind, however many of its operations ask: of the oldest one.
  struct Request {
    AgentId agent = kNoAgent;
    Mode mode = Mode::kShared;
    bool hint = false;
    Age age = kNobody;
    uint32_t next = kNone;
  };
  struct Route {
    Age age;
    AgentId agent;  // kNoAgent: not sent, though something may have been asked for it
    AgentSet asked_for = 0;
  };

  static constexpr AgentSet bit(AgentId agent) { return AgentSet{1} << agent; }
  AgentSet replicasOf(const Record& record) const {
    return record.wide != 0 ? wide_[record.replicas] : record.replicas;
  }
  void setReplicas(Record& record, AgentSet agents);
  bool joined(AgentId agent) const { return agent < kMostAgents && (joined_ & bit(agent)) != 0; }
  Open& open(ExtentId extent);
  void rest(ExtentId extent);
  std::deque<Route>::iterator placeOf(Age age);
  Route* route(Age age);
  void finished(Age age);

  void request(ExtentId extent, const Request& asked, Actions& actions);
  void older(ExtentId extent, Age age, Actions& actions);
  void addRequest(Open& o, const Request& asked);
  void dropRequests(Open& o, AgentId agent, Mode mode);
  void dropAllRequests(Open& o);
  void openNext(ExtentId extent, Actions& actions);
  bool openOne(ExtentId extent, Actions& actions);
  void begin(ExtentId extent, const Request& chosen, Actions& actions);
  void answer(const Message& message, Actions& actions);
  void answered(ExtentId extent, AgentId agent, Actions& actions);

  void step(ExtentId extent, HomeInput input, Actions& actions);
  void tell(MessageKind kind, AgentId agent, Message message, Actions& actions) const;

  AgentSet joined_ = 0;
  std::vector<Record> records_;
  Pool<AgentSet> wide_;  // replicas of extents that agents of 32 and above have
  Pool<Open> open_;
  Pool<Request> requests_;
  Ages complete_;
  Age next_ = 0;
  // Operations that are not complete, by age. Operations end roughly in order, and a program may be
  // many thousands of them ahead: those behind one that ends stay where they are.
  std::deque<Route> routes_;
};

template <typename Sink>
void Directory::describe(Sink& sink) const {
  for (ExtentId id = 0; id < records_.size(); ++id) {
    const Record& record = records_[id];
    sink.number(id, record.number);
    sink.value(record.owner | uint64_t{record.gone} << 8 | uint64_t{record.busy} << 9);
    sink.value(replicasOf(record));
    if (record.busy == 0) continue;
    const Open& o = open_[record.link];
    sink.value(static_cast<uint64_t>(o.phase) | uint64_t{o.free} << 8 |
               static_cast<uint64_t>(o.mode) << 9 | uint64_t{o.hint} << 10 |
               uint64_t{o.taker} << 16);
    sink.value(o.age);
    sink.value(o.served);
    sink.value(o.pending);
    uint64_t sum = 0;
    for (uint32_t r = o.waiting; r != kNone; r = requests_[r].next) {
      sum += (uint64_t{1} << 32 | requests_[r].age << 9 | uint64_t{requests_[r].hint} << 8 |
              uint64_t{requests_[r].agent} << 1 | static_cast<unsigned>(requests_[r].mode)) *
             0x9E3779B97F4A7C15u;
    }
    sink.value(sum);
  }
  for (const Route& route : routes_) sink.value(route.age << 8 | route.agent);
}

}  // namespace olpager::directory
