// The pieces of an arena: one huge allocation (or reservation) in which a program keeps many
// tensors.
//
// The addresses that launches name inside an arena cut it into pieces: the working set of a pointer
// is the piece that holds it, from a cut to the next one. An address cuts when it is named a second
// time, about a round after the first: one that moves on (where a cache is appended to) is named in
// one round only and never cuts. There is at most one cut in a page, since nothing smaller than a
// page moves. Cuts that nobody names any more go, and their piece joins the one before. An address
// inside a range that copies named as one thing (a range that begins at a cut) makes no cut. Copies
// themselves make none: a tensor is loaded in parts as often as not.
//
// A fill is a range that one copy from the host has filled: a tensor, or a part of one. The start
// of a fill cuts when it is first named, and no name inside of it does. So a program that fills its
// tensors by one copy each has a piece for each tensor from the first launch on.
//
//   unknown -> candidate (named once) -> cut (named again, half a round later) -> gone (not named
//   for many rounds)
//
// Pieces have dense ids in a PieceTable, so that the learned order can know them as its units.
//
// Thread-safety: none; the pager uses it under PoolState::mutex. Memory: bounded by Options, about
// 150 bytes for each piece and
// 60 for each candidate. Time: O(log pieces) amortised for each name. Knows nothing of a driver or
//    of extents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "pager/space/density.h"

namespace olpager::pager {

struct Region;
enum class Placement : uint8_t;

struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
  Region* region = nullptr;  // as the arena was given it
  uint32_t id = 0;           // in the PieceTable
  uint32_t mark = 0;         // the user's: visit mark
  Placement placement{};     // the user's: where the learned order wants it
  DensityRecord density;     // the user's: how much of it launches touch

  /// Pages that it is taken to be: those of all pieces of an arena add up to the arena's.
  uint64_t pages() const { return (end >> 21) - (begin >> 21); }

 private:
  friend class Arena;
  uint64_t whole_until = 0;           // a copy named [begin, whole_until) as one thing
  uint64_t named = 0;                 // clock of the last time that its cut was named
  uint64_t heated = 0;                // clock at which `heat` held
  float heat = 0;                     // names, halved with each half-life
  std::list<Piece*>::iterator place;  // in the order of `named`; not of the first piece
};

/// Ids of pieces, dense from 0. An id that was given back comes again.
class PieceTable {
 public:
  /// `gone`: called with each id that is given back.
  explicit PieceTable(std::function<void(uint32_t id)> gone = {}) : gone_(std::move(gone)) {}
  PieceTable(const PieceTable&) = delete;
  PieceTable& operator=(const PieceTable&) = delete;

  /// nullptr: nobody has the id.
  Piece* at(uint32_t id) const { return id < pieces_.size() ? pieces_[id] : nullptr; }
  size_t used() const { return pieces_.size() - free_.size(); }

 private:
  friend class Arena;
  void take(Piece& piece);
  void give(const Piece& piece);

  std::function<void(uint32_t)> gone_;
  std::vector<Piece*> pieces_;
  std::vector<uint32_t> free_;
};

class Arena {
 public:
  struct Options {
    size_t most_pieces = 1u << 14;  // the one that was not named for longest goes for a new one
    size_t most_candidates = 1u << 15;
    uint64_t least_names =
        1u << 14;  // a cut goes when it was not named among the arena's last so many names,
    uint64_t names_for_each_piece = 64;  // or, with many pieces, so many for each of them
    size_t most_fills = 1u << 16;        // beyond that nothing more is known to be filled
  };
  static constexpr uint64_t kLeastGap = 8;  // names between the two that make a cut, at least
  static constexpr uint64_t kWholeShare =
      8;  // a copy of more than this share of the arena names no one thing
  static constexpr uint64_t kMostPadding = 4096;  // bytes between two fills that nobody uses

  /// [begin, end) in whole pages; one piece at first. The table outlives the arena.
  Arena(PieceTable& table, Region* region, uint64_t begin, uint64_t end)
      : Arena(table, region, begin, end, Options{}) {}
  Arena(PieceTable& table, Region* region, uint64_t begin, uint64_t end, const Options& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  size_t size() const { return pieces_.size(); }
  size_t candidates() const { return candidates_.size(); }
  /// Names so far: the arena's clock.
  uint64_t names() const { return clock_; }

  /// A launch names `address` (in the arena): the piece that holds it, which begins there if the
  /// address cuts. Pieces found before are valid until the next name() or nameRange(), which may
  /// drop some.
  Piece& name(uint64_t address);
  /// A copy names exactly [address, + bytes), in the arena. The name cuts nothing.
  void nameRange(uint64_t address, uint64_t bytes);

  /// A copy from the host fills exactly [address, + bytes), in the arena.
  void fill(uint64_t address, uint64_t bytes);
  bool hasFills() const { return !fills_.empty(); }
  /// True if fills cover [begin, end), but for padding between them.
  bool isFilled(uint64_t begin, uint64_t end) const;
  /// The end of the tensor that `address` is in, as far as that is known; `piece` holds the
  /// address.
  uint64_t tensorEnd(uint64_t address, const Piece& piece) const;

  Piece& at(uint64_t address);
  /// Calls `visitor(Piece&)` for each piece that [address, + bytes) overlaps, ascending.
  template <typename Visitor>
  void overlapping(uint64_t address, uint64_t bytes, Visitor&& visitor) {
    auto it = pieces_.upper_bound(address);
    if (it != pieces_.begin()) --it;
    for (; it != pieces_.end() && it->first < address + bytes; ++it) visitor(it->second);
  }

  /// How often the piece was named of late, falling by half each half-life of names.
  float heat(const Piece& piece) const;

 private:
  using Pieces = std::map<uint64_t, Piece>;
  void warm(Piece& piece);
  void refresh(Piece& piece, uint64_t address);
  bool named(uint64_t address);
  Piece& cut(Pieces::iterator within, uint64_t address);
  void drop(Piece& piece);
  void expire();
  const std::pair<const uint64_t, uint64_t>* fillAt(uint64_t address) const;
  uint64_t window() const;

  PieceTable& table_;
  Region* const region_;
  const uint64_t begin_;
  const uint64_t end_;
  const Options options_;
  Pieces pieces_;                 // by begin; the first one is always there
  std::list<Piece*> by_recency_;  // the one that was not named for longest first
  std::unordered_map<uint64_t, uint64_t> candidates_;  // address -> clock when it was named first
  std::deque<std::pair<uint64_t, uint64_t>>
      candidate_order_;                 // (address, clock), oldest first; may hold past ones
  std::map<uint64_t, uint64_t> fills_;  // begin -> end; none overlaps another
  uint64_t clock_ = 0;
};

}  // namespace olpager::pager
