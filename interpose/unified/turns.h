// Turns of a view's executors, and which of them are not worth their moves.
//
// All moves to an executor, operations run there for a while, and all moves on: a turn. Programs
// repeat themselves (a layer after another, a token after another), so turns do. As memory came to
// lie when a program was loaded, some turns are short: a matrix or two that lie at another executor
// than those before and behind. Each round pays two moves of all for it. Had its pages come
// instead, once, the turns before and behind would be one.
//
// Moves are the rent, and pages that come the price, of the same thing, and the rule is that of ski
// rental: what has been paid in moves for a turn is counted, and when it comes to what its pages
// cost, they come (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, 1988). By that
// rule at most twice the least is paid, whatever the program does later. To count each move several
// times, as the home does, is to bet that a program that repeats itself goes on. The home says if
// there is room for the pages.
//
// A turn uses the regions that were whole at its executor when an operation of the turn named them
// first, and that did not come during it: memory that all operations use wherever they run moves
// along, and belongs to no turn.
//
// Pure: no I/O, no clock. Thread-safety: none; under Home::mutex_.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace olpager::unified {

class Turns {
 public:
  /// The price of a turn that goes back to where it came from, in pages.
  explicit Turns(uint64_t price) : price_(price) {}

  /// The executor of the present turn. The first one is executor 0's.
  unsigned executor() const { return present_.executor; }
  /// The range has so many pages by now; each page's number in it is `page` below.
  void resize(size_t pages) { named_in_.resize(pages); }
  /// True if the page has been named in the present turn, or does not belong to it.
  bool isNoted(uint64_t page) const { return named_in_[page] == turn_; }
  /// An operation of the present turn names the page, which is in the region of so many pages that
  /// begins at page `first`. `belongs`: the region is whole at the turn's executor, and has been.
  void note(uint64_t page, uint64_t first, uint64_t pages, bool belongs);

  /// All moves to `executor`, for an operation that names region `cause` there: the present turn is
  /// over.
  void begin(unsigned executor, uint64_t cause);

  /// A turn that came again and again.
  struct Turn {
    unsigned executor = 0;
    uint64_t pages = 0;             // of its regions
    std::vector<uint64_t> regions;  // their first pages
    uint64_t paid = 0;              // for its moves so far, in pages
    uint64_t times = 0;             // that it came; anew where it has grown
  };
  /// The turn of that executor that begins with that region, if it came more than once and its
  /// pages are paid for; null: there is none.
  const Turn* paidFor(uint64_t cause, unsigned executor) const;
  /// Forgets the turns that begin with it.
  void forget(uint64_t cause) { known_.erase(cause); }

 private:
  const uint64_t price_;
  std::vector<uint32_t> named_in_;  // by page: number of the last turn that noted it
  uint32_t turn_ = 1;
  Turn present_;
  uint64_t cause_ = 0;
  unsigned from_ = 0;                         // executor of the turn before
  std::unordered_map<uint64_t, Turn> known_;  // by cause
};

}  // namespace olpager::unified
