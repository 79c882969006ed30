// The settings of a program under olpager. In rising order: built-in defaults,
// /etc/olpager/olpager.toml, $XDG_CONFIG_HOME/olpager/olpager.toml (else
// ~/.config/olpager/olpager.toml), the file that OL_CONFIG names, the OL_* variables. Never a file
// of the working directory: a setting names a library to load.
//
// Keys of the file and their variables (docs/reference/settings.md):
//   vram (OL_VRAM)  host (OL_HOST)  reach (OL_REACH)  report (OL_REPORT)  va_base (OL_VA_BASE)
//                                                     va_size (OL_VA_SIZE)
//   log (OL_LOG)  driver (OL_DRIVER)  memserver (OL_MEMSERVER)  replicas (OL_REPLICAS)  key
//                                     (OL_KEY)  tls (OL_TLS)
//   gpunode (OL_GPUNODE)  view (OL_VIEW)  route (OL_ROUTE)  transport (OL_TRANSPORT)
//   rails (OL_RAILS)  require (OL_REQUIRE)
//   exportable (OL_EXPORTABLE)  pack (OL_PACK)  arenas (OL_ARENAS)
//   managed (OL_MANAGED)
// Thread-safety: pure functions of their input. Errors: one line that names the file and line or
// the variable, the value, and what is allowed. An OL_ variable that nobody knows is a warning
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "base/size.h"

namespace olpager::base {

/// Which allocations a launch is taken to reach besides those that its parameters name.
enum class ReachSetting : uint8_t { kTraced, kAll, kLearned };
/// What the program is told of its memory: this node's, or the whole pool's.
enum class ReportSetting : uint8_t { kNode, kPool };
/// Whose the physical memory is that the program creates as exportable (cuMemCreate): the driver's
/// as long as VRAM has room for it, which never leaves VRAM, or the pager's, which can't be
/// exported. What nobody has set is the driver's; with a gpunode, what that has set.
enum class ExportableSetting : uint8_t { kUnset, kDriver, kPager };

/// Who moves managed memory (cuMemAllocManaged) between CPU and GPU.
enum class ManagedSetting : uint8_t { kPager, kDriver };

/// What goes to memservers and gpunodes encrypted.
enum class TlsSetting : uint8_t { kAll, kControl, kOff };

/// What a forwarded program sees of the GPUs of its gpunodes: each as a device of its own, or one
/// device in the place of all.
enum class ViewSetting : uint8_t { kDiscrete, kUnified };

/// How a gpunode is spoken to: shared memory where both are on one host, else TCP; or one of them.
enum class TransportSetting : uint8_t { kAuto, kTcp, kShm, kVerbs };

/// Where operations of the unified view go: where their pages are, or to one gpunode after the
/// other. Else the text is one of `gpunodes`: to that one.
inline constexpr std::string_view kRouteOwner = "owner";
inline constexpr std::string_view kRouteRoundRobin = "rr";

inline constexpr unsigned kMostGpunodes = 16;  // of a program
/// In the place of a gpunode's address: one of this machine's GPUs for the program alone, which
/// olrun starts. It ends with the program.
inline constexpr std::string_view kLocalGpunode = "local";
/// Set by olrun: the path of that gpunode's Unix socket. Its key is beside it.
inline constexpr const char* kLocalVariable = "OL_LOCAL_GPUNODE";
/// The path of the key that belongs to such a socket.
std::string localKeyPath(const std::string& socket);
inline constexpr uint64_t kSettingsPageBytes =
    2ull << 20;  // the pager's page: no budget below it can work

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
  std::vector<std::string> memservers;  // "host:port", "[v6]:port" or "unix:/path"; each once
  unsigned replicas = 1;                // of what they hold: 1 or 2
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
  // By key, of each that a file or a variable gave: how an error names the place.
  std::map<std::string, std::string, std::less<>> origins;
};

const char* reachName(ReachSetting reach);
const char* reportName(ReportSetting report);

/// Where settings come from; the members' defaults are what a program uses.
struct SettingsSources {
  std::string system_file = "/etc/olpager/olpager.toml";
  std::vector<std::string> environment = currentEnvironment();  // NAME=value
  std::map<std::string, std::string> options = {};  // by variable: the option that has set it

  static std::vector<std::string> currentEnvironment();
};

/// All settings. A named file (OL_CONFIG) has to exist; the others need not.
Result<Settings> loadSettings(const SettingsSources& sources = {});

/// From the working directory on; `path` itself where that can't be told.
std::string absolutePath(const std::string& path);
/// A setting's value as somebody gives it on a command line, where the paths of `driver` and `key`
/// may be relative ones.
std::string fromCommandLine(std::string_view key, const std::string& text);

/// Sets one by its key (as in the file) from text. The Error does not name where the text came
/// from.
Status applySetting(Settings& settings, std::string_view key, std::string_view text);

/// Whether a gpunode "local" is named and olrun has started none: the Error says what to do.
Status checkLocalStarted(const Settings& settings);

/// What no single setting shows: a range that can't be, a route that leads nowhere. Called by
/// loadSettings.
Status checkSettings(const Settings& settings);

}  // namespace olpager::base
