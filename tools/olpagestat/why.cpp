#include "tools/olpagestat/why.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/size.h"
#include "tools/olpagestat/rails.h"
#include "tools/olpagestat/report.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;
using pager::Counters;
using pager::DeviceCounters;
using pager::DeviceWhy;
using pager::Limit;
using pager::valueOf;

// A smaller cost is not worth a line.
constexpr double kLeastShare = 0.02;
constexpr double kLeastSeconds = 0.01;
constexpr uint64_t kFew = 50;  // fewer launches than one of so many are an exception
constexpr double kNs = 1e9;
constexpr double kGib = 1ull << 30;

std::string seconds(double value) {
  if (value >= 100) return base::format("{:.0f} s", value);
  if (value >= 1) return base::format("{:.1f} s", value);
  return base::format("{:.0f} ms", value * 1000);
}

std::string percent(double share) { return base::format("{:.0f}%", share * 100); }

/// Programs choose it.
std::string kernelName(const char* name) {
  constexpr size_t kMost = 48;
  std::string text = printableName(name);
  if (text.size() > kMost) {
    text.resize(kMost);
    text += "...";
  }
  return text;
}

std::string rate(double bytes_per_second) {
  return base::format("{:.{}f} GB/s", bytes_per_second / 1e9, bytes_per_second >= 1e10 ? 0 : 2);
}

/// One device's figures, and what follows from several of them.
struct Device {
  const DeviceCounters& figures;
  const DeviceWhy& why;
  unsigned ordinal;

  double limited(Limit limit) const {
    return static_cast<double>(valueOf(why.limited_ns[static_cast<unsigned>(limit)])) / kNs;
  }
  double waiting() const { return static_cast<double>(valueOf(why.waiting_ns)) / kNs; }
  double onLink() const { return limited(Limit::kLinkIn) + limited(Limit::kLinkOut); }
  /// The share of launches' waiting that costs the run something: while the GPU has other kernels
  /// of the program to run, it loses nothing. 1 where it was looked at too seldom.
  double exposed() const {
    constexpr uint64_t kLeastLooks = 20;
    if (valueOf(why.looks) < kLeastLooks || waiting() <= 0) return 1;
    const auto idle = static_cast<double>(valueOf(why.idle_pages_ns) + valueOf(why.idle_hop_ns) +
                                          valueOf(why.idle_other_ns));
    return std::min(1.0, idle / kNs / waiting());
  }
  /// A sentence on that; "" where nearly all of it costs something.
  std::string hidden(double waited) const {
    constexpr double kNearlyAll = 0.9;
    if (exposed() >= kNearlyAll) return "";
    return base::format(" During about {} of that the GPU had other kernels of the program to run.",
                        seconds(waited * (1 - exposed())));
  }
  /// Bytes a second while copies were under way; nullopt: there were too few.
  std::optional<double> linkRate() const {
    const auto ns = static_cast<double>(valueOf(why.link_in_ns));
    const auto bytes = static_cast<double>(valueOf(why.link_in_bytes));
    if (ns <= 0 || bytes <= 0) return std::nullopt;
    return bytes * kNs / ns;
  }
  uint64_t extentsIn() const {
    return valueOf(figures.demand_faults) + valueOf(figures.prefetches_issued);
  }
};

class Finder {
 public:
  Finder(const Counters& counters, std::optional<double> run_seconds)
      : counters_(counters), run_(run_seconds) {
    all_.run_seconds = run_seconds;
  }

  Findings find() {
    for (unsigned i = 0; i < counters_.devicesInUse(); i++) {
      const Device device{counters_.devices[i], counters_.why.devices[i], i};
      budget(device);
      hostTier(device);
      memservers(device);
      link(device);
      linkRate(device);
      inPlace(device);
      reachingAll(device);
      graphs(device);
      sparse(device);
      ownThread(device);
      unknownWaits(device);
    }
    hostMemory();
    pinned();
    hops();
    pingPong();
    gpu();
    notMeasured();
    std::stable_sort(all_.found.begin(), all_.found.end(), [](const Finding& a, const Finding& b) {
      return a.seconds.value_or(-1) > b.seconds.value_or(-1);
    });
    return std::move(all_);
  }

