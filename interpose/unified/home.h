// The home of a unified view: which pages there are, which executor has them, and where an
// operation goes. It holds the directory (coherence/directory/directory.h), whose agents are the
// executors: agent i is executor i. Pure: no I/O, no clock. What is to be sent lies in an outbox
// for each executor, which whoever moves records empties (take), and what has come it is given
// (receive).
//
//   region     add -> told to all executors -> remove -> forgotten by each -> released: its
//              addresses and extents may be given out again
//   operation  route (a question) -> send: it has an age, and what it names is asked for ahead
//              -> complete (its executor says so, kCompleted); or cancel
//   page       nobody's -> placed: where the last operation that named it was sent -> the owner's,
//              as soon as nothing is under way for it. What a kernel reaches without naming it is
//              so found too
//
// Routing. An operation goes where the fewest pages have to move for it: those that it names and
// that are elsewhere, and, where the executor would have more pages than room (for what is new a
// little less, for what comes and goes a little more), as many again twice, since others leave and
// come back. Where it would have more than it can hold it goes last. A move of all costs as much as
// some pages: so the pages that all operations name in turns (activations, work space) come along,
// and what decides is where the many are that few operations name (weights). What is placed counts,
// not what is owned: the operations before have been sent, and will have moved it.
//
// Short turns. Memory that came to lie as a program was loaded makes all move for a matrix or two
// that lie at another executor than those before and behind. When the moves have cost as much as
// the pages of such a turn would (turns.h), and the executor where all is has room for them, they
// come instead of all going there, and stay.
//
// Travellers. Pages that operations name wherever they run come along whenever all moves. Asked for
// by one operation after the other each would cost a round trip. So what came to an executor during
// its last turn is asked for at once when the next turn begins (arrive). What its operations do not
// name then is not expected again. New pages leave some room free for them at each executor.
//
// Room. The program gets no more pages than `most` (add). An executor's pager has tiers below its
// VRAM, so the protocol bounds no agent: `rooms` decide where operations go. Where an
// operation's pages would be more than its executor holds in all, room is made before it is sent,
// step by step (makeRoom): a few pages that no operation has named for longest are *pushed* to
// executors that have room; where none has, as many of the operation's come first. Were all asked
// for at once, each executor could wait for the other one to take what it gives. A step's pages go
// under the age of an operation of the taker's that never comes, and is cancelled when each has
// arrived or stays: as all that is asked for ahead, a page goes where an operation needs it, and
// stays where one has claimed it. A page that a submitted operation holds may keep a step from its
// end for as long as a kernel likes: then the step is given up (giveUpStep).
//
// Thread-safety: any thread. Lock: mutex_, a leaf; steps of the directory run under it. Ages are
// given out in the order of send(): whoever sends an operation keeps its place among those of its
// stream by a lock of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "coherence/directory/directory.h"
#include "coherence/status/unified_counters.h"
#include "forwarding/wire/pages_wire.h"
#include "interpose/forward/named.h"
#include "interpose/unified/turns.h"

namespace olpager::unified {

using forward::Named;

class Home {
 public:
  /// `rooms`: pages that each executor has room for in VRAM, and `holds`: in all. At least one
  /// executor, at most kMostAgents. `most`: pages that the program may get.
  /// `base`: where the range of addresses begins. A look-up costs the same however many regions
  /// there are; what it is looked up in is as long as the used part of the range.
  /// `counters`: where it counts what is [home] there, for as long as it lives; null: for nobody.
  Home(std::vector<uint64_t> rooms, std::vector<uint64_t> holds, uint64_t base, uint64_t most,
       status::UnifiedCounters* counters = nullptr);
  /// `holds`: as much as anybody asks; `most`: as many as there is room for.
  Home(std::vector<uint64_t> rooms, uint64_t base);

  /// A new region at [base, + bytes), whole pages that are in no other one. False: there is no room
  /// for it.
  [[nodiscard]] bool add(uint64_t base, uint64_t bytes);
  /// The program has freed the region that begins there: no operation that is under way uses it.
  void remove(uint64_t base);
  /// Bases of regions that are released since the last call.
  std::vector<uint64_t> released();
  /// How many regions executors have been told of, or will be as soon as records are taken.
  uint64_t told() const;
  /// Pages that the program may still get.
  uint64_t freePages() const;

