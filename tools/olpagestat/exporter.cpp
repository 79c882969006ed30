#include "tools/olpagestat/exporter.h"

#include <dirent.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/format.h"
#include "base/version.h"
#include "tools/olpagestat/executors.h"
#include "tools/olpagestat/rails.h"
#include "tools/olpagestat/text.h"

namespace olpager::tools {
namespace {

using pager::Counters;
using pager::DeviceCounters;
using pager::valueOf;

constexpr size_t kMostPrograms = 1024;
constexpr size_t kMostOfAUser = 256;  // else one user's files would be in the others' way
constexpr size_t kMostFoldersOfAUser = 16;
constexpr double kNanosecond = 1e-9;
constexpr long kAskSeconds = 2;  // daemons, again and again

// A label's value: what would end it is escaped, and what is no plain text is not there.
std::string value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c >= ' ' && c <= '~' ? c : '?';
  }
  return out;
}

// Metrics in the order in which they came first, each with all its lines behind its HELP and TYPE.
// The first figure of a name and its labels is told: a page with two of them would be none, and
// names within labels are chosen by others.
class Page {
 public:
  void add(const std::string& name, const char* type, const std::string& help,
           const std::string& labels, double figure) {
    line(name, type, help, labels, base::format("{:.17g}", figure));
  }
  void add(const std::string& name, const char* type, const std::string& help,
           const std::string& labels, uint64_t figure) {
    line(name, type, help, labels, base::format("{}", figure));
  }
  // A histogram of durations that doubles its buckets, as seconds.
  void add(const std::string& name, const std::string& help, const std::string& labels,
           const pager::WaitHistogram& waits) {
    if (!told_.insert(name + labels).second) return;
    std::string& text = lines(name, "histogram", help);
    uint64_t count = 0;
    double sum = 0, bound = 2 * kNanosecond;
    constexpr unsigned kFirst = 9, kLast = 37;  // 1 us to 137 s; what lies beyond is in the ends
    for (unsigned i = 0; i < pager::kWaitBuckets; ++i, bound *= 2) {
      const uint64_t here = valueOf(waits.buckets[i]);
      count += here;
      sum += static_cast<double>(here) * bound * 0.75;  // the middle of what the bucket is for
      if (i >= kFirst && i < kLast)
        text += base::format("{}_bucket{{{},le=\"{:.9g}\"}} {}\n", name, labels, bound, count);
    }
    text += base::format("{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3:.9g}\n", name,
                         labels, count, sum);
    text += base::format("{}_count{{{}}} {}\n", name, labels, count);
  }
  std::string text() const {
    std::string all;
    for (const auto& [head, lines] : metrics_) all += head + lines;
    return all;
  }

 private:
  void line(const std::string& name, const char* type, const std::string& help,
            const std::string& labels, const std::string& figure) {
    if (!told_.insert(name + labels).second) return;
    lines(name, type, help) += base::format("{}{}{}{} {}\n", name, labels.empty() ? "" : "{",
                                            labels, labels.empty() ? "" : "}", figure);
  }
  std::string& lines(const std::string& name, const char* type, const std::string& help) {
    const auto [at, is_new] = index_.emplace(name, metrics_.size());
    if (is_new)
      metrics_.emplace_back(base::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type), "");
    return metrics_[at->second].second;
  }
  std::map<std::string, size_t> index_;
  std::set<std::string> told_;
  std::vector<std::pair<std::string, std::string>> metrics_;
};

// ---- programs

using Figure = uint64_t (*)(const DeviceCounters&);
struct DeviceMetric {
  const char *name, *type, *help;
  Figure figure;
  const char* label = "";
};
constexpr const char *kGauge = "gauge", *kCounter = "counter";