 private:
  bool matters(double cost) const {
    return cost >= kLeastSeconds && (!run_ || cost >= kLeastShare * *run_);
  }
  std::optional<unsigned> named(const Device& device) const {
    return counters_.devicesInUse() > 1 ? std::optional(device.ordinal) : std::nullopt;
  }
  void add(const char* id, const Device& device, double cost, std::string title,
           std::string evidence, std::string action) {
    const bool estimated = !device.hidden(cost).empty();
    all_.found.push_back({id, named(device), cost, estimated, std::move(title), std::move(evidence),
                          std::move(action)});
  }

  // More is used than VRAM may hold, and the link is what launches wait for.
  void budget(const Device& device) {
    const double waited = device.onLink(), cost = waited * device.exposed();
    const uint64_t vram = valueOf(device.figures.vram_budget_bytes);
    const uint64_t allocated = valueOf(device.figures.allocated_bytes.peak);
    if (!matters(cost) || vram == 0) return;
    if (allocated <= vram) return copiesAllTheSame(device, waited, allocated, vram);
    std::string evidence = base::format(
        "Launches waited {} for copies between host RAM and VRAM.{} The program had {} allocated; "
        "the budget is {} of VRAM.",
        seconds(waited), device.hidden(waited), formatSize(allocated), formatSize(vram));
    const uint64_t round = valueOf(device.why.round_bytes);
    const uint64_t kept = valueOf(device.why.round_kept_bytes);
    std::string more;
    if (round > kept) {
      const uint64_t streams = round - kept;
      evidence += base::format(" A round of the program uses {}; {} of it stay in VRAM.",
                               formatSize(round), formatSize(kept));
      const auto came = static_cast<double>(valueOf(device.figures.fetched_bytes));
      const double rounds = std::max(1.0, came / static_cast<double>(streams));
      const double share = std::min(1.0, kGib / static_cast<double>(streams));
      const std::string by =
          streams < kGib ? formatSize(streams) + " more" : std::string("each GiB more");
      more = base::format(": {} would have taken about {} off the run, {} off a round", by,
                          seconds(cost * share), seconds(cost * share / rounds));
    } else {
      evidence += " No round has been learned, so what more VRAM would bring is not known.";
    }
    add("budget", device, cost, "the VRAM budget is smaller than what the program uses",
        std::move(evidence),
        base::format("raise --vram (OL_VRAM) where the card has more{}", more));
  }

  // All fits, and launches wait for copies: more VRAM would bring nothing.
  void copiesAllTheSame(const Device& device, double waited, uint64_t allocated, uint64_t vram) {
    add("copies", device, waited * device.exposed(),
        "launches wait for copies though all fits VRAM",
        base::format("Launches waited {} for copies between host RAM and VRAM.{} The program had "
                     "at most {} allocated, and the budget is {} of VRAM: what came was managed "
                     "memory that the CPU had used, or the budget was smaller before.",
                     seconds(waited), device.hidden(waited), formatSize(allocated),
                     formatSize(vram)),
        "ask for managed memory ahead of the launches that use it (cudaMemPrefetchAsync), or copy "
        "what the CPU has made (cudaMemcpyAsync)");
  }

  // Pages that do not fit host RAM go to memservers and have to come back.
  void hostTier(const Device& device) {
    const double waited = device.limited(Limit::kMemservers), cost = waited * device.exposed();
    const uint64_t limit = valueOf(counters_.host_limit_bytes);
    const uint64_t used = valueOf(counters_.host_used_bytes);
    const uint64_t remote = valueOf(device.figures.remote_bytes.peak);
    constexpr uint64_t kFull = 8;  // all but an eighth is in use
    if (!matters(cost) || limit == 0 || remote == 0 || used < limit - limit / kFull) return;
    add("host-tier", device, cost, "host RAM for pages is full",
        base::format("Launches waited {} for {}.{} Of {} of host RAM {} are in use; {} "
                     "went to {} and {} came back, and at most {} were only there.",
                     seconds(waited), below(), device.hidden(waited), formatSize(limit),
                     formatSize(used), formatSize(valueOf(device.figures.remote_out)), below(),
                     formatSize(valueOf(device.figures.remote_in)), formatSize(remote)),
        base::format("raise --host (OL_HOST) by {} where this machine has it", formatSize(remote)));
  }

