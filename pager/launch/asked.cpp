#include "pager/launch/asked.h"

#include <algorithm>

#include "pager/clock.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

void Asked::hold() {
  for (; held_ < closure_.regions.size(); ++held_) ++closure_.regions[held_]->wanted;
  held_pieces_ = closure_.used.hold(held_pieces_);
}

void Asked::ask() {
  // An engine that knows what is wanted looks often enough: rung each time, the two would wake each
  // other without end.
  bool news = extents_ < closure_.needed.size() || regions_ < closure_.regions.size();
  for (; extents_ < closure_.needed.size(); ++extents_)
    wantOf(*closure_.needed[extents_]->region->engine).extents.push_back(closure_.needed[extents_]);
  for (; regions_ < closure_.regions.size(); ++regions_) {
    Region* region = closure_.regions[regions_];
    if (!region->isRoot()) wantOf(*region->engine).regions.push_back(region);
  }
  for (Region* region : closure_.regions) {  // also what the host wrote meanwhile
    Engine* const engine = closure_.mustScan(*region) ? closure_.engineOf(*region) : nullptr;
    if (engine == nullptr) continue;
    auto& to_scan = wantOf(*engine).to_scan;
    if (std::find(to_scan.begin(), to_scan.end(), region) != to_scan.end()) continue;
    to_scan.push_back(region);
    news = true;
  }
  if (Engine* const engine = closure_.scannerOfVariables(); engine != nullptr)
    wantOf(*engine).scan_roots = true;
  for (auto& [engine, want] : wants_) {
    want.fetch = !closure_.fetched.empty();
    if (news) engine->wake();
  }
}

void Asked::scansNoMore() {
  for (auto& [engine, want] : wants_) {
    want.to_scan.clear();
    want.scan_roots = false;
  }
}

void Asked::letGo() {
  for (auto& [engine, want] : wants_) {
    engine->removeWant(&want);
    since_ns_ = since_ns_ == 0 ? want.since_ns : std::min(since_ns_, want.since_ns);
  }
  wants_.clear();
  extents_ = regions_ = 0;
  for (; held_ > 0; --held_) --closure_.regions[held_ - 1]->wanted;
  closure_.used.release(held_pieces_);
  held_pieces_ = 0;
}

Want& Asked::wantOf(Engine& engine) {
  auto it =
      std::find_if(wants_.begin(), wants_.end(), [&](auto& want) { return want.first == &engine; });
  if (it != wants_.end()) return it->second;
  wants_.emplace_back(&engine, Want{});
  wants_.back().second.since_ns = since_ns_ != 0 ? since_ns_ : nowNs();
  engine.addWant(&wants_.back().second);
  return wants_.back().second;
}

}  // namespace olpager::pager
