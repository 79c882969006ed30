// Makes edges of the addresses that a pass found (scanner.h).
#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "pager/pool_state.h"
#include "pager/reach/ranges.h"
#include "pager/reach/scanner.h"
#include "pager/residency/engine.h"

namespace olpager::pager {

namespace {
constexpr unsigned kMissedRoots = 3;  // passes, see noteVariables
}  // namespace

bool Scanner::hasDirty() const {
  return std::any_of(
      pool_.reach.dirty.begin(), pool_.reach.dirty.end(), [this](const Region* region) {
        return !region->dead &&
               (region->isRoot() ? pool_.reach.scannerOf(*region) : region->engine) == &engine_;
      });
}

bool Scanner::mayBeNamedUnseen(const Region& region) const {
  return pool_.reach.roots.hasVariables(engine_.context()) || pool_.reach.floor.pending ||
         std::any_of(pool_.reach.dirty.begin(), pool_.reach.dirty.end(),
                     [&](const Region* dirty) { return !dirty->dead && dirty != &region; });
}

// The addresses that a pass looks for: the used part of the range, and the span of the roots.
kernels::ScanScope Scanner::scopeNow() const {
  kernels::ScanScope scope{pool_.book.map().base(), pool_.book.highWaterPages(), 0, 0};
  const AddressSpan& outside = pool_.reach.roots.span();
  if (outside.bytes() == 0) return scope;
  const uint64_t end = outside.low() + outside.bytes();
  for (;; ++scope.outside_shift) {
    scope.outside_base = outside.low() >> scope.outside_shift << scope.outside_shift;
    const uint64_t granules = ((end - scope.outside_base - 1) >> scope.outside_shift) + 1;
    scope.outside_granules = static_cast<uint32_t>(granules);
    if (granules <= PassKernels::kGranules) return scope;
  }
}

// Calls visit(region, address, bytes) for what a bitmap's bits stand for: regions, and roots, of
// which a granule may hold several. With nullptr for addresses where nothing lies, and for
// granules, in which a pointer may mean what has been freed.
template <typename Visit>
void Scanner::forNamed(const kernels::ScanScope& scope, const uint32_t* found, Visit visit) const {
  for (uint64_t w = 0; w < scope.bitmapWords(); ++w) {
    for (uint32_t bits = found[w]; bits != 0; bits &= bits - 1) {
      const uint64_t bit = w * 32 + static_cast<uint64_t>(__builtin_ctz(bits));
      const uint64_t address = scope.addressOf(bit);
      if (!scope.isOutside(bit)) {
        Region* const region = pool_.book.find(address);
        visit(region == nullptr || region->dead ? nullptr : region, address, kPageBytes);
        continue;
      }
      const uint64_t end = address + (1ull << scope.outside_shift);
      pool_.reach.roots.forAt(address, end - address, [&](uint64_t at, const Root& root) {
        if (root.region != nullptr && !root.region->dead) visit(root.region, at, root.bytes);
      });
      // Without the range, which a wide granule may overlap.
      const uint64_t low = pool_.book.map().base(), high = low + pool_.book.map().size();
      if (address < low) visit(nullptr, address, std::min(end, low) - address);
      if (end > high) visit(nullptr, std::max(address, high), end - std::max(address, high));
    }
  }
}

// All of the context's variables.
std::vector<kernels::ScanJob> Scanner::listVariables(uint32_t* found) const {
  std::vector<kernels::ScanJob> jobs;
  for (const auto& [address, root] : pool_.reach.roots) {
    if (root.kind != RootKind::kVariable || root.context != engine_.context()) continue;
    const uint64_t first = (address + 7) / 8 * 8;
    const uint64_t end = address + root.bytes;
    if (first + 8 <= end)
      jobs.push_back({first, reinterpret_cast<uint64_t>(found), (end - first) / 8});
  }
  return jobs;
}

// A root that launches have reached since its last scan takes part in the pass. False: it stays in
// the list.
bool Scanner::listRoot(Scan& scan, Region& region, uint32_t* found, uint64_t floor) {
  if (!region.root->scannable) {  // an operation that reaches it reaches all
    region.in_dirty_list = false;
    return true;
  }
  if (pool_.reach.scannerOf(region) != &engine_) return false;
  const bool quiet = region.stamp.load() <= floor && !pool_.reach.floor.pending;
  region.in_dirty_list = !quiet;
  Scan::Scanned scanned{&region, region.buffer_id, quiet, region.stamp.load(), {}, {},
                        {},      !quiet,           {}};
  std::vector<ByteRun> by_gpu;
  rootRuns(region, scanned.by_cpu, by_gpu);
  constexpr size_t kMostRuns = 64;
  if (by_gpu.size() > kMostRuns) by_gpu = {{by_gpu.front().begin, by_gpu.back().end}};
  for (const ByteRun& run : by_gpu)
    scanned.by_gpu.push_back(
        {run.begin, reinterpret_cast<uint64_t>(found), (run.end - run.begin) / 8});
  scan.scanned.push_back(std::move(scanned));
  return quiet;
}

// Without the mutex, which is released: ReachGraph::scans_of_roots keeps
// the memory there.
void Scanner::scanOnCpu(Scan& scan, bool again, Lock& lock) {
  if (!scan.reads_roots) return;
  std::vector<std::vector<uint64_t>> found(scan.scanned.size());
  std::vector<bool> gone(scan.scanned.size(), false);
  const AddressSpan& outside = pool_.reach.roots.span();
  const uint64_t base = pool_.book.map().base(), size = pool_.book.map().size();
  lock.unlock();
  for (size_t i = 0; i < scan.scanned.size(); ++i) {
    if (again && !scan.scanned[i].twice) continue;
    for (const ByteRun& run : scan.scanned[i].by_cpu) {
      const auto note = [&](uint64_t word) { found[i].push_back(word); };
      const bool there = forPieces(run, [&](const void* data, uint64_t bytes) {
        kernels::scanWords(data, bytes, base, size, note);
        kernels::scanWords(data, bytes, outside.low(), outside.bytes(), note);
      });
      if (!there) gone[i] = true;
    }
  }
  lock.lock();
  for (size_t i = 0; i < scan.scanned.size(); ++i) {
    Region& region = *scan.scanned[i].region;
    if (gone[i] && !region.dead && region.buffer_id == scan.scanned[i].buffer_id)
      region.root->scannable = false;
    std::sort(found[i].begin(), found[i].end());  // a table names the same again and again
    found[i].erase(std::unique(found[i].begin(), found[i].end()), found[i].end());
    scan.scanned[i].found.insert(scan.scanned[i].found.end(), found[i].begin(), found[i].end());
  }
}

// Makes edges of the addresses that the CPU found, as of those that the GPU found.
void Scanner::noteFoundOnCpu(const Scan& scan, std::vector<uint64_t>& news) {
  for (const Scan::Scanned& scanned : scan.scanned) {
    Region& region = *scanned.region;
    if (region.dead || region.buffer_id != scanned.buffer_id) continue;
    for (const uint64_t address : scanned.found)
      if (pool_.reach.add(region, address) && !wasNamed(scanned, address)) news.push_back(address);
  }
}

// True if the region named the address before this scan. All edges of a region are forgotten before
// a whole scan notes them anew, so an old address is no news.
bool Scanner::wasNamed(const Scan::Scanned& scanned, uint64_t address) const {
  const Region* const target = pool_.reach.liveAt(address);
  if (target == scanned.region) return scanned.named_itself;
  return std::any_of(scanned.before.begin(), scanned.before.end(), [&](const Edge& edge) {
    const bool holds = address >= edge.begin && address - edge.begin < edge.bytes;
    return holds &&
           (edge.buffer_id == 0 || (target != nullptr && edge.buffer_id == target->buffer_id));
  });
}

void Scanner::noteBefore(Scan& scan) {
  for (Scan::Scanned& scanned : scan.scanned) {
    const Region& region = *scanned.region;
    if (scanned.found.empty() || region.dead || region.buffer_id != scanned.buffer_id) continue;
    scanned.before = region.edges;
    scanned.named_itself = region.names_itself;
  }
}

// Notes the regions that `region` names by now and did not `before`.
void Scanner::noteNews(const Region& region, const std::vector<Edge>& before,
                       std::vector<uint64_t>& news) const {
  for (const Edge& edge : region.edges)
    if (!std::binary_search(before.begin(), before.end(), edge))
      pool_.reach.forEdge(edge, [&](const Region& target) { news.push_back(target.base); });
}

// Roots that something has come to name, as far as anybody knew: launches in flight may follow what
// the CPU has put there.
void Scanner::lookThroughNews(std::vector<uint64_t>& news) {
  for (size_t i = 0; i < news.size(); ++i) {
    Region* region = pool_.reach.liveAt(news[i]);
    if (region == nullptr || !region->isRoot()) continue;
    pool_.reach.markDirty(region);
    const std::vector<Edge> before = region->edges;
    if (!pool_.reach.refresh(*region)) continue;  // spare() sees to it
    noteNews(*region, before, news);
  }
}

// Takes over what the variables name.
void Scanner::noteVariables(const Scan& scan, const uint32_t* found, std::vector<uint64_t>& news) {
  std::map<std::pair<Edge, uint64_t>, size_t> known;  // edges of this engine's, with their pages
  for (size_t i = 0; i < pool_.reach.of_variables.size(); ++i) {
    RootEdge& root = pool_.reach.of_variables[i];
    if (root.keeper != &engine_) continue;
    ++root.missed;
    known[{root.edge, root.page}] = i;
  }
  forNamed(scan.scope, found, [&](Region* target, uint64_t address, uint64_t bytes) {
    const Edge edge = target != nullptr ? edgeTo(*target) : Edge{address, bytes, 0};
    const uint64_t named = target != nullptr && target->by_pieces ? address : 0;
    const auto [at, fresh] = known.try_emplace({edge, named}, pool_.reach.of_variables.size());
    if (fresh) pool_.reach.of_variables.push_back({edge, &engine_, 0, named});
    pool_.reach.of_variables[at->second].missed = 0;
    if (!fresh || target == nullptr) return;
    news.push_back(address);
    const uint64_t newest = pool_.launch_number.load();
    if (target->by_pieces) stampPage(*target, named, newest);
    raiseStamps(*target, newest, newest);
  });
  // A kernel that ran meanwhile may have moved a pointer from where the scan had not been yet to
  // where it had: what was not found is forgotten when nothing ran, or when it was missed again and
  // again, each time by a pass that began when all that had run beside the one before was over.
  const uint64_t newest = pool_.launch_number.load();
  const bool alone = scan.completed >= newest;
  const bool later = scan.completed >= variables_seen_;
  if (later) variables_seen_ = newest;
  std::erase_if(pool_.reach.of_variables, [&](RootEdge& edge) {
    if (edge.keeper != &engine_ || edge.missed == 0) return false;
    if (!later) --edge.missed;
    return alone || edge.missed >= kMissedRoots;
  });
  const auto* const written = pool_.reach.unknown_variables.of(engine_.context());
  if (written != nullptr && written->serial == scan.variables_serial)
    pool_.reach.unknown_variables.forget(engine_.context());
}

// Takes the edges of a region that was in the pass from `found`.
void Scanner::takeEdges(const Scan::Scanned& scanned, const kernels::ScanScope& scope,
                        const uint32_t* found, std::vector<uint64_t>& news) {
  Region& region = *scanned.region;
  if (region.dead || region.buffer_id != scanned.buffer_id) return;
  const std::vector<Edge> before = region.edges;
  forgetEdges(scanned);
  forNamed(scope, found, [&](const Region* target, uint64_t address, uint64_t bytes) {
    if (target != nullptr)
      pool_.reach.add(region, *target, address);
    else
      addEdge(region, Edge{address, bytes, 0});
  });
  noteNews(region, before, news);
}

// Some page of the regions without bitmaps of their own names another region: finds out which, one
// scan for each of them.
void Scanner::findEdges(Scan& scan, std::vector<uint64_t>& news, Lock& lock) {
  const PassKernels::Scratch& scratch = *scan.scratch;
  const kernels::ScanScope scope = scopeNow();
  const uint64_t words = scope.bitmapWords();
  const size_t at_once =
      std::max<size_t>(1, PassKernels::kFoundBytes / 4 / std::max<uint64_t>(1, words));
  for (size_t from = scan.own_bitmaps; from < scan.scanned.size() && !engine_.broken();
       from += at_once) {
    const size_t upto = std::min(scan.scanned.size(), from + at_once);
    size_t jobs = 0;
    uint64_t slots = 0;
    std::vector<kernels::ScanJob> scans;
    for (size_t r = from; r < upto; ++r) {
      Region* region = scan.scanned[r].region;
      if (region->dead || region->buffer_id != scan.scanned[r].buffer_id) continue;
      uint32_t* found = scratch.found + (r - from) * words;
      for (kernels::ScanJob job : scan.scanned[r].by_gpu) {
        job.found = reinterpret_cast<uint64_t>(found);
        scans.push_back(job);
      }
      const auto& only = scan.scanned[r].only;
      for (auto& extent : region->extents) {
        const bool some = region->by_pieces || !only.empty();
        if (some && !std::binary_search(only.begin(), only.end(), extent->address)) continue;
        if (!extent->mapped() || slots + (1ull << extent->order) > scratch.pages) {
          // Another batch took it away since the pass: what it names must not be forgotten.
          scan.scanned[r].whole &= extent->state == ExtentState::kEmpty;
          continue;
        }
        scratch.jobs[jobs++] = {extent->vram != nullptr ? extent->vram->alias : extent->host->alias,
                                reinterpret_cast<uint64_t>(found), 1u << extent->order,
                                static_cast<uint32_t>(slots)};
        slots += 1ull << extent->order;
      }
    }
    lock.unlock();
    std::fill_n(scratch.found, (upto - from) * words, 0u);
    CUresult result = kernels_.launchScans(scratch, 0, scans, scope);
    if (result == CUDA_SUCCESS) result = kernels_.launchPass(scratch, 0, jobs, scope, nullptr);
    if (result == CUDA_SUCCESS) result = kernels_.synchronize();
    lock.lock();
    if (result != CUDA_SUCCESS) engine_.lost(result);
    for (size_t r = from; r < upto; ++r)
      takeEdges(scan.scanned[r], scope, scratch.found + (r - from) * words, news);
  }
}

// Forgets the edges from before a scan of the whole region. If a launch or copy has come meanwhile,
// it has added edges, and nothing is forgotten.
void Scanner::forgetEdges(const Scan::Scanned& scanned) {
  Region& region = *scanned.region;
  if (region.dead || region.buffer_id != scanned.buffer_id || !scanned.whole ||
      region.in_dirty_list || region.stamp.load() != scanned.stamp)
    return;
  region.host_written = region.names_itself = false;
  pager::forgetEdges(region);
}

// Notes regions that were named when the pass looked, and that nothing names any more: the pointer
// has moved since to an unknown place.
void Scanner::noteMoved(const kernels::ScanScope& scope, const std::vector<uint32_t>& named,
                        std::vector<uint64_t>& news) {
  std::unordered_set<const Region*> known;
  const auto note = [&](const Edge& edge) {
    pool_.reach.forEdge(edge, [&](const Region& target) { known.insert(&target); });
  };
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    const Region* region = pool_.book.regions.at(id);
    if (region->dead) continue;
    for (const Edge& edge : region->edges) note(edge);
    if (region->names_itself) known.insert(region);
  }
  for (const RootEdge& root : pool_.reach.of_variables) note(root.edge);
  forNamed(scope, named.data(), [&](const Region* target, uint64_t address, uint64_t) {
    if (target != nullptr && !target->by_pieces && !known.contains(target)) news.push_back(address);
  });
}