  // The tiers below host RAM.
  const char* below() const {
    if (valueOf(counters_.disk.capacity_bytes) == 0) return "memservers";
    return valueOf(counters_.memserver_bytes) == 0 ? "disks" : "memservers and disks";
  }

  // Disks are what launches wait for.
  void disks(const Device& device, double waited, double cost) {
    add("disks", device, cost, "launches wait for disks",
        base::format("Launches waited {} for disks.{} {} were read and {} written.",
                     seconds(waited), device.hidden(waited),
                     formatSize(valueOf(counters_.disk.read_bytes)),
                     formatSize(valueOf(counters_.disk.written_bytes))),
        "raise --host (OL_HOST) where this machine has more RAM, or add disks: several read at "
        "once");
  }

  // Memservers are what launches wait for: the slowest of them, and how much of what it can do.
  void memservers(const Device& device) {
    const double waited = device.limited(Limit::kMemservers), cost = waited * device.exposed();
    if (!matters(cost)) return;
    if (valueOf(counters_.disk.capacity_bytes) != 0 && valueOf(counters_.memserver_bytes) == 0)
      return disks(device, waited, cost);
    const auto ofBytes = [](const status::Counter& bytes, const status::Counter& ns) {
      return valueOf(ns) == 0
                 ? 0.0
                 : static_cast<double>(valueOf(bytes)) * kNs / static_cast<double>(valueOf(ns));
    };
    const pager::MemserverWhy* slowest = nullptr;
    double slow = 0, others_best = 0;
    for (const auto& one : counters_.why.memservers) {
      const double in = ofBytes(one.in_bytes, one.in_ns);
      if (in <= 0) continue;
      others_best = std::max(others_best, in);
      if (slowest != nullptr && in >= slow) continue;
      slowest = &one;
      slow = in;
    }
    std::string evidence = base::format("Launches waited {} for memservers.{}", seconds(waited),
                                        device.hidden(waited));
    std::string name = "a memserver";
    if (slowest != nullptr) {
      const auto index = static_cast<size_t>(slowest - counters_.why.memservers);
      if (const auto peer = printableName(counters_.rdma.links[index].peer); !peer.empty())
        name = peer;
      evidence += base::format(" The slowest, {}, sent {} at {}", name,
                               formatSize(valueOf(slowest->in_bytes)), rate(slow));
      if (const auto best = static_cast<double>(valueOf(slowest->in_best)); best > 0)
        evidence += base::format(", {} of the {} that it reached at its best", percent(slow / best),
                                 rate(best));
      if (others_best > slow)
        evidence += base::format("; the fastest one sent at {}", rate(others_best));
      evidence += '.';
    }
    constexpr double kUnlike = 2;
    add("memservers", device, cost, "launches wait for memservers", std::move(evidence),
        slow > 0 && others_best > kUnlike * slow
            ? base::format("look at {} (olpagestat --node {}) and its network, or leave it out of "
                           "--memserver",
                           name, name)
            : std::string("raise --host (OL_HOST) where this machine has more RAM, or add "
                          "memservers: several send at once"));
  }

