#include "pager/space/arena.h"

#include <algorithm>
#include <cmath>

namespace olpager::pager {

namespace {
constexpr uint64_t kPage = 2ull << 20;
uint64_t pageOf(uint64_t address) { return address / kPage; }
}  // namespace

void PieceTable::take(Piece& piece) {
  if (free_.empty()) {
    // Room for its way back: arenas end where nothing may throw.
    if (free_.capacity() <= pieces_.size()) free_.reserve(2 * pieces_.size() + 16);
    piece.id = static_cast<uint32_t>(pieces_.size());
    pieces_.push_back(&piece);
    return;
  }
  piece.id = free_.back();
  free_.pop_back();
  pieces_[piece.id] = &piece;
}

void PieceTable::give(const Piece& piece) {
  pieces_[piece.id] = nullptr;
  free_.push_back(piece.id);
  if (gone_) gone_(piece.id);
}

Arena::Arena(PieceTable& table, Region* region, uint64_t begin, uint64_t end,
             const Options& options)
    : table_(table), region_(region), begin_(begin), end_(end), options_(options) {
  Piece& first = pieces_[begin];
  first.begin = begin;
  first.end = end;
  first.region = region;
  first.place = by_recency_.end();
  table_.take(first);
}

Arena::~Arena() {
  for (auto& [address, piece] : pieces_) table_.give(piece);
}

uint64_t Arena::window() const {
  return std::max<uint64_t>(options_.least_names, options_.names_for_each_piece * pieces_.size());
}

float Arena::heat(const Piece& piece) const {
  const auto half_life = static_cast<float>(std::max<uint64_t>(256, 8 * pieces_.size()));
  return piece.heat * std::exp2(-static_cast<float>(clock_ - piece.heated) / half_life);
}

Piece& Arena::at(uint64_t address) { return std::prev(pieces_.upper_bound(address))->second; }

void Arena::warm(Piece& piece) {
  piece.heat = heat(piece) + 1;
  piece.heated = clock_;
}

// The piece's cut was named if the address is of the same page.
void Arena::refresh(Piece& piece, uint64_t address) {
  if (pageOf(address) != pageOf(piece.begin)) return;
  piece.named = clock_;
  if (piece.begin != begin_) by_recency_.splice(by_recency_.end(), by_recency_, piece.place);
}

// An address that is no cut was named: true when it has become one.
bool Arena::named(uint64_t address) {
  const auto [candidate, first] = candidates_.try_emplace(address, clock_);
  if (first) {
    candidate_order_.emplace_back(address, clock_);
    return false;
  }
  const uint64_t gap = std::max<uint64_t>(kLeastGap, pieces_.size() / 2);
  if (clock_ - candidate->second < gap) return false;
  candidates_.erase(candidate);
  return true;
}

Piece& Arena::cut(Pieces::iterator within, uint64_t address) {
  Piece& before = within->second;
  Piece& piece = pieces_.emplace_hint(std::next(within), address, Piece{})->second;
  piece.begin = address;
  piece.end = before.end;
  piece.region = region_;
  piece.placement = before.placement;
  piece.heat = before.heat;
  piece.heated = before.heated;
  piece.named = clock_;
  before.end = address;
  before.whole_until = std::min(before.whole_until, address);
  table_.take(piece);
  piece.place = by_recency_.insert(by_recency_.end(), &piece);
  return piece;
}

void Arena::drop(Piece& piece) {
  const auto it = pieces_.find(piece.begin);
  std::prev(it)->second.end = piece.end;
  by_recency_.erase(piece.place);
  table_.give(piece);
  pieces_.erase(it);
}

void Arena::expire() {
  while (!by_recency_.empty() &&
         (by_recency_.front()->named + window() < clock_ || pieces_.size() > options_.most_pieces))
    drop(*by_recency_.front());
  while (!candidate_order_.empty() && (candidate_order_.front().second + window() < clock_ ||
                                       candidate_order_.size() > options_.most_candidates)) {
    const auto [address, clock] = candidate_order_.front();
    candidate_order_.pop_front();
    const auto candidate = candidates_.find(address);
    if (candidate != candidates_.end() && candidate->second == clock) candidates_.erase(candidate);
  }
}

const std::pair<const uint64_t, uint64_t>* Arena::fillAt(uint64_t address) const {
  const auto after = fills_.upper_bound(address);
  if (after == fills_.begin()) return nullptr;
  const auto& fill = *std::prev(after);
  return address < fill.second ? &fill : nullptr;
}

// The newest copy decides where fills overlap; what it leaves of others stays filled.
void Arena::fill(uint64_t address, uint64_t bytes) {
  if (bytes == 0 || fills_.size() + 2 > options_.most_fills) return;
  const uint64_t end = address + bytes;
  auto it = fills_.upper_bound(address);
  if (it != fills_.begin()) --it;
  while (it != fills_.end() && it->first < end) {
    const auto [begin, until] = *it;
    if (until <= address) {
      ++it;
      continue;
    }
    it = fills_.erase(it);
    if (begin < address) fills_.emplace(begin, address);
    if (until > end) fills_.emplace(end, until);
  }
  fills_.emplace(address, end);
}

bool Arena::isFilled(uint64_t begin, uint64_t end) const {
  auto it = fills_.upper_bound(begin);
  if (it != fills_.begin() && std::prev(it)->second > begin) --it;
  for (; begin < end; ++it) {
    if (it == fills_.end() || it->first > begin + kMostPadding) return end - begin <= kMostPadding;
    begin = it->second;
  }
  return true;
}

// A piece that no later name has cut yet is more than the tensor: then the fill tells.
uint64_t Arena::tensorEnd(uint64_t address, const Piece& piece) const {
  const auto* const fill = fillAt(address);
  if (fill == nullptr) return piece.end;
  const bool is_known = piece.end - piece.begin <= (end_ - begin_) / kWholeShare;
  return is_known ? std::max(piece.end, fill->second) : fill->second;
}

Piece& Arena::name(uint64_t address) {
  ++clock_;
  const auto it = std::prev(pieces_.upper_bound(address));
  Piece* piece = &it->second;
  const bool cuts_here =
      pageOf(address) == pageOf(piece->begin) || pageOf(address) == pageOf(piece->end);
  const auto* const fill = fillAt(address);
  const bool cuts = fill != nullptr ? fill->first == address
                                    : !cuts_here && address >= piece->whole_until && named(address);
  if (cuts && !cuts_here) piece = &cut(it, address);
  warm(*piece);
  refresh(*piece, address);
  expire();  // never what was just named: it is the newest
  return at(address);
}

void Arena::nameRange(uint64_t address, uint64_t bytes) {
  ++clock_;
  Piece* piece = &at(address);
  if (bytes >= kPage && bytes <= (end_ - begin_) / kWholeShare &&
      pageOf(address) == pageOf(piece->begin))
    piece->whole_until = std::max(piece->whole_until, std::min(address + bytes, piece->end));
  refresh(*piece, address);
  overlapping(address, bytes, [this](Piece& used) { warm(used); });
  expire();
}

}  // namespace olpager::pager
