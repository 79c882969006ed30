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
#include "base/size_words.h"
#include "base/space/pages.h"
#include "base/text.h"
#include "base/toml_file.h"

namespace olpager::base {
namespace {

constexpr uint64_t kVaEnd = 1ull << 47;  // the end of user space with four-level page tables

Error notAllowed(std::string_view text, std::string_view allowed) {
  return Error{base::format("'{}' is not allowed; allowed: {}", printable(text), allowed)};
}

Status setBudget(Budget& into, std::string_view text) {
  auto budget = parseBudget(text);
  if (!budget.ok()) return budget.error();
  if (budget.value().percent == 0 && budget.value().bytes < kSettingsPageBytes)
    return belowPage(text, kSettingsPageBytes);
  into = budget.value();
  return {};
}

Status setRangeEdge(uint64_t& into, std::string_view text) {
  auto bytes = parseSize(text);
  if (!bytes.ok()) return bytes.error();
  if (bytes.value() == 0 || bytes.value() % kSettingsPageBytes != 0 || bytes.value() >= kVaEnd) {
    return notAllowed(text, "a multiple of 2MiB above 0 and below 0x800000000000");
  }
  into = bytes.value();
  return {};
}

Status setVram(Settings& settings, std::string_view text) { return setBudget(settings.vram, text); }
Status setHost(Settings& settings, std::string_view text) { return setBudget(settings.host, text); }
Status setVaBase(Settings& settings, std::string_view text) {
  return setRangeEdge(settings.va_base, text);
}
Status setVaSize(Settings& settings, std::string_view text) {
  return setRangeEdge(settings.va_size, text);
}

Status setReach(Settings& settings, std::string_view text) {
  for (auto reach : {ReachSetting::kTraced, ReachSetting::kAll, ReachSetting::kLearned}) {
    if (text == reachName(reach)) {
      settings.reach = reach;
      return {};
    }
  }
  return notAllowed(text, "traced, all or learned");
}

Status setReport(Settings& settings, std::string_view text) {
  for (auto report : {ReportSetting::kNode, ReportSetting::kPool}) {
    if (text == reportName(report)) {
      settings.report = report;
      return {};
    }
  }
  return notAllowed(text, "node or pool");
}

Status setManaged(Settings& settings, std::string_view text) {
  if (text != "pager" && text != "driver") return notAllowed(text, "pager or driver");
  settings.managed = text == "pager" ? ManagedSetting::kPager : ManagedSetting::kDriver;
  return {};
}

Status setExportable(Settings& settings, std::string_view text) {
  if (text != "pager" && text != "driver") return notAllowed(text, "pager or driver");
  settings.exportable = text == "pager" ? ExportableSetting::kPager : ExportableSetting::kDriver;
  return {};
}

Status setPack(Settings& settings, std::string_view text) {
  if (text != "on" && text != "off") return notAllowed(text, "on or off");
  settings.pack = text == "on";
  return {};
}

Status setArenas(Settings& settings, std::string_view text) {
  if (text != "in-place" && text != "streamed") return notAllowed(text, "in-place or streamed");
  settings.stream_arenas = text == "streamed";
  return {};
}

Status setLog(Settings& settings, std::string_view text) {
  const auto level = parseLogLevel(text);
  if (!level) return notAllowed(text, kLogLevels);
  settings.log = *level;
  return {};
}

Status setDriver(Settings& settings, std::string_view text) {
  if (text != "sim" && !text.starts_with('/'))
    return notAllowed(text, "the absolute path of a libcuda.so.1, or sim");
  settings.driver = text;
  return {};
}

Status setMemservers(Settings& settings, std::string_view text) {
  std::vector<std::string> found;
  if (text == "none") {
    settings.memservers.clear();
    return {};
  }
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    if (auto status = checkAddress(one, AddressUse::kConnect, kMemserverPort); !status.ok())
      return Error{status.error().message + "; several with commas between; or none"};
    if (std::find(found.begin(), found.end(), one) != found.end())
      return Error{base::format("{} is named twice; each memserver once", printable(one))};
    found.emplace_back(one);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  settings.memservers = std::move(found);
  return {};
}

Status setReplicas(Settings& settings, std::string_view text) {
  if (text != "1" && text != "2") return notAllowed(text, "1 or 2");
  settings.replicas = text == "1" ? 1 : 2;
  return {};
}

Status setKey(Settings& settings, std::string_view text) {
  if (!text.starts_with('/'))
    return notAllowed(text, "the absolute path of a key file (olctl keygen makes one)");
  settings.key = text;
  return {};
}

Status setTls(Settings& settings, std::string_view text) {
  if (text == "all") {
    settings.tls = TlsSetting::kAll;
  } else if (text == "control") {
    settings.tls = TlsSetting::kControl;
  } else if (text == "off") {
    settings.tls = TlsSetting::kOff;
  } else {
    return notAllowed(text, "all, control or off");
  }
  return {};
}

Status setGpunode(Settings& settings, std::string_view text) {
  if (text == "none") {
    settings.gpunodes.clear();
    return {};
  }
  std::vector<std::string> found;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    if (one.starts_with(base::format("{}:", kLocalGpunode)))
      return Error{base::format(
          "'{}': {} has no port, it is a gpunode that olrun starts; one that listens on this "
          "machine is 127.0.0.1{}",
          printable(one), kLocalGpunode, printable(one.substr(kLocalGpunode.size())))};
    if (auto status =
            one == kLocalGpunode ? Status{} : checkAddress(one, AddressUse::kConnect, kGpunodePort);
        !status.ok())
      return Error{status.error().message + "; several with commas between; local; or none"};
    if (std::find(found.begin(), found.end(), one) != found.end())
      return Error{base::format("{} is named twice; each gpunode once", printable(one))};
    found.emplace_back(one);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (found.size() > kMostGpunodes)
    return Error{
        base::format("{} gpunodes; a program has at most {}", found.size(), kMostGpunodes)};
  settings.gpunodes = std::move(found);
  return {};
}

Status setView(Settings& settings, std::string_view text) {
  if (text == "discrete") {
    settings.view = ViewSetting::kDiscrete;
  } else if (text == "unified") {
    settings.view = ViewSetting::kUnified;
  } else {
    return notAllowed(text, "discrete or unified");
  }
  return {};
}

// Of a route to one of a gpunode's GPUs ("HOST:PORT/1"): the gpunode. "": it is none.
std::string_view gpunodeOfGpu(std::string_view route) {
  const size_t slash = route.rfind('/');
  if (slash == std::string_view::npos || slash + 1 == route.size() ||
      route.find_first_not_of("0123456789", slash + 1) != std::string_view::npos)
    return "";
  return route.substr(0, slash);
}

Status setRoute(Settings& settings, std::string_view text) {
  const auto isGpunode = [](std::string_view name) {
    return name == kLocalGpunode || checkAddress(name, AddressUse::kConnect, kGpunodePort).ok();
  };
  if (text != kRouteOwner && text != kRouteRoundRobin && !isGpunode(text) &&
      !isGpunode(gpunodeOfGpu(text)))
    return notAllowed(text,
                      "owner, rr, local, or a gpunode as --gpunode names it, with /N for its GPU N "
                      "where it has several");
  settings.route = text;
  return {};
}

Status setTransport(Settings& settings, std::string_view text) {
  if (text == "auto") {
    settings.transport = TransportSetting::kAuto;
  } else if (text == "tcp") {
    settings.transport = TransportSetting::kTcp;
  } else if (text == "shm") {
    settings.transport = TransportSetting::kShm;
  } else if (text == "verbs") {
    settings.transport = TransportSetting::kVerbs;
  } else {
    return notAllowed(text, "auto, tcp, shm or verbs");
  }
  return {};
}

Status setRails(Settings& settings, std::string_view text) {
  auto rails = parseRails(text);
  if (!rails.ok()) return rails.error();
  settings.rails = std::move(rails.value());
  return {};
}

Status setRequire(Settings& settings, std::string_view text) {
  if (text != "gpudirect" && text != "none") return notAllowed(text, "gpudirect or none");
  settings.require_gpudirect = text == "gpudirect";
  return {};
}

// The one list of settings.
struct Key {
  const char* key;
  const char* variable;
  Status (*set)(Settings&, std::string_view);
  bool number;        // a TOML integer will do
  bool list = false;  // so will an array of strings: as text with commas between
};
constexpr Key kKeys[] = {
    {"vram", "OL_VRAM", setVram, true},
    {"host", "OL_HOST", setHost, true},
    {"reach", "OL_REACH", setReach, false},
    {"report", "OL_REPORT", setReport, false},
    {"va_base", "OL_VA_BASE", setVaBase, true},
    {"va_size", "OL_VA_SIZE", setVaSize, true},
    {"log", "OL_LOG", setLog, false},
    {"driver", "OL_DRIVER", setDriver, false},
    {"exportable", "OL_EXPORTABLE", setExportable, false},
    {"pack", "OL_PACK", setPack, false},
    {"arenas", "OL_ARENAS", setArenas, false},
    {"managed", "OL_MANAGED", setManaged, false},
    {"memserver", "OL_MEMSERVER", setMemservers, false, true},
    {"replicas", "OL_REPLICAS", setReplicas, true},
    {"key", "OL_KEY", setKey, false},
    {"tls", "OL_TLS", setTls, false},
    {"gpunode", "OL_GPUNODE", setGpunode, false, true},
    {"view", "OL_VIEW", setView, false},
    {"route", "OL_ROUTE", setRoute, false},
    {"transport", "OL_TRANSPORT", setTransport, false},
    {"rails", "OL_RAILS", setRails, false, true},
    {"require", "OL_REQUIRE", setRequire, false},
};

const Key* findKey(std::string_view name) {
  for (const auto& key : kKeys) {
    if (name == key.key) return &key;
  }
  return nullptr;
}

std::vector<std::string> keyNames() {
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.key);
  return names;
}

std::vector<std::string> variableNames() {
  std::vector<std::string> names;
  for (const auto& key : kKeys) names.emplace_back(key.variable);
  return names;
}

// Variables that other parts of the project read.
bool knownElsewhere(std::string_view name) {
  return name == "OL_CONFIG" || name == "OL_COUNTERS_KEEP" || name == kProgramVariable ||
         name == kLocalVariable || name.starts_with("OL_SIM_") || name.starts_with("OL_TEST_");
}

// A value as settings take it.
std::optional<std::string> valueText(const TomlEntry& entry, const Key& key) {
  using Kind = TomlEntry::Kind;
  if (entry.kind == Kind::kText) return entry.text;
  if (entry.kind == Kind::kNumber && key.number && !entry.text.starts_with('-')) return entry.text;
  if (entry.kind == Kind::kList && key.list && entry.texts_only)
    return entry.text.empty() ? "none" : entry.text;
  return std::nullopt;
}

Status applyFile(Settings& settings, const std::string& path, bool required) {
  const auto entries = readTomlFile(path, required);
  if (!entries.ok()) return entries.error();
  for (const TomlEntry& entry : entries.value()) {
    const Key* key = findKey(entry.key);
    if (key == nullptr)
      return Error{base::format("{}: {}", entry.place,
                                entry.kind == TomlEntry::Kind::kTable
                                    ? unknownTable(entry.key)
                                    : unknownKey(entry.key, keyNames()))};
    if (entry.kind == TomlEntry::Kind::kTable)
      return Error{base::format("{}: [{}] makes a table, and {} is a setting; say {} = \"...\"",
                                entry.place, key->key, key->key, key->key)};
    const auto value = valueText(entry, *key);
    if (!value) {
      return Error{base::format("{}: {} is of type {}; allowed: {}", entry.place, key->key,
                                entry.type,
                                key->number ? "a string or a number that is not negative"
                                : key->list ? "a string or an array of strings"
                                            : "a string")};
    }
    if (auto status = key->set(settings, *value); !status.ok()) {
      return Error{base::format("{}: {}: {}", entry.place, key->key, status.error().message)};
    }
    settings.origins[key->key] = base::format("{}: {}", entry.place, key->key);
  }
  return {};
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

Status applyEnvironment(Settings& settings, const SettingsSources& sources) {
  for (const auto& entry : sources.environment) {
    if (!entry.starts_with("OL_")) continue;
    const auto equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    const std::string value = entry.substr(equals + 1);
    const Key* key = nullptr;
    for (const auto& known : kKeys) {
      if (name == known.variable) key = &known;
    }
    if (key == nullptr) {
      if (!knownElsewhere(name))
        settings.warnings.push_back(base::format("{}={}: no such setting, ignored{}", name, value,
                                                 didYouMean(name, variableNames())));
      continue;
    }
    if (value.empty()) continue;  // set to nothing is not set
    if (auto status = key->set(settings, value); !status.ok()) {
      return Error{base::format("{}: {}", name, status.error().message)};
    }
    const auto option = sources.options.find(name);
    settings.origins[key->key] = option == sources.options.end() ? name : option->second;
  }
  return {};
}

// What is wrong with a value beside others, with where it came from.
Error wrongWithOthers(const Settings& settings, const char* key, const std::string& what) {
  const auto origin = settings.origins.find(key);
  return Error{
      base::format("{}: {}", origin == settings.origins.end() ? key : origin->second, what)};
}

// The address of the gpunode that olrun has started, in the place of its name.
void nameLocal(Settings& settings, const std::vector<std::string>& environment) {
  const auto socket = lookUp(environment, kLocalVariable).value_or("");
  const auto local = std::find(settings.gpunodes.begin(), settings.gpunodes.end(), kLocalGpunode);
  if (local == settings.gpunodes.end() || !socket.starts_with('/')) return;
  *local = settings.local_gpunode = base::format("unix:{}", socket);
  settings.local_key = localKeyPath(std::string(socket));
}

}  // namespace

const char* reachName(ReachSetting reach) {
  switch (reach) {
    case ReachSetting::kTraced:
      return "traced";
    case ReachSetting::kAll:
      return "all";
    case ReachSetting::kLearned:
      return "learned";
  }
  return "";
}

const char* reportName(ReportSetting report) {
  return report == ReportSetting::kNode ? "node" : "pool";
}

std::vector<std::string> SettingsSources::currentEnvironment() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; entry++)
    all.emplace_back(*entry);
  return all;
}

