// The history of touches, the cursor in it, and the place of each unit.
#include "pager/predict/predict.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <new>

namespace olpager::predict {

namespace {

constexpr unsigned kLookAhead =
    4;  // a touch that is one of the next four: the ones before it were left out this time
constexpr unsigned kPatience = 3;    // misses after which a shorter context places the cursor
constexpr unsigned kLost = 64;       // misses after which the place is given up
constexpr unsigned kProbation = 8;   // touches after a miss in which a more recent place wins
constexpr unsigned kSureStreak = 3;  // right ones in a row that make a new place credible
constexpr float kAccuracyRate = 1.0F / 16;
constexpr uint32_t kHotUses = 4;  // uses before a unit can be called hot
constexpr float kHotShare =
    4;  // hot: four times as many different units in its window as touches in its interval
constexpr float kHotShareToStay = 2;
constexpr float kWindowIntervals = 32;  // a unit's window is at least as many of its intervals

uint64_t mix(uint64_t key) {  // splitmix64's finaliser
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebull;
  return key ^ (key >> 31);
}

template <typename T>
T* allocateZeroed(size_t count) {  // pages that are never written stay unbacked
  auto* memory = static_cast<T*>(std::calloc(count, sizeof(T)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void Predictor::Free::operator()(void* memory) const { std::free(memory); }

Predictor::Predictor(const Options& options)
    : mask_(std::bit_ceil(std::max<uint32_t>(options.history, 64)) - 1) {
  entries_.reset(allocateZeroed<Entry>(mask_ + 1));
  recent_.resize(windowTouches(kWindows - 1), kGone);
  for (auto& table : contexts_) table.reset(allocateZeroed<uint32_t>(mask_ + 1));
}

Predictor::~Predictor() = default;

Predictor::UnitState& Predictor::state(Unit unit) {
  if (unit >= units_.size()) units_.resize(std::max<size_t>(unit + 1, units_.size() * 2));
  return units_[unit];
}

void Predictor::countRecent(Unit unit, UnitState& unit_state) {
  for (unsigned window = 0; window < kWindows; ++window) {
    const uint64_t length = windowTouches(window);
    if (time_ > length) {
      const Unit leaving = recent_[(time_ - length) % recent_.size()];
      if (leaving != kGone && units_[leaving].counted_at == time_ - length) --distinct_[window];
    }
  }
  // Units used once (a model being loaded) say nothing about the length of the loop that runs now.
  const bool counts = unit_state.uses >= 2;
  if (counts) {
    for (unsigned window = 0; window < kWindows; ++window) {
      if (unit_state.counted_at == 0 || time_ - unit_state.counted_at >= windowTouches(window))
        ++distinct_[window];
    }
    unit_state.counted_at = time_;
  }
  recent_[time_ % recent_.size()] = counts ? unit : kGone;
}

void Predictor::updateHot(Unit unit, UnitState& unit_state) {
  ++time_;
  if (unit_state.uses != 0) {
    const auto interval = static_cast<float>(time_ - unit_state.touched_at);
    unit_state.interval =
        unit_state.uses == 1 ? interval : unit_state.interval * 0.75F + interval * 0.25F;
  }
  unit_state.touched_at = time_;
  if (unit_state.uses != UINT32_MAX) ++unit_state.uses;
  countRecent(unit, unit_state);
  // In a loop of equal units an interval holds each of them once, whatever its length: a share of
  // one. A unit touched between others has a short interval and sees many different units in a
  // window of many intervals.
  unsigned window = 0;
  while (window + 1 < kWindows &&
         static_cast<float>(windowTouches(window)) < unit_state.interval * kWindowIntervals) {
    ++window;
  }
  const float share = unit_state.hot ? kHotShareToStay : kHotShare;
  unit_state.hot = unit_state.uses >= kHotUses &&
                   static_cast<float>(distinct_[window]) >= unit_state.interval * share;
}

bool Predictor::isHot(Unit unit) const {
  if (unit >= units_.size() || !units_[unit].hot) return false;
  // One that has not been touched for many of its intervals was hot once.
  const UnitState& unit_state = units_[unit];
  return static_cast<float>(time_ - unit_state.touched_at) <=
         std::max(64.0F, unit_state.interval * kWindowIntervals);
}

void Predictor::touch(Unit unit, uint32_t signature) {
  ++raw_;
  if (unit == last_unit_ || unit == kGone) return;
  last_unit_ = unit;
  UnitState& unit_state = state(unit);
  updateHot(unit, unit_state);
  if (unit_state.hot) {
    ++statistics_.hot_touches;
    return;
  }
  const bool followed = cursor_ != kNowhere && follow(unit);
  if (cursor_ != kNowhere || statistics_.found_anew != 0) record(followed);
  append(unit, signature);

  // The new entry's context, looked up before it takes the table's place.
  if (!followed) {
    ++misses_;
    streak_ = 0;
    probation_ = kProbation;
    uint64_t found = findByContext(3);
    if (found == kNowhere && (cursor_ == kNowhere || misses_ >= kPatience)) {
      found = findByContext(2);
      if (found == kNowhere) found = findByContext(1);
      if (found == kNowhere && at(head_ - 1).back != 0) found = head_ - 1 - at(head_ - 1).back;
    }
    if (found != kNowhere) {
      place(found);
    } else if (misses_ >= kLost) {
      cursor_ = kNowhere;
    }
  } else {
    misses_ = 0;
    ++streak_;
    if (probation_ != 0) {
      --probation_;
      const uint64_t found = findByContext(3);
      if (found != kNowhere && found > cursor_) place(found);
    }
  }
  for (unsigned touches = 1; touches <= 3 && touches <= head_; ++touches) {
    contexts_[touches - 1][mix(contextKey(touches, head_ - 1)) & mask_] =
        static_cast<uint32_t>(head_ - 1);
  }
  if (cursor_ != kNowhere && !alive(cursor_)) cursor_ = kNowhere;
}

bool Predictor::follow(Unit unit) {
  unsigned seen = 0;
  for (uint64_t position = cursor_ + 1; position < head_ && seen < kLookAhead; ++position) {
    const Entry& entry = at(position);
    if (entry.unit == unit) {
      cursor_ = position;
      // Next use of this unit as seen from here: no search when it is asked for.
      if (entry.forward != 0) units_[unit].hint = position + entry.forward;
      return true;
    }
    if (!skipped(entry.unit)) {
      ++seen;
    } else if (seen == 0) {
      cursor_ = position;  // passed once, not again at each touch
    }
  }
  return false;
}

void Predictor::append(Unit unit, uint32_t signature) {
  Entry& entry = at(head_);
  if (head_ > mask_ &&
      entry.unit != kGone) {  // the oldest entry goes: it was its unit's first occurrence
    if (entry.forward != 0) at(head_ - (mask_ + 1) + entry.forward).back = 0;
    if (units_[entry.unit].last == head_ - (mask_ + 1)) units_[entry.unit].last = kNowhere;
  }
  UnitState& unit_state = units_[unit];
  entry = {unit, signature, 0, 0};
  if (unit_state.last != kNowhere) {
    entry.back = static_cast<uint32_t>(head_ - unit_state.last);
    at(unit_state.last).forward = entry.back;
  }
  unit_state.last = head_;
  ++head_;
}

void Predictor::place(uint64_t position) {
  cursor_ = position;
  misses_ = 0;
  ++statistics_.found_anew;
}

void Predictor::record(bool right) {
  ++(right ? statistics_.predicted_right : statistics_.predicted_wrong);
  accuracy_ += ((right ? 1.0F : 0.0F) - accuracy_) * kAccuracyRate;
}

uint64_t Predictor::contextKey(unsigned touches, uint64_t position) const {
  // Signatures take part where they help most: alone, a unit says little of the place. Two units
  // without signatures find the place when the kernels chosen for the same work have changed.
  uint64_t key = touches;
  for (unsigned i = 0; i < touches; ++i) {
    const Entry& entry = at(position - i);
    key = mix(key ^ entry.unit) ^ (touches == 2 ? 0 : static_cast<uint64_t>(entry.signature) << 32);
  }
  return key;
}

bool Predictor::sameContext(unsigned touches, uint64_t a, uint64_t b) const {
  for (unsigned i = 0; i < touches; ++i) {
    if (a < i || !alive(a - i)) return false;
    const Entry& left = at(a - i);
    const Entry& right = at(b - i);
    if (left.unit != right.unit || left.unit == kGone) return false;
    if (touches != 2 && left.signature != right.signature) return false;
  }
  return true;
}

uint64_t Predictor::findByContext(unsigned touches) const {
  const uint64_t here = head_ - 1;
  if (head_ < touches) return kNowhere;
  const uint32_t stored = contexts_[touches - 1][mix(contextKey(touches, here)) & mask_];
  const uint32_t age = static_cast<uint32_t>(here) - stored;
  if (age == 0 || age > here || !alive(here - age)) return kNowhere;
  return sameContext(touches, here - age, here) ? here - age : kNowhere;
}

bool Predictor::confident() const {
  return cursor_ != kNowhere && alive(cursor_) && (accuracy_ > 0.5F || streak_ >= kSureStreak);
}

uint64_t Predictor::firstBehindCursor(Unit unit) {
  UnitState& unit_state = units_[unit];
  uint64_t position = unit_state.hint;
  // A hint is an occurrence unless its place was written over since.
  if (position == kNowhere || !alive(position) || at(position).unit != unit)
    position = unit_state.last;
  while (position <= cursor_) position += at(position).forward;
  while (at(position).back != 0 && position - at(position).back > cursor_)
    position -= at(position).back;
  unit_state.hint = position;
  return position;
}

Predictor::NextUse Predictor::nextUse(Unit unit) {
  using Kind = NextUse::Kind;
  if (unit >= units_.size() || units_[unit].uses == 0) return {};
  const UnitState& unit_state = units_[unit];
  if (isHot(unit)) return {Kind::kPredicted, static_cast<uint64_t>(unit_state.interval)};
  if (!confident()) return {};
  if (unit_state.last == kNowhere || unit_state.last <= cursor_) return {Kind::kNever, UINT64_MAX};
  return {Kind::kPredicted, firstBehindCursor(unit) - cursor_ - 1};
}

void Predictor::forget(Unit unit) {
  if (unit >= units_.size()) return;
  uint64_t position = units_[unit].last;
  while (position !=
         kNowhere) {  // each entry is forgotten once: amortised over the touches that wrote them
    Entry& entry = at(position);
    entry.unit = kGone;
    position = entry.back == 0 ? kNowhere : position - entry.back;
  }
  for (unsigned window = 0; window < kWindows; ++window) {
    const uint64_t counted_at = units_[unit].counted_at;
    if (counted_at != 0 && time_ - counted_at < windowTouches(window)) --distinct_[window];
  }
  units_[unit] = UnitState{};
  if (last_unit_ == unit) last_unit_ = kGone;
}

uint32_t Predictor::beginVisit() {
  if (++visit_ == 0) {
    for (UnitState& unit : units_) unit.visit = 0;
    visit_ = 1;
  }
  return visit_;
}

}  // namespace olpager::predict
