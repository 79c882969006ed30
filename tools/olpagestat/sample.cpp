#include "tools/olpagestat/sample.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

#include "base/format.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/own_processes.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {

using pager::Counters;
using pager::valueOf;

std::vector<std::string> Programs::places() const {
  return folders.empty() ? pager::countersFolders() : folders;
}

void nameScripts(pager::CountersReading& reading) {
  for (auto& process : reading.processes) {
    if (process.state != pager::CountersSnapshot::State::kRunning) continue;
    const std::string script = scriptOf(process.counters->pid);
    if (script.empty()) continue;
    char(&name)[sizeof process.counters->program] = process.counters->program;
    const size_t length = strnlen(name, sizeof name);
    if (length + 2 > sizeof name) continue;
    const std::string more = (" " + script).substr(0, sizeof name - 1 - length);
    std::memcpy(name + length, more.c_str(), more.size() + 1);
  }
}

Sample readSample(const Programs& programs, bool details) {
  Sample sample;
  sample.reading = pager::readCounters(programs.places(), details);
  nameScripts(sample.reading);
  if (programs.pid) {
    std::erase_if(sample.reading.processes,
                  [&](const auto& process) { return process.counters->pid != *programs.pid; });
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  sample.seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  if (programs.folders.empty()) {
    sample.forwarded = programs.looks->at(sample.seconds);
    std::erase_if(*sample.forwarded, [&](const Forwarded& one) {
      const auto& shown = sample.reading.processes;
      return (programs.pid && one.pid != *programs.pid) ||
             std::any_of(shown.begin(), shown.end(),
                         [&](const auto& process) { return process.counters->pid == one.pid; });
    });
  }
  return sample;
}

std::vector<std::string> cardLines(const Sample& sample) {
  std::vector<std::string> lines;
  for (const Card& card : sample.cards.all) lines.push_back(cardText(card, pidsOf(sample)));
  if (!lines.empty() || sample.cards.why_none.empty()) return lines;
  uint64_t used = 0, budget = 0;
  bool any = false;
  for (const auto& process : sample.reading.processes) {
    if (process.state != pager::CountersSnapshot::State::kRunning) continue;
    for (unsigned device = 0; device < process.counters->devicesInUse(); device++) {
      any = true;
      used += valueOf(process.counters->devices[device].resident_bytes);
      budget += valueOf(process.counters->devices[device].vram_budget_bytes);
    }
  }
  if (any)
    lines.push_back(base::format(
        "cards: these programs have {} of VRAM, of budgets of {}; what else is on the cards is not "
        "known: {}",
        bytesText(static_cast<double>(used)), bytesText(static_cast<double>(budget)),
        sample.cards.why_none));
  return lines;
}

ProcessKey keyOf(const pager::CountersSnapshot& process) {
  return {process.counters->pid, process.counters->start_ticks};
}

std::vector<uint32_t> pidsOf(const Sample& sample) {
  std::vector<uint32_t> pids;
  for (const auto& process : sample.reading.processes) pids.push_back(process.counters->pid);
  return pids;
}

const pager::CountersSnapshot* find(const Sample& sample, const ProcessKey& key) {
  for (const auto& process : sample.reading.processes) {
    if (keyOf(process) == key) return &process;
  }
  return nullptr;
}

bool usesMemservers(const Counters& counters) {
  uint64_t any = valueOf(counters.memserver_bytes) + valueOf(counters.memservers_tcp) +
                 valueOf(counters.memservers_shm) + valueOf(counters.memservers_verbs) +
                 valueOf(counters.disk.capacity_bytes);
  for (unsigned device = 0; device < counters.devicesInUse(); device++)
    any += valueOf(counters.devices[device].remote_out);
  return any != 0;
}

Figures figuresOf(const Counters& now, const Counters* before, double seconds,
                  const DeviceChoice& devices) {
  Figures figures;
  uint64_t launches = 0, resident = 0, useful = 0, used_or_not = 0;
  pager::WaitHistogram waits{};
  uint64_t waited = 0;
  for (unsigned index = 0; index < now.devicesInUse(); index++) {
    if (!devices.holds(index)) continue;
    const auto& device = now.devices[index];
    figures.vram += valueOf(device.resident_bytes);
    figures.vram_budget += valueOf(device.vram_budget_bytes);
    figures.host += valueOf(device.parked_bytes);
    figures.in_place += valueOf(device.in_place_bytes);
    figures.remote += valueOf(device.remote_bytes);
    figures.pinned += valueOf(device.pinned_bytes);
    figures.allocated += valueOf(device.allocated_bytes);
    if (before == nullptr || seconds <= 0) continue;
    const auto& then = before->devices[index];
    const auto grown = [&](const auto& counter, const auto& was) {
      const uint64_t a = valueOf(counter), b = valueOf(was);
      return a > b ? a - b : 0;
    };
    const auto rate = [&](const auto& counter, const auto& was) {
      return static_cast<double>(grown(counter, was)) / seconds;
    };
    launches += grown(device.launches, then.launches);
    resident += grown(device.launches_resident, then.launches_resident);
    useful += grown(device.prefetches_useful, then.prefetches_useful);
    used_or_not += grown(device.prefetches_useful, then.prefetches_useful) +
                   grown(device.prefetches_wasted, then.prefetches_wasted);
    figures.copies += rate(device.copies, then.copies);
    figures.faults += rate(device.demand_faults, then.demand_faults);
    figures.prefetched += rate(device.prefetches_issued, then.prefetches_issued);
    figures.clean += rate(device.evictions_clean, then.evictions_clean);
    figures.written += rate(device.evictions_written, then.evictions_written);
    figures.bytes_in += rate(device.bytes_in, then.bytes_in);
    figures.bytes_out += rate(device.bytes_out, then.bytes_out);
    figures.remote_in += rate(device.remote_in, then.remote_in);
    figures.remote_out += rate(device.remote_out, then.remote_out);
    for (unsigned i = 0; i < pager::kWaitBuckets; i++) {
      const uint64_t here = grown(device.fault_wait.buckets[i], then.fault_wait.buckets[i]);
      pager::add(waits.buckets[i], here);
      waited += here;
    }
  }
  if (before != nullptr && !devices.only) {  // those of a unified view are of no device here
    const uint64_t a = launchesOf(now.unified), b = launchesOf(before->unified);
    launches += a > b ? a - b : 0;
  }
  figures.fetched = figures.faults;
  figures.launches = seconds > 0 ? static_cast<double>(launches) / seconds : 0;
  if (launches != 0 && now.devicesInUse() != 0)
    figures.hit_rate = static_cast<double>(resident) / static_cast<double>(launches);
  if (used_or_not != 0)
    figures.accuracy = static_cast<double>(useful) / static_cast<double>(used_or_not);
  if (waited != 0) {
    figures.wait_p50_ns = pager::waitPercentile(waits, 0.5);
    figures.wait_p99_ns = pager::waitPercentile(waits, 0.99);
  }
  return figures;
}

std::vector<Cell> residencyCells(const pager::ResidencyMap& map, size_t cells, uint64_t& pages,
                                 const DeviceChoice& devices) {
  using Map = pager::ResidencyMap;
  std::vector<std::pair<uint64_t, unsigned>> blocks;
  for (unsigned i = 0; i < Map::kBlocks; i++) {
    if (const uint64_t address = valueOf(map.addresses[i]); address != 0)
      blocks.emplace_back(address, i);
  }
  std::sort(blocks.begin(), blocks.end());
  std::vector<std::pair<uint64_t, uint8_t>> used;
  for (const auto& [address, block] : blocks) {
    for (unsigned page = 0; page < Map::kBlockPages; page++) {
      const uint8_t byte = map.pages[block][page].load(std::memory_order_relaxed);
      if ((byte & 0xf) != 0 && (byte & 0xf) < pager::kPlaces && devices.holds(byte >> 4)) {
        used.emplace_back(address + page * Map::kPageBytes, byte);
      }
    }
  }
  pages = used.empty() || cells == 0 ? 0 : (used.size() + cells - 1) / cells;
  std::vector<Cell> all;
  if (pages == 0) return all;
  for (size_t begin = 0; begin < used.size(); begin += pages) {
    const size_t end = std::min<size_t>(used.size(), begin + pages);
    std::array<unsigned, 256> votes{};
    for (size_t i = begin; i < end; i++) votes[used[i].second]++;
    const auto most =
        static_cast<uint8_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
    all.push_back({used[begin].first, static_cast<pager::Place>(most & 0xf),
                   static_cast<unsigned>(most >> 4)});
  }
  return all;
}

std::vector<HotAllocation> hottest(const pager::HotTable& table, size_t most,
                                   const DeviceChoice& devices) {
  std::vector<HotAllocation> all;
  for (const auto& entry : table.entries) {
    HotAllocation one{valueOf(entry.base),
                      valueOf(entry.bytes),
                      valueOf(entry.fetched),
                      valueOf(entry.evicted),
                      valueOf(entry.bytes_in),
                      valueOf(entry.bytes_out),
                      static_cast<unsigned>(valueOf(entry.device))};
    if (one.base != 0 && devices.holds(one.device)) all.push_back(one);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    const uint64_t x = a.bytes_in + a.bytes_out, y = b.bytes_in + b.bytes_out;
    return x != y ? x > y : a.base < b.base;
  });
  if (all.size() > most) all.resize(most);
  return all;
}

}  // namespace olpager::tools
