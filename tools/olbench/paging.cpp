#include "tools/olbench/paging.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace olpager::tools::bench {
namespace {

using pager::valueOf;

const pager::DeviceCounters& own(const pager::CountersReading& reading) {
  for (const auto& process : reading.processes)
    if (process.counters->pid == static_cast<uint32_t>(getpid()))
      return process.counters->devices[0];
  throw std::runtime_error(
      "the pager's counters of this process are not there: it does not run under the pager");
}

// Seconds of processor time of each thread of this process but the calling one.
std::map<std::string, double> threadTimes() {
  constexpr size_t kUserTime = 11, kSystemTime = 12;  // fields behind the name
  std::map<std::string, double> times;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string thread = entry.path().filename();
    if (thread == std::to_string(gettid())) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text(std::istreambuf_iterator<char>(file), {});
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) continue;  // it has ended meanwhile
    std::istringstream fields(text.substr(name_end + 1));
    const std::vector<std::string> values(std::istream_iterator<std::string>(fields), {});
    if (values.size() <= kSystemTime) continue;
    times[thread] = (std::stod(values[kUserTime]) + std::stod(values[kSystemTime])) /
                    static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return times;
}

}  // namespace

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Counted::Counted()
    : begin_(std::chrono::steady_clock::now()),
      before_(pager::readCounters(pager::countersFolders())),
      threads_(threadTimes()) {
  own(before_);
}

nlohmann::json Counted::sinceThen() const {
  const double seconds = secondsSince(begin_);
  double busiest = 0;
  for (const auto& [thread, time] : threadTimes()) {
    const auto known = threads_.find(thread);
    busiest = std::max(busiest, time - (known != threads_.end() ? known->second : 0));
  }
  const pager::CountersReading now = pager::readCounters(pager::countersFolders());
  const pager::DeviceCounters &before = own(before_), &after = own(now);
  const auto grown = [&](pager::Counter pager::DeviceCounters::*figure) {
    return valueOf(after.*figure) - valueOf(before.*figure);
  };
  pager::WaitHistogram waits{};
  for (unsigned i = 0; i < pager::kWaitBuckets; ++i)
    waits.buckets[i] = valueOf(after.fault_wait.buckets[i]) - valueOf(before.fault_wait.buckets[i]);
  using Device = pager::DeviceCounters;
  return {{"seconds", seconds},
          {"busiest_thread", busiest / seconds},
          {"bytes_in", grown(&Device::bytes_in)},
          {"fetched_bytes", grown(&Device::fetched_bytes)},
          {"bytes_out", grown(&Device::bytes_out)},
          {"remote_in", grown(&Device::remote_in)},
          {"remote_out", grown(&Device::remote_out)},
          {"demand_faults", grown(&Device::demand_faults)},
          {"prefetches_issued", grown(&Device::prefetches_issued)},
          {"prefetches_useful", grown(&Device::prefetches_useful)},
          {"evictions_clean", grown(&Device::evictions_clean)},
          {"evictions_written", grown(&Device::evictions_written)},
          {"launches", grown(&Device::launches)},
          {"launches_resident", grown(&Device::launches_resident)},
          {"launches_in_place", grown(&Device::launches_in_place)},
          {"wait_p50_ns", pager::waitPercentile(waits, 0.50)},
          {"wait_p99_ns", pager::waitPercentile(waits, 0.99)}};
}

}  // namespace olpager::tools::bench
