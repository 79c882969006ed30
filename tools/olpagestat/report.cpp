#include "tools/olpagestat/report.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/size.h"
#include "pager/clock.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/rails.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using base::formatSize;
using pager::Counters;
using pager::CountersSnapshot;
using pager::DeviceCounters;
using pager::valueOf;

const char* stateName(CountersSnapshot::State state) {
  switch (state) {
    case CountersSnapshot::State::kRunning:
      return "running";
    case CountersSnapshot::State::kEnded:
      return "ended";
    case CountersSnapshot::State::kElsewhere:
      return "in another PID namespace";
  }
  return "";
}

}  // namespace

std::optional<double> secondsOf(const CountersSnapshot& process) {
  const Counters& counters = *process.counters;
  uint64_t end = valueOf(counters.ended_unix_ns);
  if (end == 0) {
    if (process.state == CountersSnapshot::State::kEnded) return std::nullopt;
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    end = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }
  return end > counters.started_unix_ns ? static_cast<double>(end - counters.started_unix_ns) / 1e9
                                        : 0;
}

namespace {

std::string share(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : base::format("{:.1f}%",
                                   100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string pagesOf(uint64_t bytes) {
  return base::format("{} ({} pages)", formatSize(bytes), (bytes + (2u << 20) - 1) / (2u << 20));
}

// Launches and copies that waited.
uint64_t waits(const DeviceCounters& device) {
  uint64_t sum = 0;
  for (const auto& bucket : device.fault_wait.buckets) sum += valueOf(bucket);
  return sum;
}

std::string wait(const DeviceCounters& device, double quantile) {
  return waits(device) == 0 ? "-"
                            : durationText(pager::waitPercentile(device.fault_wait, quantile));
}

// "62MiB (31 pages), peak 64MiB"
std::string gauge(const pager::Gauge& bytes) {
  return base::format("{}, peak {}", pagesOf(valueOf(bytes)), formatSize(valueOf(bytes.peak)));
}

struct Row {
  const char* label;
  std::function<std::string(const DeviceCounters&)> value;
};

std::string number(const pager::Counter& counter) { return base::format("{}", valueOf(counter)); }

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"allocated",
       [](const auto& d) {
         return base::format("{} in {}, peak {}", formatSize(valueOf(d.allocated_bytes)),
                             valueOf(d.allocations), formatSize(valueOf(d.allocated_bytes.peak)));
       }},
      {"VRAM budget", [](const auto& d) { return pagesOf(valueOf(d.vram_budget_bytes)); }},
      {"resident", [](const auto& d) { return gauge(d.resident_bytes); }},
      {"in host RAM", [](const auto& d) { return gauge(d.parked_bytes); }},
      {"used in place", [](const auto& d) { return gauge(d.in_place_bytes); }},
      {"at memservers", [](const auto& d) { return gauge(d.remote_bytes); }},
      {"pinned in VRAM",
       [](const auto& d) {
         return base::format("{} in {}, peak {}", formatSize(valueOf(d.pinned_bytes)),
                             valueOf(d.pinned_extents), formatSize(valueOf(d.pinned_bytes.peak)));
       }},
      {"launches", [](const auto& d) { return number(d.launches); }},
      {"  hit rate",
       [](const auto& d) { return share(valueOf(d.launches_resident), valueOf(d.launches)); }},
      {"  in place", [](const auto& d) { return number(d.launches_in_place); }},
      {"  reaching all", [](const auto& d) { return number(d.launches_reaching_all); }},
      {"copies, memsets", [](const auto& d) { return number(d.copies); }},
      {"faults", [](const auto& d) { return number(d.demand_faults); }},
      {"waits", [](const auto& d) { return base::format("{}", waits(d)); }},
      {"  p50", [](const auto& d) { return wait(d, 0.50); }},
      {"  p99", [](const auto& d) { return wait(d, 0.99); }},
      {"prefetches", [](const auto& d) { return number(d.prefetches_issued); }},
      {"  useful", [](const auto& d) { return number(d.prefetches_useful); }},
      {"  wasted", [](const auto& d) { return number(d.prefetches_wasted); }},
      {"evictions",
       [](const auto& d) {
         return base::format("{}", valueOf(d.evictions_clean) + valueOf(d.evictions_written));
       }},
      {"  clean", [](const auto& d) { return number(d.evictions_clean); }},
      {"  written back", [](const auto& d) { return number(d.evictions_written); }},
      {"bytes in", [](const auto& d) { return formatSize(valueOf(d.bytes_in)); }},
      {"bytes out", [](const auto& d) { return formatSize(valueOf(d.bytes_out)); }},
      {"to memservers", [](const auto& d) { return formatSize(valueOf(d.remote_out)); }},
      {"from memservers", [](const auto& d) { return formatSize(valueOf(d.remote_in)); }},
      {"pages scanned", [](const auto& d) { return number(d.scans); }},
      {"bytes hashed", [](const auto& d) { return formatSize(valueOf(d.hashed_bytes)); }},
  };
  return all;
}