const DeviceMetric kDeviceMetrics[] = {
    {"olpager_allocated_bytes", kGauge, "Memory that the program has allocated.",
     [](const auto& d) { return valueOf(d.allocated_bytes); }},
    {"olpager_resident_bytes", kGauge, "Of it in VRAM.",
     [](const auto& d) { return valueOf(d.resident_bytes); }},
    {"olpager_in_place_bytes", kGauge, "Of it in host RAM, where the GPU uses it in place.",
     [](const auto& d) { return valueOf(d.in_place_bytes); }},
    {"olpager_parked_bytes", kGauge, "Of it in host RAM.",
     [](const auto& d) { return valueOf(d.parked_bytes); }},
    {"olpager_remote_bytes", kGauge, "Of it at memservers alone.",
     [](const auto& d) { return valueOf(d.remote_bytes); }},
    {"olpager_vram_budget_bytes", kGauge, "The most VRAM that the program may use.",
     [](const auto& d) { return valueOf(d.vram_budget_bytes); }},
    {"olpager_launches_total", kCounter, "Launches of kernels and graphs.",
     [](const auto& d) { return valueOf(d.launches); }},
    {"olpager_launches_resident_total", kCounter, "Of these, launches that found all in its place.",
     [](const auto& d) { return valueOf(d.launches_resident); }},
    {"olpager_launches_in_place_total", kCounter,
     "Of these, launches that used host memory in place.",
     [](const auto& d) { return valueOf(d.launches_in_place); }},
    {"olpager_launches_reaching_all_total", kCounter,
     "Of these, launches of which nobody knew what they reach.",
     [](const auto& d) { return valueOf(d.launches_reaching_all); }},
    {"olpager_copies_total", kCounter, "Copies and memsets.",
     [](const auto& d) { return valueOf(d.copies); }},
    {"olpager_demand_faults_total", kCounter, "Extents fetched since something waited for them.",
     [](const auto& d) { return valueOf(d.demand_faults); }},
    {"olpager_prefetches_total", kCounter, "Extents prefetched.",
     [](const auto& d) { return valueOf(d.prefetches_issued); }},
    {"olpager_prefetches_useful_total", kCounter, "Of these, extents used before they left.",
     [](const auto& d) { return valueOf(d.prefetches_useful); }},
    {"olpager_prefetches_wasted_total", kCounter, "Of these, extents that left unused.",
     [](const auto& d) { return valueOf(d.prefetches_wasted); }},
    {"olpager_evictions_total", kCounter, "Extents that left VRAM, dropped or written.",
     [](const auto& d) { return valueOf(d.evictions_clean); }, R"(,how="dropped")"},
    {"olpager_evictions_total", kCounter, "Extents that left VRAM, dropped or written.",
     [](const auto& d) { return valueOf(d.evictions_written); }, R"(,how="written")"},
    {"olpager_vram_received_bytes_total", kCounter, "Bytes from host RAM to VRAM.",
     [](const auto& d) { return valueOf(d.bytes_in); }},
    {"olpager_vram_sent_bytes_total", kCounter, "Bytes from VRAM to host RAM.",
     [](const auto& d) { return valueOf(d.bytes_out); }},
    {"olpager_memserver_received_bytes_total", kCounter, "Bytes from memservers.",
     [](const auto& d) { return valueOf(d.remote_in); }},
    {"olpager_memserver_sent_bytes_total", kCounter, "Bytes to memservers, without replicas.",
     [](const auto& d) { return valueOf(d.remote_out); }},
};

