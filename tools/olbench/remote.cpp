#include "tools/olbench/remote.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/format.h"
#include "base/size.h"
#include "coherence/transport/options.h"
#include "tools/olbench/child.h"
#include "tools/olbench/daemon.h"
#include "tools/olbench/transport.h"

namespace olpager::tools::bench {
namespace {

using nlohmann::json;

constexpr unsigned kServers = 3;
constexpr double kLimitSeconds = 0.5;  // of each timed limit

struct Limits {
  double bytes_per_second[kServers] = {};  // by the number of memservers
};

/// All connections that a program has to so many memservers; by shared memory a copy is one
/// thread's.
Limits limitsOf(bool tcp) {
  Limits limits;
  for (unsigned servers = 1; servers <= kServers; ++servers) {
    limits.bytes_per_second[servers - 1] =
        tcp            ? rawSocketRate(transport::Options().lanes * servers, kLimitSeconds)
        : servers == 1 ? memcpyRate(kLimitSeconds)
                       : limits.bytes_per_second[0];
  }
  return limits;
}

json rowOf(const json& run) {
  const auto figure = [&](const char* name) { return run[name].get<double>(); };
  const double seconds = figure("seconds");
  const double waits = figure("demand_faults"), ahead = figure("prefetches_useful");
  json row = {{"seconds", seconds},
              {"remote_in_gigabytes_per_second", figure("remote_in") / seconds / 1e9},
              {"remote_out_gigabytes_per_second", figure("remote_out") / seconds / 1e9},
              {"vram_in_gigabytes_per_second", figure("bytes_in") / seconds / 1e9},
              {"walked_gigabytes_per_second", figure("walked_bytes") / seconds / 1e9},
              {"wait_p50_ns", run["wait_p50_ns"]},
              {"wait_p99_ns", run["wait_p99_ns"]},
              {"launches", run["launches"]},
              {"launches_in_place", run["launches_in_place"]}};
  row["hit_rate"] = figure("launches") > 0 ? json(figure("launches_resident") / figure("launches"))
                                           : json(nullptr);
  row["prefetched"] = waits + ahead > 0 ? json(ahead / (waits + ahead)) : json(nullptr);
  return row;
}

}  // namespace

Options remoteSizes(bool simulated) {
  Options sizes;
  const uint64_t unit = simulated ? uint64_t{64} << 20 : uint64_t{1} << 30;
  sizes.vram = unit;
  sizes.host = unit;
  sizes.bytes = 3 * unit;
  sizes.allocation = simulated ? uint64_t{4} << 20 : uint64_t{32} << 20;
  return sizes;
}

json measureRemote(const Options& options) {
  const json copy = runChild(With::kNative, "copy", options);
  json rows = json::array();
  for (const bool tcp : {true, false}) {
    const Limits before = limitsOf(tcp);
    const size_t first = rows.size();
    std::vector<std::unique_ptr<Daemon>> daemons(kServers);
    for (auto& daemon : daemons)
      daemon = std::make_unique<Daemon>(tcp ? "tcp" : "shm", options.bytes);
    for (unsigned servers = 1; servers <= kServers; ++servers) {
      for (unsigned replicas = 1; replicas <= std::min(servers, 2u); ++replicas) {
        for (const bool write : {false, true}) {
          Options each = options;
          each.write = write;
          each.replicas = replicas;
          for (unsigned i = 0; i < servers; ++i)
            each.memservers += (i == 0 ? "" : ",") + daemons[i]->address();
          json row = rowOf(runChild(With::kPager, "swap", each));
          row["path"] = tcp ? "tcp" : "shm";
          row["memservers"] = servers;
          row["replicas"] = replicas;
          row["writes"] = write;
          rows.push_back(row);
        }
      }
    }
    daemons.clear();
    const Limits after = limitsOf(tcp);  // a drift of the machine is seen at both ends
    for (size_t i = first; i < rows.size(); ++i) {
      const unsigned servers = rows[i]["memservers"].get<unsigned>() - 1;
      const double limit =
          (before.bytes_per_second[servers] + after.bytes_per_second[servers]) / 2e9;
      const double moved = rows[i]["remote_in_gigabytes_per_second"].get<double>() +
                           rows[i]["remote_out_gigabytes_per_second"].get<double>() *
                               rows[i]["replicas"].get<unsigned>();
      rows[i]["limit_gigabytes_per_second"] = limit;
      rows[i]["share_of_limit"] = limit > 0 ? moved / limit : 0;
    }
  }
  return {{"measurement", "remote"},
          {"device", copy["device"]},
          {"bytes", options.bytes},
          {"vram", options.vram},
          {"host", options.host},
          {"allocation", options.allocation},
          {"pinned_copy_gigabytes_per_second", copy["gigabytes_per_second"]},
          {"rows", rows}};
}

void printRemote(const json& result) {
  base::print(
      "remote on {}: {} in allocations of {}, VRAM budget {}, host RAM {}; pinned copy {:.1f} "
      "GB/s\n",
      result["device"].get<std::string>(), base::formatSize(result["bytes"].get<uint64_t>()),
      base::formatSize(result["allocation"].get<uint64_t>()),
      base::formatSize(result["vram"].get<uint64_t>()),
      base::formatSize(result["host"].get<uint64_t>()),
      result["pinned_copy_gigabytes_per_second"].get<double>());
  base::print("{:<4} {:>10} {:>8} {:<6} {:>8} {:>8} {:>14} {:>6} {:>9} {:>7} {:>7} {:>10} {:>10}\n",
              "path", "memservers", "replicas", "walk", "in GB/s", "out GB/s", "raw or memcpy",
              "share", "into VRAM", "hits", "ahead", "wait p50", "wait p99");
  for (const json& row : result["rows"]) {
    const auto figure = [&](const char* name) { return row[name].get<double>(); };
    const auto share = [&](const char* name) {
      return row[name].is_null() ? std::string("-")
                                 : base::format("{:.1f}%", 100 * row[name].get<double>());
    };
    base::print(
        "{:<4} {:>10} {:>8} {:<6} {:>8.2f} {:>8.2f} {:>14.2f} {:>6.2f} {:>9.2f} {:>7} {:>7} "
        "{:>8.1f}ms {:>8.1f}ms\n",
        row["path"].get<std::string>(), row["memservers"].get<unsigned>(),
        row["replicas"].get<unsigned>(), row["writes"].get<bool>() ? "write" : "read",
        figure("remote_in_gigabytes_per_second"), figure("remote_out_gigabytes_per_second"),
        figure("limit_gigabytes_per_second"), figure("share_of_limit"),
        figure("vram_in_gigabytes_per_second"), share("hit_rate"), share("prefetched"),
        figure("wait_p50_ns") / 1e6, figure("wait_p99_ns") / 1e6);
  }
}

}  // namespace olpager::tools::bench
