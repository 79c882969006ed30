#include "pager/reach/scanner.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "pager/pool_state.h"
#include "pager/reach/ranges.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

namespace {
constexpr size_t kOwnBitmaps = 64;  // more cost more to clear and to read than they save
}  // namespace

Scan::Scanned Scan::Scanned::now(Region& region, bool whole, std::vector<uint64_t> only) {
  return {&region, region.buffer_id, whole, region.stamp.load(), std::move(only), {}, {}, false,
          {}};
}

/// The jobs of a pass, as they are listed in its scratch buffer.
struct Scanner::Jobs {
  PassKernels::Scratch* scratch;
  uint64_t words;   // of a bitmap
  size_t most_own;  // regions that have a bitmap each
  uint64_t slots = 0;
  size_t count = 0;
  std::vector<std::pair<const Extent*, size_t>> of_victims;
  // A kernel may move a pointer from where the scan has not been yet to where it has: what kernels
  // use now is scanned once more, after all else.
  std::vector<kernels::PagePassJob> again;

  bool add(uint64_t address, uint64_t pages, const uint32_t* found) {
    if (slots + pages > scratch->pages) return false;
    scratch->jobs[count++] = {address, reinterpret_cast<uint64_t>(found),
                              static_cast<uint32_t>(pages), static_cast<uint32_t>(slots)};
    slots += pages;
    return true;
  }
  bool add(const Extent& extent, const uint32_t* found) {
    return add(extent.vram != nullptr ? extent.vram->alias : extent.host->alias,
               1ull << extent.order, found);
  }
  // The bitmap of the region that is listed as number `index`. The region's victims are in it as
  // well.
  uint32_t* bitmapOf(const Region& region, size_t index) {
    if (index >= most_own) return scratch->found;
    uint32_t* const bitmap = scratch->found + (2 + index) * words;
    for (const auto& [victim, job] : of_victims)
      if (victim->region == &region) scratch->jobs[job].found = reinterpret_cast<uint64_t>(bitmap);
    return bitmap;
  }
};

// A launch that gets to the region by its own pages has reached it before: only what leaves is
// looked at now.
void Scanner::listParts(Scan& scan, Region& region, const std::vector<Extent*>& victims,
                        Jobs& jobs) {
  std::vector<uint64_t> leaving;
  leaving.reserve(victims.size());
  for (const Extent* extent : victims) leaving.push_back(extent->address);
  std::sort(leaving.begin(), leaving.end());
  jobs.bitmapOf(region, scan.scanned.size());
  scan.scanned.push_back(Scan::Scanned::now(region, false, std::move(leaving)));
}

// Memory that other agents have in turns, in a pass that no victim waits for: pages that have come
// from those since they were scanned last. Kernels' writes are looked at when something is to
// leave.
void Scanner::listFromOthers(Scan& scan, Region& region, Jobs& jobs) {
  std::vector<uint64_t> come;
  const uint32_t* const bitmap = jobs.bitmapOf(region, scan.scanned.size());
  for (auto& extent : region.extents) {
    if (!extent->scan_due || !extent->mapped()) continue;
    if (!jobs.add(*extent, bitmap)) break;
    extent->scan_due = false;
    come.push_back(extent->address);
  }
  if (come.empty()) return;
  scan.scanned.push_back(Scan::Scanned::now(region, false, std::move(come)));
}

