#include "base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/address.h"
#include "base/credentials.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/process.h"
#include "base/space/pages.h"
#include "base/text.h"

namespace olpager::base {
namespace {

constexpr uint64_t kVaEnd = 1ull << 47;  // the end of user space with four-level page tables

// A multiple of the page within user space.
Setter rangeEdge(uint64_t& into) {
  return [&into](std::string_view text) -> Status {
    const auto bytes = parseSize(text);
    if (!bytes.ok()) return bytes.error();
    if (bytes.value() == 0 || bytes.value() % kSettingsPageBytes != 0 || bytes.value() >= kVaEnd)
      return notAllowed(text, "a multiple of 2MiB above 0 and below 0x800000000000");
    into = bytes.value();
    return {};
  };
}

Status checkMemserver(std::string_view one) {
  return checkAddress(one, AddressUse::kConnect, kMemserverPort);
}

Status checkGpunode(std::string_view one) {
  if (one == kLocalGpunode) return {};
  if (one.starts_with(base::format("{}:", kLocalGpunode)))
    return Error{base::format(
        "'{}': {} has no port, it is a gpunode that olrun starts; one that listens on this "
        "machine is 127.0.0.1{}",
        printable(one), kLocalGpunode, printable(one.substr(kLocalGpunode.size())))};
  return checkAddress(one, AddressUse::kConnect, kGpunodePort);
}

Setter gpunodes(std::vector<std::string>& into) {
  return [&into](std::string_view text) -> Status {
    std::vector<std::string> found;
    if (const Status status =
            setter::addresses(found, checkGpunode, "gpunode", "; local; or none")(text);
        !status.ok())
      return status;
    if (found.size() > kMostGpunodes)
      return Error{
          base::format("{} gpunodes; a program has at most {}", found.size(), kMostGpunodes)};
    into = std::move(found);
    return {};
  };
}

// "/mnt/nvme:500GiB": behind the last colon is the size.
Result<DiskSetting> parseDisk(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (!text.starts_with('/') || colon == std::string_view::npos)
    return notAllowed(
        text,
        "FOLDER:SIZE, the absolute path of a folder and how much may lie there, such as "
        "/mnt/nvme:500GiB");
  DiskSetting disk;
  disk.folder = text.substr(0, colon);
  if (const Status sized = setter::size(disk.bytes)(text.substr(colon + 1)); !sized.ok())
    return sized.error();
  return disk;
}

Setter disks(std::vector<DiskSetting>& into) {
  return [&into](std::string_view text) -> Status {
    std::vector<std::string> found;
    const auto check = [](std::string_view one) -> Status {
      const auto disk = parseDisk(one);
      return disk.ok() ? Status() : disk.error();
    };
    if (const Status status = setter::addresses(found, check, "disk", "; or none")(text);
        !status.ok())
      return status;
    into.clear();
    for (const std::string& one : found) into.push_back(parseDisk(one).value());
    return {};
  };
}

// The gpunode of a route to one of its GPUs ("HOST:PORT/1"). "": it is none.
std::string_view gpunodeOfGpu(std::string_view route) {
  const size_t slash = route.rfind('/');
  if (slash == std::string_view::npos || slash + 1 == route.size() ||
      route.find_first_not_of("0123456789", slash + 1) != std::string_view::npos)
    return "";
  return route.substr(0, slash);
}

Setter route(std::string& into) {
  return [&into](std::string_view text) -> Status {
    if (text != kRouteOwner && text != kRouteRoundRobin && !checkGpunode(text).ok() &&
        !checkGpunode(gpunodeOfGpu(text)).ok())
      return notAllowed(text,
                        "owner, rr, local, or a gpunode as --gpunode names it, with /N for its GPU "
                        "N where it has several");
    into = text;
    return {};
  };
}

// Variables that other parts of the project read.
bool knownElsewhere(std::string_view name) {
  return name == "OL_CONFIG" || name == "OL_COUNTERS_KEEP" || name == kProgramVariable ||
         name == kLocalVariable || name.starts_with("OL_SIM_") || name.starts_with("OL_TEST_");
}

std::optional<std::string_view> lookUp(const std::vector<std::string>& environment,
                                       std::string_view name) {
  for (const auto& entry : environment) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return std::string_view(entry).substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

// The user's own file. XDG wants absolute paths; a relative one would depend on the working
// directory.
std::string userFile(const std::vector<std::string>& environment) {
  const auto xdg = lookUp(environment, "XDG_CONFIG_HOME").value_or("");
  if (xdg.starts_with('/')) return base::format("{}/olpager/olpager.toml", xdg);
  const auto home = lookUp(environment, "HOME").value_or("");
  return home.starts_with('/') ? base::format("{}/.config/olpager/olpager.toml", home)
                               : std::string();
}

Status readEnvironment(OptionTable& table, Settings& settings, const SettingsSources& sources) {
  std::map<std::string, const Option*> known;
  std::vector<std::string> listed;
  for (const Option& row : table.rows()) {
    known[variableName(row)] = &row;
    if (row.group != kHidden) listed.push_back(variableName(row));
  }
  for (const auto& entry : sources.environment) {
    if (!entry.starts_with("OL_")) continue;
    const auto equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    const auto found = known.find(name);
    if (found == known.end()) {
      if (!knownElsewhere(name))
        settings.warnings.push_back(base::format("{}={}: no such setting, ignored{}", name, value,
                                                 didYouMean(name, listed)));
      continue;
    }
    if (value.empty()) continue;  // set to nothing is not set
    const Option& option = *found->second;
    if (auto status = option.set(value); !status.ok())
      return Error{base::format("{}: {}", name, status.error().message)};
    const auto given = sources.options.find(name);
    table.origins[option.key] = given == sources.options.end() ? name : given->second;
  }
  return {};
}

// The Error for a value that is wrong beside others, with where it came from.
Error wrongWithOthers(const OptionTable& table, const char* key, const std::string& what) {
  const auto origin = table.origins.find(key);
  return Error{base::format("{}: {}", origin == table.origins.end() ? key : origin->second, what)};
}

// The address of the gpunode that olrun has started, in the place of its name.
void nameLocal(Settings& settings, const std::vector<std::string>& environment) {
  const auto socket = lookUp(environment, kLocalVariable).value_or("");
  const auto local = std::find(settings.gpunodes.begin(), settings.gpunodes.end(), kLocalGpunode);
  if (local == settings.gpunodes.end() || !socket.starts_with('/')) return;
  *local = settings.local_gpunode = base::format("unix:{}", socket);
  settings.local_key = localKeyPath(std::string(socket));
}

// Refuses settings that the unified view has no place for yet, or never.
Status checkUnified(const OptionTable& table, const Settings& settings) {
  const auto& gpunodes = settings.gpunodes;
  if (gpunodes.empty()) return {};
  if (settings.exportable == ExportableSetting::kDriver)
    return wrongWithOthers(table, "exportable",
                           "'driver' is not allowed in the unified view, where memory that stays "
                           "in one GPU's VRAM has no place: leave it out, or take view = discrete");
  const auto isThere = [&gpunodes](std::string_view name) {
    return std::find(gpunodes.begin(), gpunodes.end(), name) != gpunodes.end();
  };
  if (settings.route == kRouteOwner || settings.route == kRouteRoundRobin ||
      isThere(settings.route) || isThere(gpunodeOfGpu(settings.route)))
    return {};
  std::string named;
  for (const std::string& gpunode : gpunodes) named += (named.empty() ? "" : ", ") + gpunode;
  return wrongWithOthers(
      table, "route",
      notAllowed(settings.route,
                 "owner, rr, or a gpunode as --gpunode names it, with /N for its GPU N where it "
                 "has several: " +
                     printable(named))
          .message);
}

// Checks that need several settings: a range that can't be, a route that leads nowhere.
Status checkTogether(const OptionTable& table, const Settings& settings) {
  const uint64_t size = settings.va_size != 0 ? settings.va_size : space::kDefaultVaSize;
  if (settings.va_base != 0 && settings.va_base > kVaEnd - size) {
    return wrongWithOthers(
        table, "va_base",
        base::format("0x{:x} and va_size {} end above 0x{:x}, where user space ends; lower one of "
                     "them",
                     settings.va_base, exactSize(size), kVaEnd));
  }
  if (settings.require_gpudirect && !settings.gpunodes.empty())
    return wrongWithOthers(table, "require",
                           "'gpudirect' is of programs with a driver of their own; a gpunode does "
                           "not promise it: leave it out");
  if (settings.require_gpudirect && settings.memservers.empty())
    return wrongWithOthers(table, "require",
                           "'gpudirect' is about the way to memservers, and none is named: name "
                           "one (memserver), or leave it out");
  return settings.view == ViewSetting::kUnified ? checkUnified(table, settings) : Status{};
}

}  // namespace

OptionTable optionsOf(Settings& s) {
  constexpr const char *kHere = "Memory of this machine", *kElsewhere = "Other machines",
                       *kRun = "The run";
  return OptionTable({
      {"vram", kHere, "SIZE", "VRAM to use on each device: 8GiB, 50%",
       "what is free less a reserve", setter::budget(s.vram)},
      {"host", kHere, "SIZE", "Host RAM to use: 32GiB, 50%", "80% of what is available",
       setter::budget(s.host)},
      {"disk", kHere, "FOLDER:SIZE,...",
       "Room on disks, below host RAM: /mnt/nvme:500GiB. As often as there are disks; none: "
       "without",
       "", disks(s.disks)},
      {"disk_encrypt", kHere, "on|off",
       "What lies on disks is encrypted, by a key that only the program has", "on",
       setter::onOff(s.disk_encrypt)},
      {"reach", kHere, "REACH", "What a launch is taken to reach: traced, all or learned", "traced",
       setter::word(s.reach, kReachWords)},
      {"report", kHere, "REPORT", "Memory that the program is told of: node or pool", "node",
       setter::word(s.report, kReportWords)},
      {"pack", kHere, "on|off", "What streams crosses the bus packed where it packs", "on",
       setter::onOff(s.pack)},
      {"arenas", kHere, "HOW",
       "What of a large allocation does not fit VRAM: used in-place, or streamed", "in-place",
       setter::word(s.stream_arenas, {{"in-place", false}, {"streamed", true}})},
      {"va_base", kHere, "ADDRESS", "Where the global address range begins", "",
       rangeEdge(s.va_base)},
      {"va_size", kHere, "SIZE", "Its size", "16TiB", rangeEdge(s.va_size)},
      {"memserver", kElsewhere, "HOST:PORT,...",
       "Memory of other machines (olmemserver): below host RAM. As often as there are machines; "
       "none: without",
       "", setter::addresses(s.memservers, checkMemserver, "memserver", "; or none")},
      {"replicas", kElsewhere, "NUMBER", "Memservers that hold each page: 1 or 2", "1",
       setter::word(s.replicas, {{"1", 1}, {"2", 2}})},
      {"gpunode", kElsewhere, "HOST:PORT,...",
       "Run all GPU work on another machine (olgpunode): no GPU and no driver is needed here. As "
       "often as there are machines; local: for this machine's GPUs one that is started for the "
       "program; none: not",
       "", gpunodes(s.gpunodes)},
      {"view", kElsewhere, "VIEW",
       "Of the gpunodes' GPUs: discrete, each is a device of its own, or unified, one device",
       "discrete",
       setter::word(s.view,
                    {{"discrete", ViewSetting::kDiscrete}, {"unified", ViewSetting::kUnified}})},
      {"route", kHidden, "WHERE",
       "Of the unified view, to compare: launches and copies go where their pages are (owner), to "
       "one GPU after the other (rr), or to a gpunode, named as for --gpunode, with /N for its GPU "
       "N",
       "owner", route(s.route)},
      {"transport", kElsewhere, "HOW", "To memservers and gpunodes: auto, tcp, shm or verbs",
       "auto", setter::word(s.transport, kTransportWords)},
      {"rails", kElsewhere, "ADDRESS,...",
       "This machine's RDMA cards, if links to memservers and gpunodes are to have several", "",
       setter::rails(s.rails)},
      {"require", kElsewhere, "WHAT",
       "gpudirect: pages go straight between VRAM and memservers, or the program is refused",
       "none", setter::word(s.require_gpudirect, {{"gpudirect", true}, {"none", false}})},
      {"key", kElsewhere, "FILE", "Key for memservers and gpunodes (olctl keygen)",
       "$CREDENTIALS_DIRECTORY/olpager.key, where it is",
       setter::path(s.key, "the absolute path of a key file (olctl keygen makes one)")},
      {"tls", kElsewhere, "WHAT", "What goes to them encrypted: all, control or off", "all",
       setter::word(s.tls, kTlsWords)},
      {"driver", kRun, "FILE|sim", "The libcuda to use; sim: the simulated GPU", "the loader's",
       setter::path(s.driver, "the absolute path of a libcuda.so.1, or sim", "sim")},
      {"managed", kRun, "OWNER", "Who moves managed memory between CPU and GPU: pager or driver",
       "pager",
       setter::word(s.managed,
                    {{"pager", ManagedSetting::kPager}, {"driver", ManagedSetting::kDriver}})},
      {"exportable", kRun, "OWNER",
       "Whose exportable memory of cuMemCreate is: pager, which pages it, or driver", "driver",
       setter::word(s.exportable, {{"pager", ExportableSetting::kPager},
                                   {"driver", ExportableSetting::kDriver}})},
      {"log", kRun, "LEVEL", "off, error, warn, info, debug or trace", "warn",
       setter::logLevel(s.log)},
  });
}

std::vector<std::string> SettingsSources::currentEnvironment() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++)
    all.emplace_back(*entry);
  return all;
}

