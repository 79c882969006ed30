#include "pager/residency/planner.h"

#include <algorithm>

namespace olpager::pager {

namespace {
constexpr unsigned kRoundBelieved = 8;  // looks, four in each round

bool differs(uint64_t a, uint64_t b) { return (a > b ? a - b : b - a) * 32 > std::max(a, b); }
}  // namespace

void Planner::looked(uint64_t touches, size_t units) {
  next_plan_ = touches + std::max<size_t>(64, units / 4);
}

// A new unit in a round that is otherwise the same stays if it is small. Another round is believed
// when it has been seen for a while: while the cursor is found anew, what it foretells is short.
bool Planner::isNews(const std::vector<UnitRef>& round, uint64_t total, uint64_t room) {
  if (planned_round_ == 0) return true;
  if (!differs(total, planned_round_) && !differs(room, planned_room_)) {
    for (const UnitRef& unit : round)
      if (unit.placement() == Placement::kUnplanned)
        unit.placement() =
            unit.pages() <= space::kLargestExtentPages ? Placement::kKeep : Placement::kStream;
    return false;
  }
  if (differs(total, candidate_round_)) candidate_seen_ = 0;
  candidate_round_ = total;
  return ++candidate_seen_ >= kRoundBelieved;
}

std::vector<Planner::Group> Planner::groupsOf(const std::vector<UnitRef>& round) {
  std::vector<Group> groups;
  const Extent* shared = nullptr;
  for (size_t i = 0; i < round.size(); ++i) {
    const UnitRef& unit = round[i];
    const Extent* begins_in = nullptr;
    if (unit.piece != nullptr) {
      const ExtentRange range = extentsAt(*unit.region, unit.begin(), 1);
      if (range.first < range.last) begins_in = unit.region->extents[range.first].get();
    }
    if (begins_in == nullptr || begins_in != shared)
      groups.push_back({i, i, 0, unit.placement() == Placement::kKeep});
    shared = begins_in;
    groups.back().last = i + 1;
    groups.back().pages += unit.pages();
  }
  return groups;
}

std::optional<uint64_t> Planner::plan(std::vector<UnitRef> round, uint64_t total, uint64_t room) {
  if (!isNews(round, total, room)) return std::nullopt;
  candidate_seen_ = 0;
  planned_round_ = total;
  planned_room_ = room;
  std::sort(round.begin(), round.end(),
            [](const UnitRef& a, const UnitRef& b) { return a.begin() < b.begin(); });
  std::vector<Group> groups = groupsOf(round);
  uint64_t kept = 0;
  for (const Group& group : groups)
    if (group.kept) kept += group.pages;
  // As few as need be change, evenly spread: what is to stay from now on has to come, and what does
  // not makes way for it.
  const uint64_t wanted = std::min(room, total);
  const bool more = kept < wanted;
  const uint64_t change = more ? wanted - kept : kept - wanted;
  const uint64_t may_change = more ? total - kept : kept;
  uint64_t owed = 0;  // pages that should have changed of those passed, times may_change
  uint64_t changed = 0;
  for (Group& group : groups) {
    if (change != 0 && group.kept != more) {
      owed += group.pages * change;
      if ((changed + group.pages / 2) * may_change <= owed) {
        changed += group.pages;
        group.kept = more;
      }
    }
    for (size_t i = group.first; i < group.last; ++i)
      round[i].placement() = group.kept ? Placement::kKeep : Placement::kStream;
  }
  return kept + (more ? changed : -changed);
}

}  // namespace olpager::pager