// False: it stays in the list, since launches may write it while it is scanned, or it does not fit.
bool Scanner::listRegion(Scan& scan, Region& region, const std::vector<Extent*>& victims,
                         Jobs& jobs, uint64_t floor) {
  const bool unsettled = pool_.reach.floor.pending;
  bool fits = true;
  bool whole = true;
  std::vector<uint64_t> only;
  bool rest = false;  // some of it is to be scanned again
  const size_t first_job = jobs.count;
  const uint32_t* const bitmap = jobs.bitmapOf(region, scan.scanned.size());
  for (auto& extent : region.extents) {
    if (region.by_pieces && !extent->scan_due && !region.whole_due) {
      whole = false;
      continue;
    }
    const bool victim = extent->state == ExtentState::kRetiring;
    if (extent->sealed && !victim) {  // nobody has written it
      whole = false;
      continue;
    }
    if (extent->state != ExtentState::kVram && extent->state != ExtentState::kInPlace && !victim) {
      whole &= extent->state == ExtentState::kEmpty;
      continue;
    }
    if (victim && std::find(victims.begin(), victims.end(), extent.get()) != victims.end()) {
      if (region.by_pieces) only.push_back(extent->address);
      extent->scan_due = false;
      continue;
    }
    const bool fitted = jobs.add(*extent, bitmap);
    fits &= fitted;
    if (region.shared() != nullptr && fitted) extent->scan_due = false;
    if (!region.by_pieces) continue;
    only.push_back(extent->address);
    extent->scan_due = !fitted || region.stampOf(*extent) > floor || unsettled;
    rest |= extent->scan_due;
  }
  if (region.by_pieces) region.whole_due &= !fits;
  const bool stays = !fits || (region.by_pieces ? rest : region.stamp.load() > floor) || unsettled;
  if (stays)  // may be written while it is scanned
    jobs.again.insert(jobs.again.end(), jobs.scratch->jobs + first_job,
                      jobs.scratch->jobs + jobs.count);
  else
    region.in_dirty_list = false;
  // The region's edges are found anew; of pages that are elsewhere, or may be written meanwhile,
  // the old ones stay.
  scan.scanned.push_back(
      Scan::Scanned::now(region, whole && !region.in_dirty_list, std::move(only)));
  return !stays;
}

// Any page that was written since its last scan may hold a pointer to a victim.
void Scanner::listDirty(Scan& scan, const std::vector<Extent*>& victims, Jobs& jobs,
                        uint64_t floor) {
  std::vector<Region*> still_dirty;
  const bool variables_alone =
      victims.empty() && scan.host_written.empty() && !scan.all && !scan.ahead;
  for (Region* region : pool_.reach.dirty) {
    const bool written = region->stamp.load() > floor || pool_.reach.floor.pending;
    if (variables_alone || (scan.ahead && written && !region->dead)) {
      still_dirty.push_back(region);
      continue;
    }
    if (region->isRoot() && !region->dead) {
      if (!listRoot(scan, *region, jobs.bitmapOf(*region, scan.scanned.size()), floor))
        still_dirty.push_back(region);
      continue;
    }
    if (region->dead || region->engine == nullptr) {
      region->in_dirty_list = false;
      continue;
    }
    if (region->engine != &engine_) {  // its aliases are mapped for its own device
      still_dirty.push_back(region);
      continue;
    }
    if (region->shared() != nullptr && victims.empty() && !scan.all && !scan.ahead) {
      if (std::any_of(scan.host_written.begin(), scan.host_written.end(),
                      [&](const auto& entry) { return entry.region == region; }))
        listFromOthers(scan, *region, jobs);
      still_dirty.push_back(region);
      continue;
    }
    if (region == scan.parts_of) {
      listParts(scan, *region, victims, jobs);
      still_dirty.push_back(region);
      continue;
    }
    if (!listRegion(scan, *region, victims, jobs, floor)) still_dirty.push_back(region);
  }
  pool_.reach.dirty.swap(still_dirty);
}