  /// What an operation's record says beside its call.
  struct Sent {
    directory::Age age = 0;
    directory::Age oldest = 0;  // all operations below are complete
    uint64_t regions = 0;       // told so far: the executor has to know of as many first
  };
  /// Where an operation is best sent whose stream is at executor `at`.
  unsigned route(std::span<const Named> named, unsigned at) const {
    return routed(named, at).executor;
  }
  /// That, and what decided.
  struct Routed {
    unsigned executor = 0;
    status::RouteReason reason = status::RouteReason::kInPlace;
    uint64_t there = 0, coming = 0;  // pages that it names: placed there, and at others
    // All would go for a short turn, whose pages come instead: what it begins with (turns.h).
    std::optional<uint64_t> united = std::nullopt;
  };
  /// `asked`: the executor that it is to go to, if that can hold what it would have then.
  Routed routed(std::span<const Named> named, unsigned at,
                std::optional<unsigned> asked = std::nullopt) const;
  /// All has moved there, for an operation of that age that has been sent there and names that: so
  /// do the travellers.
  void arrive(unsigned executor, directory::Age age, std::span<const Named> named);
  /// It goes to that executor. `ahead`: what it names is asked for now; not of an operation that
  /// waits for a younger one. `united`: as Routed has it.
  Sent send(unsigned executor, std::span<const Named> named, bool ahead,
            std::optional<uint64_t> united = std::nullopt);
  /// As send(), where all that it names is there, with nothing under way for it, and the executor
  /// has no more pages than room and a little more; else nothing is sent. Of most launches, so it
  /// takes the lock once and looks at one byte for each region.
  std::optional<Sent> sendInPlace(unsigned executor, std::span<const Named> named);
  /// Before an operation is sent to `executor`: begins a step that makes room for its pages there.
  /// False: none is needed or possible, or one is under way still. The next step is for when
  /// steps() has grown, and nothing is to be sent before.
  bool makeRoom(unsigned executor, std::span<const Named> named);
  /// The present step is not waited for any more: what of its pages is on its way goes on, and is
  /// nobody's there.
  void giveUpStep();
  /// Steps of makeRoom() that are over.
  uint64_t steps() const { return steps_.load(std::memory_order_acquire); }
  /// It was not sent after all.
  void cancel(directory::Age age);
  bool complete(directory::Age age) const;
  /// How many operations the executor has said to be complete.
  uint64_t completed(unsigned executor) const;
  /// Pages that executors have taken from others, each as often as it was.
  uint64_t moved() const;

  /// The body and head of a record that an executor has sent. An Error: it is not to be trusted any
  /// more, and the session can't go on.
  Status receive(unsigned executor, std::span<const std::byte> record);
  /// The next record for an executor; empty: there is none. Records go in the order in which they
  /// are taken.
  std::vector<std::byte> take(unsigned executor);
  /// Whether take() may have one, for any executor: true after a step that has left some, until
  /// they are taken. Takes no lock.
  bool hasRecords() const { return has_records_.load(std::memory_order_acquire); }

  /// Pages that are placed at an executor.
  uint64_t placed(unsigned executor) const;
  /// Where the page of an address is placed; nullopt: nowhere, or it is in no region.
  std::optional<unsigned> placedAt(uint64_t address) const;
  /// Who owns the page of an address; nullopt: nobody, or it is in no region. Who has it in use has
  /// it for as long as that lasts, wherever it is placed.
  std::optional<unsigned> ownerOf(uint64_t address) const;

 private:
  using ExtentId = directory::ExtentId;
  using Age = directory::Age;
  static constexpr uint8_t kNowhere = directory::kNoAgent;
  static constexpr uint8_t kNoRegion = kNowhere - 1;
  static_assert(kNoRegion >= directory::kMostAgents);

  struct Region {
    uint64_t base = 0;
    uint64_t pages = 0;
    ExtentId first = 0;
    bool removed = false;
    uint64_t released = 0;  // pages that all executors have forgotten
    Age used = 0;           // by the last operation that was not sent in place
  };
  struct Page {
    uint8_t placed = kNowhere;
    uint8_t owner = kNowhere;  // that has been counted
    bool expected = false;     // it travelled, and no operation has named it since
    Region* region = nullptr;  // null: in none
  };
  struct Outbox {
    std::vector<forward::RegionRecord> regions;  // before the messages
    std::vector<directory::Message> messages;
  };