  // Launches waited and nothing crossed the link: names the limit.
  void link(const Device& device) {
    struct Cause {
      Limit limit;
      const char *id, *title, *action;
    };
    static constexpr Cause kCauses[] = {
        {Limit::kMapping, "mapping", "the driver's mapping calls are the limit",
         "allocate in fewer and larger pieces: 32 MiB are mapped by one call"},
        {Limit::kHash, "hash", "hashing and scanning pages is the limit",
         "raise --vram (OL_VRAM), so that less has to leave VRAM"},
        {Limit::kKernels, "kernels", "kernels in flight hold what is to leave VRAM",
         "raise --vram (OL_VRAM), or let each launch reach less: VRAM has to hold what runs and "
         "what comes next"},
        {Limit::kOthers, "others", "launches wait for pages that the CPU or another GPU has",
         "let CPU and GPUs use memory in longer turns, or ask for it ahead "
         "(cudaMemPrefetchAsync)"},
        {Limit::kThread, "thread", "the pager's own thread is the limit",
         "give the program a processor core more: the pager's thread needs one for itself"},
    };
    const double waiting = device.waiting();
    for (const Cause& cause : kCauses) {
      const double waited = device.limited(cause.limit), cost = waited * device.exposed();
      if (!matters(cost)) continue;
      std::string evidence = base::format(
          "Launches waited {} for pages. For {} of these no copy to VRAM was under way.{}",
          seconds(waiting), seconds(waited), device.hidden(waited));
      if (const auto copies = device.linkRate())
        evidence += base::format(" While copies were, the link moved {}.", rate(*copies));
      if (cause.limit == Limit::kMapping && device.extentsIn() != 0)
        evidence +=
            base::format(" {} extents came, of {} on average.", device.extentsIn(),
                         formatSize(valueOf(device.figures.fetched_bytes) / device.extentsIn()));
      if (cause.limit == Limit::kHash)
        evidence +=
            base::format(" {} were hashed.", formatSize(valueOf(device.figures.hashed_bytes)));
      add(cause.id, device, cost, cause.title, std::move(evidence), cause.action);
    }
  }

  // Copies are under way and move less than the link can.
  void linkRate(const Device& device) {
    const auto copies = device.linkRate();
    const auto best = static_cast<double>(valueOf(device.why.link_in_best));
    constexpr double kFair = 0.7;  // of the best window: not every moment is like it
    if (!copies || best <= 0 || *copies > kFair * best) return;
    const double cost = device.limited(Limit::kLinkIn) * (1 - *copies / best) * device.exposed();
    if (!matters(cost)) return;
    std::string evidence = base::format(
        "While copies to VRAM were under way they moved {}, {} of the {} at their best.",
        rate(*copies), percent(*copies / best), rate(best));
    if (const uint64_t extents = device.extentsIn(); extents != 0)
      evidence += base::format(" {} extents came, of {} on average.", extents,
                               formatSize(valueOf(device.figures.fetched_bytes) / extents));
    add("link", device, cost, "the link moves less than it can", std::move(evidence),
        "see whether another program copies over the same link, or allocate in larger pieces: "
        "small ones take longer for each byte");
  }

  // Kernels read host memory over the link, again and again.
  void inPlace(const Device& device) {
    const uint64_t bytes = valueOf(device.why.in_place_bytes);
    const uint64_t launches = valueOf(device.why.in_place_launches);
    const uint64_t all = valueOf(device.figures.launches);
    const uint64_t in_place = valueOf(device.figures.launches_in_place);
    constexpr uint64_t kLeast = 32ull << 20;  // smaller ones are where they are on purpose
    if (bytes < kLeast || launches == 0 || in_place * kFew < all) return;
    const std::string kernel = kernelName(device.why.in_place_kernel);
    std::string evidence = base::format(
        "{} of {} launches used host memory in place. Most of it: {} of the allocation of {} at "
        "0x{:x}, which {} launches used{}.",
        in_place, all, formatSize(bytes), formatSize(valueOf(device.why.in_place_allocation_bytes)),
        valueOf(device.why.in_place_base), launches,
        kernel.empty() ? std::string() : ", such as of " + kernel);
    std::optional<double> cost;
    if (const auto best = static_cast<double>(valueOf(device.why.link_in_best)); best > 0) {
      cost = static_cast<double>(bytes) * static_cast<double>(launches) / best;
      if (run_) cost = std::min(*cost, *run_);
      evidence += base::format(" If each of them read all that over the link, at {}, that took {}.",
                               rate(best), seconds(*cost));
    }
    if (cost && !matters(*cost)) return;
    all_.found.push_back(
        {"in-place", named(device), cost, cost.has_value(),
         "a large allocation is used where it lies in host RAM", std::move(evidence),
         "allocate it in pieces that launches use one after the other, or try --reach learned "
         "(OL_REACH), which moves an arena by its pieces"});
  }