// A launch that reaches a region reaches the regions that it names: stamps follow the edges.
void Scanner::spreadStamps() {
  std::vector<Region*> raised;
  for (uint32_t id = 1; id < pool_.book.regions.end(); ++id) {
    Region* region = pool_.book.regions.at(id);
    if (!region->dead && leadsOn(*region)) raised.push_back(region);
  }
  FollowedRanges ranges;
  while (!raised.empty()) {
    Region* region = raised.back();
    raised.pop_back();
    const uint64_t stamp = region->stamp.load();
    const auto raise = [&](Region* target) {
      if (!target->dead && raiseStamps(*target, stamp, region->followed) && leadsOn(*target))
        raised.push_back(target);
    };
    // A root that can't be looked through leads anywhere.
    if (region->isRoot() && pool_.reach.leadsAnywhere(*region)) {
      pool_.reach.floor.raise(stamp);
      pool_.reach.floor.found = std::max(pool_.reach.floor.found, region->followed);
    }
    pool_.reach.forFixed(*region, [&](Region* target) {
      if (target != nullptr) raise(target);
    });
    for (const Edge& edge : region->edges) {
      if (!ranges.isNew(edge, stamp, region->followed)) continue;
      pool_.reach.forEdge(edge, [&](Region& target) {
        if (target.by_pieces) target.whole_stamp = std::max(target.whole_stamp, stamp);
        raise(&target);
      });
    }
    for (const uint64_t page : region->piece_edges) {
      Region* target = pool_.book.find(page);
      if (target == nullptr || target->dead) continue;
      if (target->by_pieces) stampPage(*target, page, stamp);
      raise(target);
    }
  }
}

// A launch with that number reaches a page of an arena that moves by pieces.
void Scanner::stampPage(Region& region, uint64_t page, uint64_t stamp) {
  region.arena->overlapping(page, kPageBytes, [&](const Piece& piece) {
    const ExtentRange range = extentsAt(region, piece.begin, piece.end - piece.begin);
    for (size_t e = range.first; e < range.last; ++e)
      region.extents[e]->stamp = std::max(region.extents[e]->stamp, stamp);
  });
}

// Launches up to this number may be writing what is to be scanned of a region that the host wrote.
uint64_t Scanner::stampToScan(const Region& region) {
  if (region.isRoot()) return region.root->written;
  if (!region.by_pieces || region.whole_due) return region.stamp.load();
  uint64_t stamp = region.whole_stamp;
  for (const auto& extent : region.extents)
    if (extent->scan_due) stamp = std::max(stamp, extent->stamp);
  return stamp;
}

}  // namespace olpager::pager
