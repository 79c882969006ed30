// One device's scanner: the input of a pass, and the use of its findings. The scanner turns pages
// and roots into edges of the reach graph. The engine decides when a pass begins and what leaves
// VRAM behind it (residency/eviction.cpp).
//
// A pass, from the scanner's side:
//   begin   lists what may have been written since its last scan, the victims among it, and
//           launches the kernels that hash and scan
//   (the GPU works; launches go on, and may write what was read already)
//   finish  turns what the pass found into edges, and says which addresses something has come to
//           name: launches in flight may follow those
//
// Passes of one scanner end in the order in which they began: a pass's findings are known before a
// later one unmaps anything.
//
// Locks: everything runs under PoolState::mutex. Functions that take it as `lock` release it around
// driver calls and while the CPU reads roots (ReachGraph::scans_of_roots keeps those there).
#pragma once

#include <cstdint>
#include <vector>

#include "pager/kernels/hash_and_scan.h"
#include "pager/reach/edge.h"
#include "pager/reach/roots.h"
#include "pager/residency/pass_kernels.h"
#include "pager/space/region.h"

namespace olpager::pager {

class Engine;
struct PoolState;

/// One pass and its input. The engine fills in why it is made; the scanner the rest.
struct Scan {
  /// A region that the host wrote, with its figures as the scan began.
  struct HostWritten {
    Region* region;
    uint64_t stamp;
    uint32_t host_writes;
  };
  /// A region whose pages the pass scans.
  struct Scanned {
    Region* region;
    uint64_t buffer_id;          // as of then: it may be freed and reused meanwhile
    bool whole;                  // every page of it, and no launch in flight writes it
    uint64_t stamp;              // as of then: a launch since may have written it
    std::vector<uint64_t> only;  // of an arena that moves by pieces: the extents, by address
    // For a root: the parts that the GPU scans and those that the CPU does, once more when the pass
    // is over if kernels use the root.
    std::vector<kernels::ScanJob> by_gpu;
    std::vector<ByteRun> by_cpu;
    bool twice = false;
    std::vector<uint64_t> found;  // by the CPU: addresses
    // Edges before the pass, for a region in which the CPU found something.
    std::vector<Edge> before{};
    bool named_itself = false;

    /// For a region that is no root, as it is now.
    static Scanned now(Region& region, bool whole, std::vector<uint64_t> only);
  };

  // --- why the pass is made ----------------------------------------------------------------------
  std::vector<HostWritten> host_written;  // a launch waits for these
  bool for_variables = false;             // a launch waits for the module variables
  bool all = false;                       // another engine waits for all that is dirty
  bool ahead = false;                     // nobody waits: what is dirty, and no launch writes now
  /// The victims are parts of this region, which change place (swap.cpp) or go to another agent
  /// (give_away.cpp). Nothing else of the region is scanned.
  Region* parts_of = nullptr;
  /// Only the code that wants victims out of VRAM waits for it.
  bool forVictimsOnly() const { return host_written.empty() && !for_variables && !all && !ahead; }

  // --- under way ---------------------------------------------------------------------------------
  uint64_t number = 0;  // of the scanner's passes
  PassKernels::Scratch* scratch = nullptr;
  kernels::ScanScope scope;
  std::vector<uint32_t> hash_slots;  // of each victim's first page
  std::vector<Scanned> scanned;
  size_t own_bitmaps =
      0;  // the first so many of `scanned` have a bitmap each, the others share one
  bool scans_variables = false;
  bool reads_roots = false;       // variables or others: nobody takes them away meanwhile
  uint64_t variables_serial = 0;  // of the newest write to variables that the pass sees
  uint64_t completed = 0;         // all launches up to this one had completed when the pass began
};

class Scanner {
 public:
  Scanner(PoolState& pool, Engine& engine, PassKernels& kernels)
      : pool_(pool), engine_(engine), kernels_(kernels) {}