  // Nobody knows what launches reach: nothing may leave VRAM beside them.
  void reachingAll(const Device& device) {
    static constexpr const char* kReasons[pager::kAllReasons] = {
        "they use memory outside the pager's range that can't be looked through for pointers",
        "what the host wrote could not be looked through in time",
        "a node of their graph may reach anything",
        "the kernel's parameters are not known",
    };
    const uint64_t all = valueOf(device.figures.launches_reaching_all);
    const uint64_t launches = valueOf(device.figures.launches);
    if (all == 0 || all * kFew < launches) return;
    // If all fits, nothing has to leave beside them.
    if (valueOf(device.figures.allocated_bytes.peak) <= valueOf(device.figures.vram_budget_bytes))
      return;
    unsigned most = 0;
    for (unsigned i = 1; i < pager::kAllReasons; i++)
      if (valueOf(device.why.reaching_all[i]) > valueOf(device.why.reaching_all[most])) most = i;
    const std::string kernel = kernelName(device.why.reaching_all_kernel);
    std::string evidence =
        base::format("{} of {} launches were taken to reach all of memory", all, launches);
    if (!kernel.empty()) evidence += base::format(", the last one of {}", kernel);
    evidence +=
        base::format(": {} ({} of them).", kReasons[most], valueOf(device.why.reaching_all[most]));
    all_.found.push_back({"reaching-all", named(device), std::nullopt, false,
                          "launches are taken to reach all of memory", std::move(evidence),
                          "run with --reach learned (OL_REACH=learned) where that memory holds no "
                          "pointers to memory of the GPU"});
  }

  // A graph that is one launch needs all that its nodes use at once.
  void graphs(const Device& device) {
    const uint64_t beyond = valueOf(device.why.graph_launches_beyond);
    const uint64_t in_parts = valueOf(device.why.graph_launches_in_parts);
    if (beyond <= in_parts || (beyond - in_parts) * kFew < valueOf(device.why.graph_launches))
      return;
    all_.found.push_back(
        {"graph", named(device), std::nullopt, false,
         "a graph that uses more than VRAM has room for is launched whole",
         base::format("{} of {} launches of graphs reached more than the budget of {}; the largest "
                      "reached {}. {} of these were made as their nodes, whose memory comes when "
                      "it is needed. The others were whole: what does not fit is used in place.",
                      beyond, valueOf(device.why.graph_launches),
                      formatSize(valueOf(device.figures.vram_budget_bytes)),
                      formatSize(valueOf(device.why.graph_most_bytes)), in_parts),
         "a line on standard error says what a graph holds that no stream can be given (memory and "
         "conditional nodes); a graph whose memory is one allocation larger than VRAM, and --reach "
         "all, gain nothing from its nodes: allocate in pieces, or run without graphs"});
  }

  // Large tables of which launches touch little.
  void sparse(const Device& device) {
    const uint64_t launches = valueOf(device.why.sparse_launches);
    const uint64_t bytes = valueOf(device.why.sparse_bytes);
    if (launches == 0 || bytes == 0 || launches * kFew < valueOf(device.figures.launches)) return;
    all_.found.push_back(
        {"sparse", named(device), std::nullopt, false,
         "large tables of which launches touch little stay in host RAM",
         base::format("{} in {} allocations; {} launches used one of them in place. To fetch a "
                      "whole table each time would take longer.",
                      formatSize(bytes), valueOf(device.why.sparse_allocations), launches),
         base::format("nothing, or raise --vram (OL_VRAM) by {}, so that they fit VRAM",
                      formatSize(bytes))});
  }

  // The GPU has nothing to do, and the pager is not why.
  void ownThread(const Device& device) {
    const DeviceWhy& why = device.why;
    const double idle = static_cast<double>(valueOf(why.idle_host_ns)) / kNs;
    const double all = static_cast<double>(valueOf(why.busy_ns) + valueOf(why.idle_pages_ns) +
                                           valueOf(why.idle_hop_ns) + valueOf(why.idle_other_ns)) /
                           kNs +
                       idle;
    constexpr double kLeastIdle = 0.2;  // of the time
    if (!matters(idle) || idle < kLeastIdle * all) return;
    add("own-thread", device, idle, "the GPU waits for the program's own threads",
        base::format("While not all was in VRAM, the GPU was looked at over {}: for {} of these "
                     "({}) it had nothing to do, and no launch waited for pages.",
                     seconds(all), seconds(idle), percent(idle / all)),
        "look at the program itself with a profiler of the CPU: it launches too little, or waits "
        "for something else");
  }

