// The worker as an agent of a unified view: its link to the home beside the calls, and the page
// bytes that go between executors. Who owns what the directory's agent in the pager knows
// (forwarding/agent.h); here are only links, transfers, and operations on their way.
//
// Designed, not built: nothing includes this yet (docs/internals/coherence.md, "A launch over two
// executors").
//
// An operation, by age:
//
//   arrived     the leader has taken its record. Behind what is before it in its stream it is in a
//               queue (stream_queues.h), and nobody looks at its pages
//   needing     all before it in its stream is submitted, and as many regions are known as its
//               record says: a thread makes the call. Where the pager lacks pages the agent has
//               been told its age and needs, and the thread has left the lead at once
//   runnable    the pager's agent claims all that it needs
//   submitted   the driver has it
//   complete    the stream has passed it
//
//   arrived -> needing     StreamQueues: the thread that owns the queue, or the leader
//   needing -> runnable    the agent's thread, in olpager_agent_receive or _landed
//   runnable -> submitted  the thread that makes the call, which the pager's condition wakes
//   runnable -> needing    an older operation has taken a page: the pager, in that step
//   submitted -> complete  the pager's thread, when somebody waits for its pages; else what found
//                          all in place is told to the home in batches (`over_`)
//
// So the leader never waits for pages, and what comes on the link to the home is heard whatever the
// calls wait for: that link has a connection and a thread of its own.
//
// A transfer, by extent and number:
//
//   offered   the giver's frame is named to the taker's link (Peer), with key and offset
//   wanted    the pager has asked for it; the offer may come before or after
//   reading   both: one-sided, from the giver's frame into the taker's
//   landed    told to the pager, which says Done; the giver takes its frame back when the home
//             releases it. Or lost: the link is down, and the session ends
//
// Owners: the worker owns the agent, for the process. Threads: `run`, which receives from the home
// and hears of transfers; the pager's, by the calls of OlpagerAgentLink. Lock: mutex_, a leaf below
// the pager's mutex: nothing of the pager's is called under it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "coherence/calls/channel.h"
#include "forwarding/agent.h"
#include "forwarding/wire/pages_wire.h"
#include "gpunode/worker/peers.h"

namespace olpager::gpunode {

class Worker;

class Agent {
 public:
  explicit Agent(Worker& worker) : worker_(worker) {}

  /// From now on the session is executor `slot` of a unified view. Before the first call of the
  /// client's that uses memory.
  Status start(unsigned slot);
  /// The link to the home, and each that replaces it.
  calls::Channel& home() { return home_; }

  /// Waits until so many regions are known, without any lock. False: the session has ended.
  bool awaitRegions(uint64_t count);
  /// This thread makes the call of that operation from here on, until made().
  void begin(uint64_t age, uint64_t oldest);
  void made(uint64_t age);

 private:
  using Key = std::pair<uint32_t, uint64_t>;  // extent, number
  struct Transfer {
    unsigned from = 0;
    void* into = nullptr;              // null: not wanted yet
    transport::RemoteRange offered{};  // of 0 bytes: not offered yet
    bool reading = false;
  };

  void run();
  void hear(const std::vector<std::byte>& record);
  void read(const Key& key, Transfer& transfer);  // under mutex_
  static const OlpagerAgentLink& link();

  Worker& worker_;
  calls::Channel home_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable known_;
  uint64_t regions_ = 0;
  std::map<Key, Transfer> transfers_;
  std::map<const void*, transport::RegionPtr> memory_;  // of the pager's, by its base
  std::vector<uint64_t> over_;                          // ages that the home has not been told
};

}  // namespace olpager::gpunode