std::string localKeyPath(const std::string& socket) { return socket + ".key"; }

Status checkLocalStarted(const Settings& settings) {
  if (std::find(settings.gpunodes.begin(), settings.gpunodes.end(), kLocalGpunode) ==
      settings.gpunodes.end())
    return {};
  return Error{
      "gpunode = local: olrun starts that gpunode, and this program was started without it: olrun "
      "--gpunode local -- PROGRAM"};
}

Result<Settings> loadSettings(const SettingsSources& sources) {
  Settings settings;
  OptionTable table = optionsOf(settings);
  std::vector<std::pair<std::string, bool>> files{{sources.system_file, false}};
  if (auto user = userFile(sources.environment); !user.empty()) files.emplace_back(user, false);
  if (const auto named = lookUp(sources.environment, "OL_CONFIG"); named && !named->empty()) {
    if (!named->starts_with('/'))
      return Error{base::format("OL_CONFIG: {}", notAllowed(*named, "an absolute path").message)};
    files.emplace_back(*named, true);
  }
  for (const auto& [path, required] : files) {
    if (auto status = table.readFile(path, required); !status.ok()) return status.error();
  }
  if (auto status = readEnvironment(table, settings, sources); !status.ok()) return status.error();
  if (auto status = checkTogether(table, settings); !status.ok()) return status.error();
  nameLocal(settings, sources.environment);
  if (settings.key.empty())
    settings.key = credentialFile(lookUp(sources.environment, "CREDENTIALS_DIRECTORY").value_or(""),
                                  kProgramCredential);
  return settings;
}

}  // namespace olpager::base