  // Pages of managed memory that CPU and GPU take from each other.
  void pingPong() {
    const pager::WhyCounters& why = counters_.why;
    const double cost = static_cast<double>(valueOf(why.cpu_wait_ns)) / kNs;
    const uint64_t bounces = valueOf(why.bounces);
    constexpr uint64_t kLeastBounces = 16;
    if (!matters(cost) || bounces < kLeastBounces) return;
    const auto* const most = std::max_element(
        std::begin(why.bouncing), std::end(why.bouncing),
        [](const auto& a, const auto& b) { return valueOf(a.bounces) < valueOf(b.bounces); });
    // That each page goes once, as when the CPU fills what the GPU uses, is no going to and fro.
    if (valueOf(most->address) != 0 && valueOf(most->bounces) < 2) return;
    std::string evidence = base::format(
        "The program's CPU waited {} for pages of managed memory, at {} touches; {} times a GPU "
        "took a page that had come to the CPU.",
        seconds(cost), valueOf(why.cpu_faults), bounces);
    if (const uint64_t times = valueOf(most->bounces); valueOf(most->address) != 0 && times > 1) {
      const uint64_t written = valueOf(most->written);
      evidence +=
          base::format(" Most often the page at 0x{:x}: {} times, and the CPU {} it.",
                       valueOf(most->address), times, written * 2 > times ? "wrote" : "only read");
    }
    all_.found.push_back(
        {"ping-pong", std::nullopt, cost, false, "CPU and GPU take managed pages from each other",
         std::move(evidence),
         "copy what the other side needs at once (cudaMemcpyAsync, cudaMemPrefetchAsync), or keep "
         "what CPU and GPU use apart: a page is 2 MiB"});
  }

  void notMeasured() {
    const bool elsewhere = valueOf(counters_.unified.count) != 0 || isForwarded(counters_);
    if (counters_.devicesInUse() != 0) return;
    if (elsewhere)
      all_.not_measured.emplace_back(
          "what launches wait for at the gpunodes, whose pagers count there: olpagestat --why "
          "beside each of them");
    else
      all_.not_measured.emplace_back("the program has used no memory of a GPU so far");
    all_.measured = elsewhere;
  }
  void unknownWaits(const Device& device) {
    const double cost = device.limited(Limit::kUnknown);
    if (!matters(cost)) return;
    all_.not_measured.push_back(
        base::format("what launches waited for in {} of the {} that they "
                     "waited",
                     seconds(cost), seconds(device.waiting())));
  }

  void gpu() {
    Findings::Gpu sum;
    const auto of = [](const status::Counter& ns) {
      return static_cast<double>(valueOf(ns)) / kNs;
    };
    for (unsigned i = 0; i < counters_.devicesInUse(); i++) {
      const DeviceWhy& why = counters_.why.devices[i];
      sum.busy += of(why.busy_ns);
      sum.pages += of(why.idle_pages_ns);
      sum.host += of(why.idle_host_ns);
      sum.hop += of(why.idle_hop_ns);
      sum.unknown += of(why.idle_other_ns);
    }
    sum.all = sum.busy + sum.pages + sum.host + sum.hop + sum.unknown;
    if (sum.all > 0) all_.gpu = sum;
  }

  // The driver is slow to make host memory, where a machine gives memory slowly at first use.
  void hostMemory() {
    const double cost = static_cast<double>(valueOf(counters_.host_wait_ns)) / kNs;
    if (!matters(cost)) return;
    std::string evidence = base::format("The program waited {} for host memory.", seconds(cost));
    const auto bytes = static_cast<double>(valueOf(counters_.why.host_made_bytes));
    const auto ns = static_cast<double>(valueOf(counters_.why.host_making_ns));
    if (bytes > 0 && ns > 0)
      evidence +=
          base::format(" The driver made {} at {}.",
                       formatSize(valueOf(counters_.why.host_made_bytes)), rate(bytes * kNs / ns));
    all_.found.push_back(
        {"host-memory", std::nullopt, cost, false, "host memory is made slowly",
         std::move(evidence),
         "run longer in one process: what has been made is used again; or raise --vram (OL_VRAM) "
         "or use --pack off, so that less is made"});
  }

