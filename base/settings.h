// The settings of a program under olpager. In rising order: built-in defaults,
// /etc/olpager/olpager.toml, $XDG_CONFIG_HOME/olpager/olpager.toml (else
// ~/.config/olpager/olpager.toml), the file that OL_CONFIG names, the OL_* variables. Never a file
// of the working directory: a setting names a library to load.
// optionsOf() has them all.
//
// Thread-safety: pure functions of their input. Errors: one line that names the file and line or
// the variable, the value, and what is allowed. An OL_ variable that nobody knows is a warning
// only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/options.h"
#include "base/result.h"
#include "base/size.h"

namespace olpager::base {

/// The allocations that a launch is taken to reach besides those that its parameters name.
enum class ReachSetting : uint8_t { kTraced, kAll, kLearned };
inline constexpr std::initializer_list<Word<ReachSetting>> kReachWords = {
    {"traced", ReachSetting::kTraced},
    {"all", ReachSetting::kAll},
    {"learned", ReachSetting::kLearned}};
/// The memory that the program is told of: this node's, or the whole pool's.
enum class ReportSetting : uint8_t { kNode, kPool };
inline constexpr std::initializer_list<Word<ReportSetting>> kReportWords = {
    {"node", ReportSetting::kNode}, {"pool", ReportSetting::kPool}};
/// The owner of physical memory that the program creates as exportable (cuMemCreate). The driver's
/// never leaves VRAM, while VRAM has room for it; the pager's can't be exported. kUnset: the
/// driver, or with a gpunode the setting of the gpunode.
enum class ExportableSetting : uint8_t { kUnset, kDriver, kPager };

/// The mover of managed memory (cuMemAllocManaged) between CPU and GPU.
enum class ManagedSetting : uint8_t { kPager, kDriver };

/// The encrypted part of a link, once both ends have proved that they hold the same key. kOff:
/// nothing after the proof. The stricter of both ends' settings holds.
enum class TlsSetting : uint8_t { kOff, kControl, kAll };
inline constexpr std::initializer_list<Word<TlsSetting>> kTlsWords = {
    {"all", TlsSetting::kAll}, {"control", TlsSetting::kControl}, {"off", TlsSetting::kOff}};

/// The devices that a forwarded program sees: each GPU of its gpunodes, or one device in the place
/// of all.
enum class ViewSetting : uint8_t { kDiscrete, kUnified };

/// The transport of a pair of nodes. kAuto: shared memory where both run on one host; else RDMA
/// where both have a card for the address and not everything is to be encrypted; else TCP.
enum class TransportSetting : uint8_t { kAuto, kTcp, kShm, kVerbs };
inline constexpr std::initializer_list<Word<TransportSetting>> kTransportWords = {
    {"auto", TransportSetting::kAuto},
    {"tcp", TransportSetting::kTcp},
    {"shm", TransportSetting::kShm},
    {"verbs", TransportSetting::kVerbs}};

/// Operations of the unified view go to their pages, or to one gpunode after the other. Any other
/// text is one of `gpunodes`, to which all go.
inline constexpr std::string_view kRouteOwner = "owner";
inline constexpr std::string_view kRouteRoundRobin = "rr";

inline constexpr unsigned kMostGpunodes = 16;  // of a program
/// In the place of a gpunode's address: a gpunode of this machine's GPUs that olrun starts for the
/// program alone, and that ends with the program.
inline constexpr std::string_view kLocalGpunode = "local";
/// Set by olrun: the path of that gpunode's Unix socket, beside the gpunode's key.
inline constexpr const char* kLocalVariable = "OL_LOCAL_GPUNODE";
/// The path of the key that belongs to such a socket.
std::string localKeyPath(const std::string& socket);

/// A folder on a disk, by its absolute path, and how much of the program's memory may lie there.
struct DiskSetting {
  std::string folder;
  uint64_t bytes = 0;
  bool operator==(const DiskSetting&) const = default;
};

// Many members: one for each option.
struct Settings {
  Budget vram;  // of each device; not given: what the driver has free less a reserve
  Budget
      host;  // host tier; not given: 80 % of the smaller of available memory and the cgroup's limit
  ReachSetting reach = ReachSetting::kTraced;
  ReportSetting report = ReportSetting::kNode;
  ExportableSetting exportable = ExportableSetting::kUnset;
  ManagedSetting managed = ManagedSetting::kPager;
  bool pack = true;            // what streams through VRAM crosses the bus packed, where it packs
  bool stream_arenas = false;  // what launches name of arenas that copies fill comes to VRAM
  uint64_t va_base = 0;        // 0: the built-in base
  uint64_t va_size = 0;        // 0: 16 TiB
  LogLevel log = LogLevel::kWarn;
  std::vector<DiskSetting> disks;       // below host RAM
  bool disk_encrypt = true;             // what lies there, by a key of the process alone
  std::vector<std::string> memservers;  // "host:port", "[v6]:port" or "unix:/path"; each once
  uint32_t replicas = 1;                // of what they hold: 1 or 2
  std::string key;  // absolute path of the file with the key for memservers and gpunodes; "": none
  TlsSetting tls = TlsSetting::kAll;
  std::vector<std::string> gpunodes;  // "host:port", each once: the program is forwarded there
                                      // (docs/internals/forwarding.md); none: local mode
  std::string local_gpunode;  // of these, the one that olrun has started ("local"), and the file
  std::string local_key;      // with its key; "": none. Before that `gpunodes` has "local" itself
  ViewSetting view = ViewSetting::kDiscrete;
  std::string route{kRouteOwner};                        // of the unified view
  TransportSetting transport = TransportSetting::kAuto;  // to memservers and gpunodes
  std::vector<std::string> rails;                        // addresses of RDMA cards; none: one card
  bool require_gpudirect =
      false;           // pages go straight between VRAM and memservers, or the start is refused
  std::string driver;  // absolute path of a libcuda, "sim" for the simulated GPU, "" for the
                       // loader's own search
  std::vector<std::string> warnings;  // one line each, for the log
};

/// All that sets `settings`.
OptionTable optionsOf(Settings& settings);

/// The sources of settings; a program uses the members' defaults.
struct SettingsSources {
  std::string system_file = "/etc/olpager/olpager.toml";
  std::vector<std::string> environment = currentEnvironment();  // NAME=value
  std::map<std::string, std::string> options = {};  // by variable: the option that has set it

  static std::vector<std::string> currentEnvironment();
};

/// All settings. A named file (OL_CONFIG) has to exist; the others need not.
Result<Settings> loadSettings(const SettingsSources& sources = {});

/// An Error, with what to do, if a gpunode "local" is named and olrun has started none.
Status checkLocalStarted(const Settings& settings);

}  // namespace olpager::base