  /// Extents in a row.
  struct Run {
    ExtentId first = 0, end = 0;
  };

  // All under mutex_.
  ExtentId extentOf(uint64_t address) const;  // kNone: in no region, or that one is removed
  Region* regionOf(uint64_t address) const;
  std::vector<Run> runsOf(std::span<const Named> named) const;
  struct Cost {
    uint64_t there = 0;   // pages: no cost
    uint64_t moved = 0;   // that come from others
    uint64_t beyond = 0;  // its room, each twice
    uint64_t never = 0;   // kTooMuch: it can't hold them
    uint64_t then = 0;    // pages that it would have: no cost
    uint64_t sum() const { return moved + beyond + never; }
  };
  Cost costAt(unsigned executor, std::span<const Run> runs) const;
  void place(ExtentId extent, uint8_t executor);
  uint64_t stepOf(unsigned executor) const;
  std::optional<uint8_t> roomiest(unsigned but) const;
  uint64_t pushOut(unsigned executor, uint64_t pages, std::span<const Run> named);
  uint64_t pullIn(unsigned executor, uint64_t pages, std::span<const Run> named);
  void moveInStep(ExtentId extent, directory::AgentId taker);
  void endMove(ExtentId extent);
  void endStep();
  void noteTraveller(ExtentId extent, uint8_t executor);
  template <typename Each>
  void eachStillAt(unsigned executor, const Turns::Turn& turn, Each each) const;
  static bool isIn(std::span<const Run> runs, ExtentId extent);
  template <typename Each>
  void eachRegion(std::span<const Run> runs, Each each) const;
  uint64_t pageOf(const Region& region) const;
  void noteInTurn(const Region& region, bool belongs);
  std::optional<uint64_t> shortTurn(unsigned at, unsigned there, std::span<const Run> runs) const;
  void unite(unsigned executor, uint64_t cause, Age age);
  void settle(ExtentId extent);
  void noteOwner(ExtentId extent, uint8_t owner);
  uint8_t settledAt(const Region& region) const;
  void setSettled(const Region& region, uint8_t executor);
  Sent draw(directory::AgentId agent);
  Outbox& outbox(size_t executor);
  Status carryOut();
  Status hear(unsigned executor, const directory::Message& message);
  void noteFigures(unsigned executor, std::span<const std::byte> body);
  ExtentId takeExtents(uint64_t pages);
  void giveExtents(ExtentId first, uint64_t pages);

  mutable std::mutex mutex_;
  const std::vector<uint64_t> rooms_, holds_;
  const uint64_t base_, most_;
  const std::unique_ptr<status::UnifiedCounters> own_counters_;
  status::UnifiedCounters& counters_;
  directory::Directory directory_;
  directory::Actions actions_;          // of the present step
  std::map<uint64_t, Region> regions_;  // by base
  std::vector<ExtentId> extent_at_;     // by page of the range; kNone: in no region
  // By page of the range as well, and small: where its region is settled, which is whose all its
  // pages are, with nothing under way for them and none expected. Most launches name such regions
  // alone, and look at nothing else. kNowhere: it is not; kNoRegion: the page is in none, or that
  // one is removed.
  std::vector<uint8_t> settled_at_;
  uint64_t told_ = 0;   // regions
  uint64_t pages_ = 0;  // in regions that are not released
  uint64_t moved_ = 0;
  std::vector<Page> page_of_;                  // by extent
  std::map<ExtentId, uint64_t> free_extents_;  // first and count
  std::vector<uint64_t> placed_, completed_;   // by executor: pages; operations
  Turns turns_;
  std::vector<std::vector<ExtentId>> travellers_;  // that came during an executor's last turn
  std::set<ExtentId> in_step_;                     // pages of the present step
  std::map<directory::AgentId, Age> step_ages_;    // the takers' operations that never come
  std::atomic<uint64_t> steps_{0};                 // changed under mutex_
  std::vector<Outbox> outboxes_;
  std::atomic<bool> has_records_{false};  // changed under mutex_
  std::vector<uint64_t> released_;
};

}  // namespace olpager::unified