  // Pinned memory that kernels at a gpunode reach goes to and fro, since each end has its own.
  void pinned() {
    constexpr uint64_t kLeast = 16ull << 20;  // less goes with launches that are sent anyway
    uint64_t sent = 0, received = 0, sends = 0, ns = 0, most = 0;
    std::string peer;
    for (const status::LinkBytes& link : counters_.links.links) {
      const uint64_t here = valueOf(link.pinned_sent) + valueOf(link.pinned_received);
      sent += valueOf(link.pinned_sent);
      received += valueOf(link.pinned_received);
      sends += valueOf(link.pinned_sends);
      ns += valueOf(link.pinned_ns);
      if (here <= most) continue;
      most = here;
      peer = printableName(std::string(link.peer, strnlen(link.peer, sizeof link.peer)).c_str());
    }
    const double cost = static_cast<double>(ns) / kNs;
    // How long the bytes took nobody measures: what even a slow network carries unnoticed is none.
    constexpr double kSlowNetwork = 125e6;  // bytes a second
    const auto bytes = static_cast<double>(sent + received);
    const bool many =
        sent + received >= kLeast && (!run_ || bytes >= kLeastShare * *run_ * kSlowNetwork);
    if (!many && !(sends != 0 && matters(cost))) return;
    all_.found.push_back(
        {"pinned", std::nullopt, matters(cost) ? std::optional(cost) : std::nullopt, false,
         "pinned memory that kernels reach is exchanged with gpunodes",
         base::format("{} of pinned or managed memory went ahead of {} operations, and {} that "
                      "kernels had changed came back; most of it was exchanged with {}. To find "
                      "what had changed, and to send it, took the program's threads {}.",
                      formatSize(sent), sends, formatSize(received), peer, seconds(cost)),
         "let kernels use memory of the GPU (cudaMalloc) and copy to and from it "
         "(cudaMemcpyAsync): pinned memory that copies alone use is not exchanged"});
  }

  // All goes from one executor of a unified view to another.
  void hops() {
    const status::UnifiedCounters& view = counters_.unified;
    const uint64_t moves = valueOf(view.moves);
    const double finishing = static_cast<double>(valueOf(view.finishing_ns)) / kNs;
    const double bringing = static_cast<double>(valueOf(view.bringing_ns)) / kNs;
    if (moves == 0 || !matters(finishing + bringing)) return;
    constexpr auto kFirst = static_cast<unsigned>(status::RouteReason::kPages);
    uint64_t reasons[status::kRouteReasons] = {};
    const auto executors = std::min<uint64_t>(valueOf(view.count), status::kMaxCountedExecutors);
    for (uint64_t i = 0; i < executors; i++)
      for (unsigned r = kFirst; r < status::kRouteReasons; r++)
        reasons[r] += valueOf(view.executors[i].routed[r]);
    const auto most = static_cast<unsigned>(
        std::max_element(reasons + kFirst, reasons + status::kRouteReasons) - reasons);
    std::string evidence = base::format(
        "Operations went from one GPU to another {} times. They waited {} until work at the former "
        "one was over, and {} for variables of code",
        moves, seconds(finishing), seconds(bringing));
    evidence += reasons[most] == 0
                    ? std::string(".")
                    : base::format("; most moves ({}) had this reason: {}.", reasons[most],
                                   status::textOf(static_cast<status::RouteReason>(most)));
    all_.found.push_back(
        {"hops", std::nullopt, finishing + bringing, false,
         "moves from one GPU of the unified view to another", std::move(evidence),
         finishing >= bringing
             ? "let the program synchronise less often between the parts that lie on different "
               "GPUs: a move waits for all that runs"
             : "keep variables of code small: they go along with each move"});
  }

  const Counters& counters_;
  const std::optional<double> run_;
  Findings all_;
};

}  // namespace

Findings findings(const Counters& counters, std::optional<double> run_seconds) {
  return Finder(counters, run_seconds).find();
}

Findings findings(const pager::CountersSnapshot& process) {
  return findings(*process.counters, secondsOf(process));
}

}  // namespace olpager::tools