// The tiers below host RAM: memservers, or disks, or both.
std::string labelOf(const Row& row, const Counters& counters) {
  struct Names {
    std::string_view memservers, disks, both;
  };
  constexpr Names kNames[] = {{"at memservers", "at disks", "below RAM"},
                              {"to memservers", "to disks", "down from RAM"},
                              {"from memservers", "from disks", "up to RAM"}};
  if (valueOf(counters.disk.capacity_bytes) == 0) return row.label;
  const bool both = valueOf(counters.memserver_bytes) != 0;
  for (const Names& names : kNames)
    if (row.label == names.memservers) return std::string(both ? names.both : names.disks);
  return row.label;
}

constexpr uint64_t kWaitShownNs = 50'000'000;  // of waiting for host memory

// For programs that launch graphs while not all is in VRAM.
std::string graphsLine(const Counters& counters, unsigned devices) {
  std::string text = base::format("  {:<16}", "graphs as nodes");
  uint64_t all = 0;
  for (unsigned d = 0; d < devices; d++) {
    const auto& why = counters.why.devices[d];
    all += valueOf(why.graph_launches);
    text += base::format("{:<36}", base::format("{} of {}", valueOf(why.graph_launches_in_parts),
                                                valueOf(why.graph_launches)));
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return all != 0 ? text + '\n' : "";
}

std::string processTable(const CountersSnapshot& process) {
  const Counters& counters = *process.counters;
  const std::optional<double> seconds = secondsOf(process);
  std::string text = base::format("{}  pid {}  {}  {}\n", printableName(counters.program),
                                  counters.pid, stateName(process.state),
                                  seconds ? base::format("{:.1f}s", *seconds) : "killed");
  const unsigned devices = counters.devicesInUse();
  if (executorsOf(counters) != 0) {
    const bool running = process.state == CountersSnapshot::State::kRunning;
    text += executorsTable(counters, seconds, running ? pager::nowNs() : 0);
  }
  if (devices == 0 && (executorsOf(counters) != 0 || isForwarded(counters)))
    return text + linksTable(counters) + "  olpagestat --node shows it there\n";
  text += base::format("  {:<16}{}\n", "pool", formatSize(valueOf(counters.pool_bytes)));
  text +=
      base::format("  {:<16}{} of {}\n", "host tier", formatSize(valueOf(counters.host_used_bytes)),
                   formatSize(valueOf(counters.host_limit_bytes)));
  if (const uint64_t waited = valueOf(counters.host_wait_ns); waited >= kWaitShownNs)
    text += base::format("  {:<16}{:.1f} s until it was made\n", "  waited",
                         static_cast<double>(waited) / 1e9);
  if (const uint64_t tcp = valueOf(counters.memservers_tcp), shm = valueOf(counters.memservers_shm),
      verbs = valueOf(counters.memservers_verbs);
      tcp + shm + verbs != 0)
    text += base::format("  {:<16}{} by tcp, {} by shm{}, room for {}\n", "memservers", tcp, shm,
                         verbs == 0 ? "" : base::format(", {} by verbs", verbs),
                         formatSize(valueOf(counters.memserver_bytes)));
  if (const uint64_t room = valueOf(counters.disk.capacity_bytes); room != 0)
    text += base::format("  {:<16}{} of {}, {} written, {} read\n", "disks",
                         formatSize(valueOf(counters.disk.held_bytes)), formatSize(room),
                         formatSize(valueOf(counters.disk.written_bytes)),
                         formatSize(valueOf(counters.disk.read_bytes)));
  if (const uint64_t made = valueOf(counters.card_registrations); made != 0)
    text += base::format("  {:<16}{} registered now, {} registrations so far\n", "RDMA cards",
                         formatSize(valueOf(counters.card_bytes)), made);
  text += railsTable(counters.rdma) + linksTable(counters);
  text += base::format(
      "  {:<16}managed {} in {}, pinned host {} in {}\n", "passed through",
      formatSize(valueOf(counters.managed_bytes)), valueOf(counters.managed_allocations),
      formatSize(valueOf(counters.pinned_host_bytes)), valueOf(counters.pinned_host_allocations));
  if (devices == 0) return text + "  no device memory used yet\n";
  if (devices > 1) {
    text += base::format("  {:<16}", "");
    for (unsigned d = 0; d < devices; d++)
      text += base::format("{:<36}", base::format("GPU {}", d));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  for (const auto& row : rows()) {
    text += base::format("  {:<16}", labelOf(row, counters));
    for (unsigned d = 0; d < devices; d++)
      text += base::format("{:<36}", row.value(counters.devices[d]));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text + graphsLine(counters, devices);
}

nlohmann::ordered_json ratio(uint64_t part, uint64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

nlohmann::ordered_json waitJson(const DeviceCounters& device, double quantile) {
  if (waits(device) == 0) return nullptr;
  return pager::waitPercentile(device.fault_wait, quantile);
}

nlohmann::ordered_json deviceJson(unsigned ordinal, const DeviceCounters& d) {
  nlohmann::ordered_json histogram = nlohmann::ordered_json::array();
  unsigned used = 0;
  for (unsigned i = 0; i < pager::kWaitBuckets; i++) {
    if (valueOf(d.fault_wait.buckets[i]) != 0) used = i + 1;
  }
  for (unsigned i = 0; i < used; i++) histogram.push_back(valueOf(d.fault_wait.buckets[i]));
  return {
      {"device", ordinal},
      {"allocated_bytes", valueOf(d.allocated_bytes)},
      {"allocated_peak_bytes", valueOf(d.allocated_bytes.peak)},
      {"allocations", valueOf(d.allocations)},
      {"vram_budget_bytes", valueOf(d.vram_budget_bytes)},
      {"resident_bytes", valueOf(d.resident_bytes)},
      {"resident_peak_bytes", valueOf(d.resident_bytes.peak)},
      {"host_bytes", valueOf(d.parked_bytes)},
      {"host_peak_bytes", valueOf(d.parked_bytes.peak)},
      {"in_place_bytes", valueOf(d.in_place_bytes)},
      {"in_place_peak_bytes", valueOf(d.in_place_bytes.peak)},
      {"pinned_bytes", valueOf(d.pinned_bytes)},
      {"pinned_peak_bytes", valueOf(d.pinned_bytes.peak)},
      {"pinned_extents", valueOf(d.pinned_extents)},
      {"launches", valueOf(d.launches)},
      {"launches_resident", valueOf(d.launches_resident)},
      {"launches_in_place", valueOf(d.launches_in_place)},
      {"launches_reaching_all", valueOf(d.launches_reaching_all)},
      {"remote_bytes", valueOf(d.remote_bytes)},
      {"remote_out", valueOf(d.remote_out)},
      {"remote_in", valueOf(d.remote_in)},
      {"remote_dropped", valueOf(d.remote_dropped)},
      {"hit_rate", ratio(valueOf(d.launches_resident), valueOf(d.launches))},
      {"copies", valueOf(d.copies)},
      {"faults", valueOf(d.demand_faults)},
      {"waits", waits(d)},
      {"fault_wait_p50_ns", waitJson(d, 0.50)},
      {"fault_wait_p99_ns", waitJson(d, 0.99)},
      {"fault_wait_log2_ns", std::move(histogram)},
      {"prefetches", valueOf(d.prefetches_issued)},
      {"prefetches_useful", valueOf(d.prefetches_useful)},
      {"prefetches_wasted", valueOf(d.prefetches_wasted)},
      {"evictions_clean", valueOf(d.evictions_clean)},
      {"evictions_written", valueOf(d.evictions_written)},
      {"evictions_cancelled", valueOf(d.evictions_cancelled)},
      {"bytes_in", valueOf(d.bytes_in)},
      {"fetched_bytes", valueOf(d.fetched_bytes)},
      {"kept_bytes", valueOf(d.kept_bytes)},
      {"bytes_out", valueOf(d.bytes_out)},
      {"pages_scanned", valueOf(d.scans)},
      {"hashed_bytes", valueOf(d.hashed_bytes)},
  };
}

}  // namespace

std::string countersTable(const pager::CountersReading& reading) {
  std::string text;
  for (const auto& process : reading.processes) {
    if (!text.empty()) text += '\n';
    text += processTable(process);
  }
  return text;
}

std::string countersJson(const pager::CountersReading& reading,
                         const std::vector<Forwarded>* forwarded, const Cards& cards) {
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  for (const auto& process : reading.processes) {
    const Counters& c = *process.counters;
    const std::optional<double> seconds = secondsOf(process);
    nlohmann::ordered_json devices = nlohmann::ordered_json::array();
    for (unsigned d = 0; d < c.devicesInUse(); d++) devices.push_back(deviceJson(d, c.devices[d]));
    processes.push_back({
        {"pid", c.pid},
        {"program", c.program},
        {"state", process.state == CountersSnapshot::State::kElsewhere ? "elsewhere"
                                                                       : stateName(process.state)},
        {"started_unix_ns", c.started_unix_ns},
        {"seconds", seconds ? nlohmann::ordered_json(*seconds) : nlohmann::ordered_json()},
        {"pool_bytes", valueOf(c.pool_bytes)},
        {"host_limit_bytes", valueOf(c.host_limit_bytes)},
        {"host_used_bytes", valueOf(c.host_used_bytes)},
        {"host_wait_ns", valueOf(c.host_wait_ns)},
        {"memservers_tcp", valueOf(c.memservers_tcp)},
        {"memservers_shm", valueOf(c.memservers_shm)},
        {"memservers_verbs", valueOf(c.memservers_verbs)},
        {"memserver_bytes", valueOf(c.memserver_bytes)},
        {"disk_capacity_bytes", valueOf(c.disk.capacity_bytes)},
        {"disk_held_bytes", valueOf(c.disk.held_bytes)},
        {"disk_written_bytes", valueOf(c.disk.written_bytes)},
        {"disk_read_bytes", valueOf(c.disk.read_bytes)},
        {"card_registrations", valueOf(c.card_registrations)},
        {"card_bytes", valueOf(c.card_bytes)},
        {"links", linksJson(c)},
        {"rdma_frames_in", valueOf(c.rdma.frames_in)},
        {"rdma_frames_out", valueOf(c.rdma.frames_out)},
        {"rdma_direct_in", valueOf(c.rdma.direct_in)},
        {"rdma_direct_out", valueOf(c.rdma.direct_out)},
        {"rdma_refused_bytes", valueOf(c.rdma.refused_bytes)},
        {"managed_allocations", valueOf(c.managed_allocations)},
        {"managed_bytes", valueOf(c.managed_bytes)},
        {"pinned_host_allocations", valueOf(c.pinned_host_allocations)},
        {"pinned_host_bytes", valueOf(c.pinned_host_bytes)},
        {"devices", std::move(devices)},
        {"unified", executorsJson(c)},
    });
  }
  nlohmann::ordered_json elsewhere;
  if (forwarded != nullptr) elsewhere = nlohmann::ordered_json::array();
  for (size_t i = 0; forwarded != nullptr && i < forwarded->size(); i++) {
    const Forwarded& one = (*forwarded)[i];
    elsewhere.push_back({{"pid", one.pid}, {"program", one.program}, {"gpunodes", one.gpunodes}});
  }
  nlohmann::ordered_json seen = nlohmann::ordered_json::array();
  for (const Card& card : cards.all) {
    nlohmann::ordered_json one = {{"number", card.number}};
    // An unknown value has no key.
    if (!card.name.empty()) one["name"] = card.name;
    if (!card.uuid.empty()) one["uuid"] = card.uuid;
    if (card.total) one["bytes"] = *card.total;
    if (card.used) one["used_bytes"] = *card.used;
    if (card.gpu_percent) one["gpu_percent"] = *card.gpu_percent;
    if (card.processes) one["processes"] = nlohmann::ordered_json::array();
    for (size_t i = 0; card.processes && i < card.processes->size(); i++) {
      const Card::Process& process = (*card.processes)[i];
      nlohmann::ordered_json each = {{"pid", process.pid}};
      if (process.bytes) each["bytes"] = *process.bytes;
      one["processes"].push_back(std::move(each));
    }
    seen.push_back(std::move(one));
  }
  nlohmann::ordered_json note;  // null: nothing to say
  if (!cards.why_none.empty()) note = cards.why_none;
  const nlohmann::ordered_json all = {{"version", 1},
                                      {"processes", std::move(processes)},
                                      {"forwarded", std::move(elsewhere)},
                                      {"cards", std::move(seen)},
                                      {"cards_note", std::move(note)},
                                      {"notes", reading.notes}};
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace olpager::tools