void addProgram(Page& page, const std::string& user, const pager::CountersSnapshot& process) {
  const Counters& counters = *process.counters;
  const std::string labels = base::format("user=\"{}\",pid=\"{}\",program=\"{}\"", value(user),
                                          counters.pid, value(printableName(counters.program)));
  page.add("olpager_program_start_time_seconds", kGauge,
           "When the program first used a GPU, since 1970.", labels,
           static_cast<double>(counters.started_unix_ns) * kNanosecond);
  page.add("olpager_host_limit_bytes", kGauge, "The most host RAM for the program's pages.", labels,
           valueOf(counters.host_limit_bytes));
  page.add("olpager_host_used_bytes", kGauge, "Of it in use, or kept for pages.", labels,
           valueOf(counters.host_used_bytes));
  page.add("olpager_memserver_capacity_bytes", kGauge,
           "That memservers can hold for the program, with what they hold.", labels,
           valueOf(counters.memserver_bytes));
  page.add("olpager_memservers", kGauge, "Memservers that are connected.", labels,
           valueOf(counters.memservers_tcp) + valueOf(counters.memservers_shm) +
               valueOf(counters.memservers_verbs));
  page.add("olpager_disk_capacity_bytes", kGauge,
           "That disks can hold for the program, with what they hold.", labels,
           valueOf(counters.disk.capacity_bytes));
  page.add("olpager_disk_held_bytes", kGauge, "Pages that lie on disks, also in RAM or not.",
           labels, valueOf(counters.disk.held_bytes));
  page.add("olpager_disk_written_bytes_total", kCounter, "Bytes written to disks: SSDs wear.",
           labels, valueOf(counters.disk.written_bytes));
  page.add("olpager_disk_read_bytes_total", kCounter, "Bytes read from disks.", labels,
           valueOf(counters.disk.read_bytes));
  page.add("olpager_pinned_host_bytes", kGauge, "Pinned memory of the program's own.", labels,
           valueOf(counters.pinned_host_bytes));
  page.add("olpager_host_memory_wait_seconds_total", kCounter,
           "For which something waited until the driver had made host memory.", labels,
           static_cast<double>(valueOf(counters.host_wait_ns)) * kNanosecond);
  for (unsigned i = 0; i < counters.devicesInUse(); ++i) {
    const std::string of = base::format("{},device=\"{}\"", labels, i);
    for (const DeviceMetric& metric : kDeviceMetrics)
      page.add(metric.name, metric.type, metric.help, of + metric.label,
               metric.figure(counters.devices[i]));
    page.add("olpager_wait_seconds",
             "How long launches and copies waited for memory. The sum is an estimate of the "
             "buckets, right within a half.",
             of, counters.devices[i].fault_wait);
  }
  for (const LinkFigures& link : linksOf(counters)) {
    const std::string of = base::format("{},to=\"{}\",peer=\"{}\",link=\"{}\"", labels, link.to,
                                        value(link.peer), link.number);
    page.add("olpager_link_sent_bytes_total", kCounter, "Bytes that went over the link.", of,
             link.sent);
    page.add("olpager_link_received_bytes_total", kCounter, "Bytes that came over the link.", of,
             link.received);
    page.add("olpager_link_pinned_bytes_total", kCounter,
             "Of these, pinned memory that is exchanged with a gpunode, both ways.", of,
             link.pinned_sent + link.pinned_received);
    for (const LinkFigures::Rail& rail : link.rails) {
      const std::string card =
          base::format("{},card=\"{}\",port=\"{}\"", of, value(rail.device), rail.port);
      page.add("olpager_rail_bytes_total", kCounter,
               "Bytes that the card has read and written since the link came about.", card,
               rail.bytes);
      page.add("olpager_rail_in_use", kGauge, "Whether the card is in use (1) or set aside (0).",
               card, uint64_t{rail.in_use ? 1u : 0u});
    }
  }
  for (const ExecutorFigures& executor : executorFigures(counters, nullptr, 0)) {
    const std::string of = base::format("{},executor=\"{}\"", labels, value(executor.gpunode));
    page.add("olpager_executor_owned_bytes", kGauge, "Pages whose owner the executor is.", of,
             executor.owned);
    page.add("olpager_executor_capacity_bytes", kGauge, "Pages that the executor can hold.", of,
             executor.capacity);
    page.add("olpager_executor_operations_total", kCounter, "Operations that went there.", of,
             executor.operations);
    page.add("olpager_executor_moves_total", kCounter, "Moves of all to the executor.", of,
             executor.moves);
    page.add("olpager_executor_received_bytes_total", kCounter,
             "Pages that came from other executors.", of, executor.bytes_in);
    page.add("olpager_executor_sent_bytes_total", kCounter, "Pages that went to other executors.",
             of, executor.bytes_out);
  }
}