CUresult Scanner::begin(Scan& scan, const std::vector<Extent*>& victims, CUevent event,
                        Lock& lock) {
  scan.scratch = kernels_.freeScratch();
  scan.scope = scopeNow();
  // The bitmaps: what is named by whatever has none of its own, what variables name (where there is
  // room), then those of the first regions of scan.scanned.
  const uint64_t words = scan.scope.bitmapWords();
  const uint64_t room = PassKernels::kFoundBytes / sizeof(uint32_t) / words;  // bitmaps
  Jobs jobs{scan.scratch, words, room > 2 ? std::min<size_t>(kOwnBitmaps, room - 2) : 0, 0, 0,
            {},           {}};
  scan.hash_slots.clear();
  for (const Extent* extent : victims) {
    scan.hash_slots.push_back(static_cast<uint32_t>(jobs.slots));
    // An extent that leaves its place in host memory is hashed in VRAM, where that is a hundred
    // times as fast.
    if (extent->vram == nullptr && extent->region->by_pieces && !extent->scan_due) continue;
    if (extent->sealed) continue;  // its hash is known
    if (jobs.add(*extent, scan.scratch->found))
      jobs.of_victims.emplace_back(extent, jobs.count - 1);
  }
  const uint64_t floor = pool_.streams.completedFloor(pool_.launch_number.load());
  for (auto& entry : scan.host_written) {
    entry.stamp = entry.region->stamp.load();
    entry.host_writes = entry.region->host_writes;
    pool_.reach.markDirty(entry.region);
  }
  scan.scanned.clear();
  listDirty(scan, victims, jobs, floor);
  scan.own_bitmaps = std::min(scan.scanned.size(), jobs.most_own);
  for (const Scan::Scanned& scanned : scan.scanned) ++scanned.region->scans;
  scan.scratch->busy = true;
  add(engine_.figures().scans, jobs.slots);
  add(engine_.figures().hashed_bytes, jobs.slots * kPageBytes);
  scan.number = ++begun_;
  std::vector<kernels::ScanJob> scans =
      listVariables(scan.scratch->found + (room >= 2 ? words : 0));
  scan.scans_variables = !scans.empty();
  std::vector<kernels::ScanJob> scans_again;
  for (const Scan::Scanned& scanned : scan.scanned) {
    scans.insert(scans.end(), scanned.by_gpu.begin(), scanned.by_gpu.end());
    if (scanned.twice)
      scans_again.insert(scans_again.end(), scanned.by_gpu.begin(), scanned.by_gpu.end());
    scan.reads_roots |= scanned.region->isRoot();
  }
  scan.reads_roots |= scan.scans_variables;
  if (scan.reads_roots) ++pool_.reach.scans_of_roots;
  scan.completed = floor;
  if (const auto* const written = pool_.reach.unknown_variables.of(engine_.context());
      written != nullptr && pool_.streams.quiet(written->number)) {
    scan.variables_serial = written->serial;
    if (!scan.scans_variables)
      pool_.reach.unknown_variables.forget(engine_.context());  // the variables are gone
  }
  scanOnCpu(scan, false, lock);
  lock.unlock();
  PassKernels::Scratch& scratch = *scan.scratch;
  const kernels::ScanScope& scope = scan.scope;
  std::fill_n(scratch.found, std::min(room, 2 + scan.own_bitmaps) * words, 0u);
  CUresult result = kernels_.launchScans(scratch, 0, scans, scope);
  if (result == CUDA_SUCCESS) result = kernels_.launchPass(scratch, 0, jobs.count, scope, nullptr);
  if (result == CUDA_SUCCESS)
    result = kernels_.launchScans(scratch, scans.size(), scans_again, scope);
  if (jobs.count + jobs.again.size() <= scratch.pages) {
    std::copy(jobs.again.begin(), jobs.again.end(), scratch.jobs + jobs.count);
    if (result == CUDA_SUCCESS)
      result = kernels_.launchPass(scratch, jobs.count, jobs.again.size(), scope, event);
  } else if (result == CUDA_SUCCESS) {
    result = kernels_.launchPass(scratch, 0, jobs.count, scope, event);
  }
  lock.lock();
  return result;
}

void Scanner::abandon(Scan& scan) {
  if (scan.reads_roots) --pool_.reach.scans_of_roots;
  scan.reads_roots = false;
}

