#include "interpose/unified/turns.h"

#include <utility>

namespace olpager::unified {
namespace {

constexpr size_t kMostKnown = 4096;  // turns; more than that is no program that repeats itself

}  // namespace

void Turns::note(uint64_t page, uint64_t first, uint64_t pages, bool belongs) {
  named_in_[page] = turn_;
  if (named_in_[first] == turn_ && page != first) return;
  named_in_[first] = turn_;
  if (!belongs) return;
  present_.regions.push_back(first);
  present_.pages += pages;
}

void Turns::begin(unsigned executor, uint64_t cause) {
  const unsigned ended = present_.executor;
  // The first turn of all came from nowhere.
  if (turn_ != 1 && present_.pages != 0) {
    if (known_.size() >= kMostKnown && !known_.contains(cause_)) known_.clear();
    Turn& known = known_[cause_];
    // If all goes on to a third executor, one of the two moves would be left.
    const uint64_t paid = executor == from_ ? price_ : price_ / 2;
    const bool again = known.executor == ended && present_.pages <= known.pages;
    present_.times = again ? known.times + 1 : 1;
    present_.paid = again ? known.paid + paid : paid;
    std::swap(known, present_);
  }
  from_ = ended;
  present_.executor = executor;
  present_.pages = 0;
  present_.regions.clear();
  cause_ = cause;
  ++turn_;
}

const Turns::Turn* Turns::paidFor(uint64_t cause, unsigned executor) const {
  const auto found = known_.find(cause);
  if (found == known_.end()) return nullptr;
  const Turn& turn = found->second;
  return turn.executor == executor && turn.times > 1 && turn.paid >= turn.pages ? &turn : nullptr;
}

}  // namespace olpager::unified