std::string absolutePath(const std::string& path) {
  std::error_code failure;
  const auto full = std::filesystem::absolute(path, failure);
  return failure ? path : full.lexically_normal().string();
}

std::string fromCommandLine(std::string_view key, const std::string& text) {
  const bool is_path = key == "driver" ? text != "sim" : key == "key";
  return is_path && !text.empty() && text != "none" ? absolutePath(text) : text;
}

Status applySetting(Settings& settings, std::string_view key, std::string_view text) {
  const Key* known = findKey(key);
  if (known == nullptr) return Error{unknownKey(key, keyNames())};
  return known->set(settings, text);
}

// What the unified view has no place for yet, or never.
Status checkUnified(const Settings& settings) {
  const auto& gpunodes = settings.gpunodes;
  if (gpunodes.empty()) return {};
  if (settings.exportable == ExportableSetting::kDriver)
    return wrongWithOthers(settings, "exportable",
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
      settings, "route",
      notAllowed(settings.route,
                 "owner, rr, or a gpunode as --gpunode names it, with /N for its GPU N where it "
                 "has several: " +
                     printable(named))
          .message);
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

Status checkSettings(const Settings& settings) {
  const uint64_t size = settings.va_size != 0 ? settings.va_size : space::kDefaultVaSize;
  if (settings.va_base != 0 && settings.va_base > kVaEnd - size) {
    return wrongWithOthers(
        settings, "va_base",
        base::format("0x{:x} and va_size {} end above 0x{:x}, where user space ends; lower one of "
                     "them",
                     settings.va_base, exactSize(size), kVaEnd));
  }
  if (settings.require_gpudirect && !settings.gpunodes.empty())
    return wrongWithOthers(settings, "require",
                           "'gpudirect' is of programs with a driver of their own; a gpunode does "
                           "not promise it: leave it out");
  if (settings.require_gpudirect && settings.memservers.empty())
    return wrongWithOthers(settings, "require",
                           "'gpudirect' is about the way to memservers, and none is named: name "
                           "one (memserver), or leave it out");
  return settings.view == ViewSetting::kUnified ? checkUnified(settings) : Status{};
}

Result<Settings> loadSettings(const SettingsSources& sources) {
  Settings settings;
  std::vector<std::pair<std::string, bool>> files{{sources.system_file, false}};
  if (auto user = userFile(sources.environment); !user.empty()) files.emplace_back(user, false);
  if (const auto named = lookUp(sources.environment, "OL_CONFIG"); named && !named->empty()) {
    if (!named->starts_with('/'))
      return Error{base::format("OL_CONFIG: {}", notAllowed(*named, "an absolute path").message)};
    files.emplace_back(*named, true);
  }
  for (const auto& [path, required] : files) {
    if (auto status = applyFile(settings, path, required); !status.ok()) return status.error();
  }
  if (auto status = applyEnvironment(settings, sources); !status.ok()) return status.error();
  if (auto status = checkSettings(settings); !status.ok()) return status.error();
  nameLocal(settings, sources.environment);
  if (settings.key.empty())
    settings.key = credentialFile(lookUp(sources.environment, "CREDENTIALS_DIRECTORY").value_or(""),
                                  kProgramCredential);
  return settings;
}

}  // namespace olpager::base