Scanner::Found Scanner::finish(Scan& scan, const std::vector<Extent*>& victims, Lock& lock) {
  const PassKernels::Scratch& scratch = *scan.scratch;
  Found result;
  // The hashes before findEdges uses the buffer again.
  for (size_t v = 0; v < victims.size(); ++v) {
    result.hashes.push_back(
        victims[v] == nullptr
            ? ContentHash{}
            : kernels::combineHashes(scratch.hashes + scan.hash_slots[v], 1u << victims[v]->order));
  }
  const uint64_t words = scan.scope.bitmapWords();
  const auto some = [words](const uint32_t* found) {
    return std::any_of(found, found + words, [](uint32_t bits) { return bits != 0; });
  };
  std::vector<uint32_t> named;  // what some page or root names, where any does
  const bool others_name = some(scratch.found);
  if (others_name) named.assign(scratch.found, scratch.found + words);
  std::vector<uint64_t>& news = result.news;
  if (scan.scans_variables && !engine_.broken()) {  // before findEdges uses the bitmap again
    const bool apart = 2 * words * sizeof(uint32_t) <= PassKernels::kFoundBytes;
    noteVariables(scan, scratch.found + (apart ? words : 0), news);
  }
  scanOnCpu(scan, true, lock);
  noteBefore(scan);
  for (size_t r = 0; r < scan.own_bitmaps; ++r) {
    const uint32_t* const found = scratch.found + (2 + r) * words;
    if (!some(found)) {
      forgetEdges(scan.scanned[r]);
      continue;
    }
    named.resize(words);
    for (uint64_t w = 0; w < words; ++w) named[w] |= found[w];
    takeEdges(scan.scanned[r], scan.scope, found, news);
  }
  if (others_name) {
    findEdges(scan, news, lock);
  } else {
    for (size_t r = scan.own_bitmaps; r < scan.scanned.size(); ++r) forgetEdges(scan.scanned[r]);
  }
  noteFoundOnCpu(scan, news);
  abandon(scan);
  scan.scans_variables = false;
  for (const Scan::Scanned& scanned : scan.scanned)
    if (scanned.region->buffer_id == scanned.buffer_id && scanned.region->scans > 0)
      --scanned.region->scans;
  result.any = !named.empty();
  if (result.any) noteMoved(scan.scope, named, news);
  lookThroughNews(news);
  if (result.any || !news.empty()) spreadStamps();
  // Copies into these had completed when the pass began; none has come since if the stamp is the
  // same.
  for (const auto& entry : scan.host_written) {
    const bool same =
        entry.region->by_pieces || entry.region->isRoot() || entry.region->shared() != nullptr
            ? entry.region->host_writes == entry.host_writes
            : entry.region->stamp.load() == entry.stamp;
    if (same) entry.region->host_written = false;
  }
  return result;
}

void Scanner::ends(Scan& scan) {
  scan.scratch->busy = false;
  ended_ = scan.number;
}

uint32_t Scanner::markReachedBy(const std::vector<uint64_t>& news) {
  const uint32_t mark = pool_.reach.newRegionMark();
  std::vector<Region*> named;
  FollowedRanges ranges;
  for (const uint64_t address : news)
    if (Region* const region = pool_.reach.liveAt(address); region != nullptr)
      named.push_back(region);
  while (!named.empty()) {
    Region* region = named.back();
    named.pop_back();
    if (region->dead || region->mark == mark) continue;
    region->mark = mark;
    // A root that can't be looked through leads anywhere.
    if (region->isRoot() && pool_.reach.leadsAnywhere(*region)) return 0;
    for (const Edge& edge : region->edges)
      if (ranges.isNew(edge))
        pool_.reach.forEdge(edge, [&](Region& target) { named.push_back(&target); });
    pool_.reach.forFixed(*region, [&](Region* target) {
      if (target != nullptr) named.push_back(target);
    });
  }
  return mark;
}

}  // namespace olpager::pager