// ---- daemons

bool isName(std::string_view name) {
  return !name.empty() && name.front() >= 'a' && name.front() <= 'z' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

// `name{label="value"}` as a daemon tells it, apart; false: it is none.
bool split(std::string_view figure, std::string& name, std::string& label) {
  const size_t brace = figure.find('{');
  name = figure.substr(0, brace);
  label.clear();
  if (!isName(name)) return false;
  if (brace == std::string_view::npos) return true;
  std::string_view rest = figure.substr(brace + 1);
  const size_t equals = rest.find("=\"");
  if (equals == std::string_view::npos || !rest.ends_with("\"}")) return false;
  const std::string_view key = rest.substr(0, equals);
  const std::string_view text = rest.substr(equals + 2, rest.size() - equals - 4);
  if (!isName(key) || key == "node" || text.find('"') != std::string_view::npos) return false;
  label = base::format(",{}=\"{}\"", key, value(text));
  return true;
}

void addDevice(Page& page, const std::string& of, size_t index, const status::Device& device) {
  const std::string labels = base::format("{},device=\"{}\",uuid=\"{}\",name=\"{}\"", of, index,
                                          value(device.uuid), value(device.name));
  page.add("olpager_gpu_memory_bytes", kGauge, "VRAM of the GPU.", labels, device.total);
  page.add("olpager_gpu_memory_used_bytes", kGauge, "Of it in use, by whom ever.", labels,
           device.used);
  const auto known = [&](const char* name, const char* help, uint32_t figure, double unit) {
    if (figure != status::kUnknown)
      page.add(name, kGauge, help, labels, static_cast<double>(figure) * unit);
  };
  known("olpager_gpu_utilization_ratio", "Share of the time in which a kernel ran.",
        device.gpu_percent, 0.01);
  known("olpager_gpu_temperature_celsius", "Temperature of the GPU.", device.temperature, 1);
  known("olpager_gpu_power_watts", "Power that the GPU draws.", device.power_mw, 0.001);
  known("olpager_gpu_power_limit_watts", "The most power that it may draw.", device.power_limit_mw,
        0.001);
}

void addNode(Page& page, const NodeSample& sample) {
  const std::string node = base::format("node=\"{}\"", value(sample.address));
  page.add("olpager_node_up", kGauge, "Whether the daemon answered (1) or not (0).", node,
           uint64_t{sample.told ? 1u : 0u});
  if (!sample.told) return;
  const status::Status& status = sample.told->status;
  // The kind is a part of names: another one could make them those of a program or of this page.
  if (status.kind != "memserver" && status.kind != "gpunode") return;
  const std::string of = base::format("{},kind=\"{}\"", node, status.kind);
  page.add("olpager_node_uptime_seconds", kGauge, "Since the daemon was started.", of,
           static_cast<double>(status.uptime_ms) * 1e-3);
  page.add("olpager_node_serving", kGauge, "Whether it takes new work (1) or is ending (0).", of,
           uint64_t{status.serving != 0 ? 1u : 0u});
  for (const status::Tier& tier : status.tiers) {
    const std::string labels = base::format("{},tier=\"{}\"", of, value(tier.name));
    page.add("olpager_node_tier_bytes", kGauge, "Memory of the daemon's node, by tier.", labels,
             tier.total);
    page.add("olpager_node_tier_used_bytes", kGauge, "Of it in use.", labels, tier.used);
    page.add("olpager_node_tier_free_bytes", kGauge, "Of it free.", labels, tier.free);
  }
  for (size_t i = 0; i < status.devices.size(); ++i) addDevice(page, of, i, status.devices[i]);
  for (const status::Figure& figure : status.figures) {
    std::string name, label;
    if (!split(figure.name, name, label)) continue;
    page.add(base::format("ol{}_{}", status.kind, name),
             name.ends_with("_total") ? kCounter : kGauge,
             "As the daemon's own /metrics has it (docs/reference/metrics.md).", node + label,
             figure.value);
  }
  std::map<std::string, std::pair<uint64_t, uint64_t>> keys;  // sessions, bytes
  for (const status::Session& session : status.sessions) {
    if (session.connected == 0 && session.left_ms == 0) continue;
    auto& [sessions, bytes] = keys[session.key_name];
    ++sessions;
    for (const uint64_t each : session.bytes) bytes += each;
  }
  for (const auto& [key, sum] : keys) {
    const std::string labels = base::format("{},key=\"{}\"", of, value(key));
    page.add("olpager_node_key_sessions", kGauge, "Sessions, by the name of their key.", labels,
             sum.first);
    page.add("olpager_node_key_bytes", kGauge, "Memory of sessions, by the name of their key.",
             labels, sum.second);
  }
}

// ---- users

// For as long as it lives, this thread is that user, with that user's own group and no other: what
// root's groups may read is not the user's. The change is of this thread alone, as the C library's
// functions are not. The saved ids stay root's, so that the user may send this process no signal.
class AsUser {
 public:
  explicit AsUser(uid_t user) : was_(geteuid()), group_(getegid()), groups_(groups()) {
    if (user == was_) {  // it needs no right to become another one
      done_ = true;
      return;
    }
    const gid_t group = groupOf(user);
    // The user last, and back first: a thread that is root no longer may change no group.
    done_ = syscall(SYS_setgroups, 0, nullptr) == 0 && syscall(SYS_setresgid, -1, group, -1) == 0 &&
            syscall(SYS_setresuid, -1, user, -1) == 0 && geteuid() == user && getegid() == group;
    if (!done_) back();
  }
  ~AsUser() {
    if (done_) back();
  }
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;
  bool done() const { return done_; }

 private:
  static std::vector<gid_t> groups() {
    std::vector<gid_t> all(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
    all.resize(
        static_cast<size_t>(std::max(0, getgroups(static_cast<int>(all.size()), all.data()))));
    return all;
  }
  static gid_t groupOf(uid_t user) {
    char buffer[4096];
    passwd entry{};
    passwd* found = nullptr;
    if (getpwuid_r(user, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
      return found->pw_gid;
    constexpr gid_t kNobodys = 65534;
    return kNobodys;
  }
  void back() const {
    if (syscall(SYS_setresuid, -1, was_, -1) != 0 || syscall(SYS_setresgid, -1, group_, -1) != 0)
      _exit(1);  // it must not go on as both
    // If groups can't be set they have not been changed either.
    (void)syscall(SYS_setgroups, groups_.size(), groups_.data());
  }

  const uid_t was_;
  const gid_t group_;
  const std::vector<gid_t> groups_;
  bool done_ = false;
};

std::string userName(uid_t user) {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(user, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return found->pw_name;
  return std::to_string(user);
}

// Folders that users may have made, by the owner. The reader looks at who they really belong to and
// how they look inside.
std::map<uid_t, std::vector<std::string>> allFolders() {
  std::map<uid_t, std::vector<std::string>> found;
  const auto look = [&found](const std::string& path) {
    struct stat about {};
    if (lstat(path.c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) return;
    auto& folders = found[about.st_uid];
    if (folders.size() < kMostFoldersOfAUser) folders.push_back(path);
  };
  const auto each = [](const char* folder, const auto& take) {
    DIR* const listing = opendir(folder);
    if (listing == nullptr) return;
    while (const dirent* const entry = readdir(listing)) take(std::string(entry->d_name));
    closedir(listing);
  };
  each("/run/user", [&](const std::string& name) {
    if (name.front() != '.') look("/run/user/" + name + "/olpager");
  });
  each("/tmp", [&](const std::string& name) {
    if (name.starts_with("olpager-") && name.size() > 8 && name[8] >= '0' && name[8] <= '9')
      look("/tmp/" + name);
  });
  return found;
}

}  // namespace

std::string exporterText(const std::vector<UsersPrograms>& users,
                         const std::vector<NodeSample>& nodes) {
  Page page;
  page.add("olpager_exporter_info", kGauge, "The version of who tells this.",
           base::format("version=\"{}\"", value(base::kVersion)), uint64_t{1});
  size_t told = 0, left_out = 0;
  for (const UsersPrograms& user : users) {
    std::set<uint32_t> pids;
    for (const auto& process : user.reading.processes) {
      if (process.state == pager::CountersSnapshot::State::kEnded) continue;
      // From two PID namespaces a number may be there twice.
      if (told == kMostPrograms || pids.size() == kMostOfAUser ||
          !pids.insert(process.counters->pid).second) {
        ++left_out;
        continue;
      }
      ++told;
      addProgram(page, user.user, process);
    }
    left_out += user.reading.notes.size();
  }
  page.add("olpager_programs", kGauge, "Programs that are told of here.", "", uint64_t{told});
  page.add("olpager_programs_left_out", kGauge,
           "Programs and files of counters that could not be told of.", "", uint64_t{left_out});
  for (const NodeSample& node : nodes) addNode(page, node);
  return page.text();
}

std::vector<UsersPrograms> readAllUsers(const Programs& programs) {
  std::vector<UsersPrograms> all;
  if (geteuid() != 0 || !programs.folders.empty()) {
    all.push_back({userName(geteuid()), readSample(programs, false).reading});
    return all;
  }
  for (const auto& [user, folders] : allFolders()) {
    all.push_back({userName(user), {}});
    pager::CountersReading& reading = all.back().reading;
    const AsUser as(user);
    if (!as.done()) {
      reading.notes.push_back("this process may not become user " + all.back().user);
      continue;
    }
    reading = pager::readCounters(folders, false, kMostOfAUser);
    nameScripts(reading);
  }
  return all;
}

int runExporter(const ExporterOptions& options) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before there is a second thread
  signal(SIGPIPE, SIG_IGN);
  constexpr uint32_t kAnswerMs = 1000;
  std::optional<NodeSource> source;
  if (!options.nodes.addresses.empty()) {
    auto made = NodeSource::make(options.nodes, kAnswerMs);
    if (!made.ok()) {
      base::print(stderr, "olpagestat: {}\n", made.error().message);
      return 2;
    }
    source.emplace(std::move(made).value());
  }
  std::mutex mutex;
  std::vector<NodeSample> nodes;  // under it
  if (source) nodes = source->ask();
  auto served = status::serveMetrics(options.endpoint, [&] {
    const auto users = readAllUsers(options.programs);
    const std::lock_guard lock(mutex);
    return exporterText(users, nodes);
  });
  if (!served.ok()) {
    base::print(stderr, "olpagestat: --prometheus: {}\n", served.error().message);
    return 2;
  }
  base::print("olpagestat: figures at {}\n", served.value()->url());
  std::fflush(stdout);
  if (const std::string warning = served.value()->warning(); !warning.empty())
    base::print(stderr, "olpagestat: {}\n", warning);
  timespec begun{};
  clock_gettime(CLOCK_MONOTONIC, &begun);
  for (;;) {
    const timespec pause{kAskSeconds, 0};
    if (sigtimedwait(&ends, nullptr, &pause) > 0) return 0;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (options.duration > 0 && static_cast<double>(now.tv_sec - begun.tv_sec) >= options.duration)
      return 0;
    if (!source) continue;
    auto told = source->ask();
    const std::lock_guard lock(mutex);
    nodes = std::move(told);
  }
}

}  // namespace olpager::tools
