// The home of a unified view: the pages that exist, the executor that has each, and the executor to
// which an operation goes. The home holds the directory (coherence/directory/directory.h), whose
// agent i is executor i. No I/O, no clock. Records for an executor lie in an outbox,
// which the caller empties (take); records from executors are handed in (receive).
//
//   region     add -> told to all executors -> remove -> forgotten by each -> released: its
//              addresses and extents may be given out again
//   operation  route (a question) -> send: the operation has an age, and the pages that it names
//              are asked for ahead -> complete (its executor says so, kCompleted); or cancel
//   page       nobody's -> placed: where the last operation that named it was sent -> the owner's,
//              as soon as nothing is under way for it. A page that a kernel reaches without naming
//              it is found so too
//
// Routing. An operation goes to the executor for which the fewest pages have to move. The cost of
// an executor is the number of named pages that are elsewhere. Pages beyond the executor's room
// cost twice, since others leave for them and come back; the room is a little less for new pages,
// and a little more for pages that come and go. An executor that can't hold the pages at all is the
// last choice. A move of the whole program costs as much as some pages. So pages that all
// operations name in turns (activations, work space) come along, and the many pages that few
// operations name (weights) decide. A page counts where it is placed, not where it is owned:
// earlier operations have been sent, and will have moved it.
//
// Short turns. The program may be loaded so that a matrix or two lie at another executor than those
// before and behind. Each pass then moves the whole program for them. Once the moves have cost as
// much as the pages of such a turn (turns.h), and if the program's executor has room for the pages,
// the pages come to that executor and stay.
//
// Travellers. Some pages are named by operations wherever these run, and come along at each move.
// Asked for by one operation after the other, each page would cost a round trip. So the pages that
// came to an executor during its last turn are all asked for when its next turn begins (arrive). A
// page that no operation of the turn names is not expected again. New pages leave some room for
// travellers free at each executor.
//
// Room. The program gets no more pages than `most` (add). An executor's pager has tiers below its
// VRAM, so the protocol bounds no agent: `rooms` decide where operations go. An operation may need
// more pages than its executor holds in all. Then room is made before the operation is sent, in
// steps (makeRoom). A step pushes a few pages that no operation has named for longest to executors
// with room. If no executor has room, as many pages of the operation come first. If all pages were
// asked for at once, each executor could wait for another one to take its pages. The pages of a
// step travel under the age of an operation of the taker's that never comes; that age is cancelled
// when each page has arrived or stays. As with all pages that are asked for ahead, a page goes
// where an operation needs it, and stays where one has claimed it. A submitted operation may hold a
// page, and so keep a step from its end, for as long as its kernel runs: such a step is given up
// (giveUpStep).
//
// Thread-safety: any thread. Lock: mutex_, a leaf; steps of the directory run under it. Ages are
// given out in the order of send(): the sender of an operation keeps its place among those of its
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
#include "coherence/directory/extent_numbers.h"
#include "coherence/status/unified_counters.h"
#include "forwarding/wire/pages_wire.h"
#include "interpose/forward/named.h"
#include "interpose/unified/turns.h"

namespace olpager::unified {

using forward::Named;

// Many members: a function for each message of the protocol.
class Home {
 public:
  /// `rooms`: pages for which each executor has room in VRAM, and `holds`: in all. At least one
  /// executor, at most kMostAgents. `most`: pages that the program may get.
  /// `base`: where the range of addresses begins. A look-up costs the same however many regions
  /// there are, by a table as long as the used part of the range.
  /// `counters`: outlive the home, which counts what is marked [home] there; null: nobody looks.
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

  /// The part of an operation's record beside its call.
  struct Sent {
    directory::Age age = 0;
    directory::Age oldest = 0;  // all operations below are complete
    uint64_t regions = 0;       // told so far: the executor has to know of as many first
  };
  /// The best executor for an operation whose stream is at executor `at`.
  unsigned route(std::span<const Named> named, unsigned at) const {
    return routed(named, at).executor;
  }
  /// The executor, and the reason for it.
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
  /// The program has moved to `executor`, for an operation of that age that has been sent there:
  /// asks for the travellers.
  void arrive(unsigned executor, directory::Age age, std::span<const Named> named);
  /// Sends an operation to `executor`. `ahead`: the pages that it names are asked for now; false
  /// for an operation that waits for a younger one. `united`: as Routed has it.
  Sent send(unsigned executor, std::span<const Named> named, bool ahead,
            std::optional<uint64_t> united = std::nullopt);
  /// As send(), if all named pages are there with nothing under way for them, and the executor has
  /// no more pages than room and a little more; else sends nothing. Most launches go this way: it
  /// takes the lock once and looks at one byte for each region.
  std::optional<Sent> sendInPlace(unsigned executor, std::span<const Named> named);
  /// Before an operation is sent to `executor`: begins a step that makes room for its pages there.
  /// False: none is needed or possible, or one is under way still. The next step is for when
  /// steps() has grown, and nothing is to be sent before.
  bool makeRoom(unsigned executor, std::span<const Named> named);
  /// The present step is not waited for any more: its pages that are on their way go on, and are
  /// nobody's there.
  void giveUpStep();
  /// Steps of makeRoom() that are over.
  uint64_t steps() const { return steps_.load(std::memory_order_acquire); }
  /// The operation was not sent after all.
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
  /// True while take() may have a record for some executor. Takes no lock.
  bool hasRecords() const { return has_records_.load(std::memory_order_acquire); }

  /// Pages that are placed at an executor.
  uint64_t placed(unsigned executor) const;
  /// The executor at which the page of an address is placed; nullopt: none, or it is in no region.
  std::optional<unsigned> placedAt(uint64_t address) const;
  /// The owner of the page of an address; nullopt: nobody, or it is in no region. An executor that
  /// uses the page keeps it for as long as the use lasts, wherever it is placed.
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
  directory::ExtentNumbers numbers_;
  std::vector<Page> page_of_;                 // by extent
  std::vector<uint64_t> placed_, completed_;  // by executor: pages; operations
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