  /// True if something of the device's is to be scanned.
  bool hasDirty() const;
  /// True if memory that nobody has scanned may lead to the region, its own pages apart: memory of
  /// any device, or module variables.
  bool mayBeNamedUnseen(const Region& region) const;
  uint64_t begun() const { return begun_; }
  uint64_t ended() const { return ended_; }
  /// The pass is the one that ends next.
  bool isNext(const Scan& scan) const { return scan.number == ended_ + 1; }
  /// Launches up to this number may be writing what is to be scanned of a region that the host
  /// wrote.
  static uint64_t stampToScan(const Region& region);

  /// Launches a pass over the victims and over dirty memory; `event` comes when it is over. A
  /// scratch buffer is free. Returns the driver's result.
  CUresult begin(Scan& scan, const std::vector<Extent*>& victims, CUevent event, Lock& lock);
  /// Nobody will finish the pass.
  void abandon(Scan& scan);

  struct Found {
    bool any = false;                 // some page or root named something
    std::vector<uint64_t> news;       // addresses that something names of which that was not known
    std::vector<ContentHash> hashes;  // of each victim
  };
  /// The pass is over. `victims`: as they were given, nullptr where one was taken back.
  Found finish(Scan& scan, const std::vector<Extent*>& victims, Lock& lock);
  /// Launches that were made before the pass ended did not know that something names `news`: they
  /// may follow it, or have put it elsewhere. Sets a mark in the regions that they may reach by
  /// that, and returns it; 0: they may reach anything.
  uint32_t markReachedBy(const std::vector<uint64_t>& news);
  /// The pass is over, and its findings are known.
  void ends(Scan& scan);

 private:
  struct Jobs;
  kernels::ScanScope scopeNow() const;
  template <typename Visit>
  void forNamed(const kernels::ScanScope& scope, const uint32_t* found, Visit visit) const;
  void listDirty(Scan& scan, const std::vector<Extent*>& victims, Jobs& jobs, uint64_t floor);
  bool listRegion(Scan& scan, Region& region, const std::vector<Extent*>& victims, Jobs& jobs,
                  uint64_t floor);
  void listParts(Scan& scan, Region& region, const std::vector<Extent*>& victims, Jobs& jobs);
  void listFromOthers(Scan& scan, Region& region, Jobs& jobs);
  bool listRoot(Scan& scan, Region& region, uint32_t* found, uint64_t floor);
  std::vector<kernels::ScanJob> listVariables(uint32_t* found) const;
  void scanOnCpu(Scan& scan, bool again, Lock& lock);
  void noteFoundOnCpu(const Scan& scan, std::vector<uint64_t>& news);
  bool wasNamed(const Scan::Scanned& scanned, uint64_t address) const;
  static void noteBefore(Scan& scan);
  void noteNews(const Region& region, const std::vector<Edge>& before,
                std::vector<uint64_t>& news) const;
  void lookThroughNews(std::vector<uint64_t>& news);
  void noteVariables(const Scan& scan, const uint32_t* found, std::vector<uint64_t>& news);
  void takeEdges(const Scan::Scanned& scanned, const kernels::ScanScope& scope,
                 const uint32_t* found, std::vector<uint64_t>& news);
  void findEdges(Scan& scan, std::vector<uint64_t>& news, Lock& lock);
  static void forgetEdges(const Scan::Scanned& scanned);
  void noteMoved(const kernels::ScanScope& scope, const std::vector<uint32_t>& named,
                 std::vector<uint64_t>& news);
  void spreadStamps();
  static void stampPage(Region& region, uint64_t page, uint64_t stamp);

  PoolState& pool_;
  Engine& engine_;
  PassKernels& kernels_;
  uint64_t begun_ = 0, ended_ = 0;
  // Number of the newest launch when the last pass over the variables ended.
  uint64_t variables_seen_ = 0;
};

}  // namespace olpager::pager
