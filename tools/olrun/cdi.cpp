#include "tools/olrun/cdi.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/process.h"
#include "base/text.h"
#include "coherence/transport/from_settings.h"

namespace olpager::tools {
namespace {

using Json = nlohmann::ordered_json;

// In the container. A folder that no image has.
constexpr const char* kFolder = "/opt/olpager";
constexpr const char* kSystemSettings = "/etc/olpager/olpager.toml";
// A container's engine sets a variable in place of the image's. The value is that of NVIDIA's
// images.
constexpr const char* kLibraryPathOfImages = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64";
constexpr const char* kFaultDevice = "/dev/userfaultfd";
constexpr size_t kLongestName = 63;

bool isAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool isThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Without links: an engine follows none of an upgrade's, and a link of the host leads nowhere in
// the container.
std::string resolved(const std::string& path) {
  std::error_code failure;
  const auto real = std::filesystem::canonical(path, failure);
  return failure ? std::string() : real.string();
}

Json readOnly(const std::string& host, const std::string& inside) {
  return {{"hostPath", host},
          {"containerPath", inside},
          {"options", {"ro", "nosuid", "nodev", "bind"}}};
}

Json writable(const std::string& host, const std::string& inside) {
  return {{"hostPath", host},
          {"containerPath", inside},
          {"options", {"rw", "nosuid", "nodev", "noexec", "bind"}}};
}

// These variables are about files of this machine, a single run, or set below.
bool staysHere(std::string_view variable) {
  constexpr std::string_view kStay[] = {"OL_CONFIG",          "OL_KEY",
                                        "OL_DRIVER",          "OL_COUNTERS_KEEP",
                                        base::kLocalVariable, base::kProgramVariable};
  return std::find(std::begin(kStay), std::end(kStay), variable) != std::end(kStay);
}

// Refuses options that only olrun acts on, or that name this machine alone.
Status checkAddresses(const std::vector<std::string>& addresses, const char* kind) {
  for (const std::string& address : addresses) {
    if (address == base::kLocalGpunode)
      return Error{
          "--cdi: gpunode local is started by olrun for one program, and no olrun runs in a "
          "container; start olgpunode on this machine and name it: --gpunode HOST:7071"};
    if (address.starts_with("unix:"))
      return Error{base::format(
          "--cdi: {} {} is a socket of this machine, which a container does not see; name it by "
          "HOST:PORT",
          kind, base::printable(address))};
  }
  return {};
}

Status check(const base::Settings& settings, const CdiParts& parts) {
  if (auto status = checkAddresses(settings.gpunodes, "gpunode"); !status.ok()) return status;
  if (auto status = checkAddresses(settings.memservers, "memserver"); !status.ok()) return status;
  if (parts.library.empty())
    return Error{
        "--cdi: libolpager.so is not in this build or installation; install package "
        "olpager"};
  if (settings.driver == "sim" && parts.simulator.empty())
    return Error{
        "--cdi: libolsimcuda.so, the simulated GPU, is not in this build or installation; install "
        "package olpager-simgpu"};
  if (!settings.driver.empty() && settings.driver != "sim")
    return Error{base::format(
        "--cdi: driver {}: a container has its driver by its engine (--gpus all, --device "
        "nvidia.com/gpu=all); leave --driver out, or take sim",
        base::printable(settings.driver))};
  for (const base::DiskSetting& disk : settings.disks)
    if (settings.gpunodes.empty() && resolved(disk.folder).empty())
      return Error{base::format("--cdi: the folder {} of --disk is not there; make it first",
                                base::printable(disk.folder))};
  if (settings.key.empty()) return {};
  // The user who reads the key here is mostly root; its file is to be one that is accepted at all.
  if (const auto network = transport::optionsFrom(settings); !network.ok())
    return Error{base::format("--cdi: {}", network.error().message)};
  return {};
}

}  // namespace

Status checkCdiName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kLongestName && isAlphanumeric(name.front()) &&
                    isAlphanumeric(name.back()) &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return isAlphanumeric(c) || c == '-' || c == '_' || c == '.';
                    });
  if (good) return {};
  return Error{base::format(
      "'{}' is not allowed; allowed: up to {} letters, digits, '-', '_' and '.', of which the "
      "first and the last are a letter or a digit",
      base::printable(name), kLongestName)};
}

Result<std::string> cdiText(const std::string& name, const base::Settings& settings,
                            const Environment& environment, const CdiParts& parts) {
  if (auto status = check(settings, parts); !status.ok()) return status.error();
  const bool forwarded = !settings.gpunodes.empty();
  const std::string libraries = base::format("{}/lib", kFolder);

  Json mounts = Json::array();
  const auto mount = [&mounts](const std::string& host, const std::string& inside) {
    mounts.push_back(readOnly(resolved(host), inside));
  };
  // Under both names of the driver's, since programs ask for either.
  const std::string library = libraries + "/libcuda.so.1";
  mount(parts.library, library);
  mount(parts.library, libraries + "/libcuda.so");

  Environment inside({});
  for (const std::string& entry : environment.entries()) {
    const size_t equals = entry.find('=');
    if (!entry.starts_with("OL_") || equals == std::string::npos) continue;
    const std::string variable = entry.substr(0, equals);
    if (!staysHere(variable)) inside.set(variable, entry.substr(equals + 1));
  }
  std::string path = base::format("{}:{}", libraries, kLibraryPathOfImages);
  if (settings.driver == "sim") {
    mount(parts.simulator, libraries + "/libolsimcuda.so");
    inside.set("OL_DRIVER", libraries + "/libolsimcuda.so");
  }
  if (const std::string nvml = resolved(parts.nvml_folder + "/libnvidia-ml.so.1");
      forwarded && !parts.nvml_folder.empty() && !nvml.empty()) {
    mount(nvml, libraries + "/nvml/libnvidia-ml.so.1");
    mount(nvml, libraries + "/nvml/libnvidia-ml.so");
    path.insert(0, libraries + "/nvml:");
  }
  if (!settings.key.empty()) {
    const std::string key = base::format("{}/client.key", kFolder);
    mount(settings.key, key);
    inside.set("OL_KEY", key);
  }
  std::set<std::string> disks;
  for (const base::DiskSetting& disk : settings.disks)
    if (!forwarded && disks.insert(disk.folder).second)
      mounts.push_back(writable(resolved(disk.folder), disk.folder));
  if (isThere(kSystemSettings)) mount(kSystemSettings, kSystemSettings);
  if (const std::string named = environment.get("OL_CONFIG"); !named.empty()) {
    const std::string config = base::format("{}/settings.toml", kFolder);
    mount(named, config);
    inside.set("OL_CONFIG", config);
  }
  inside.set("LD_PRELOAD", library);
  inside.set("LD_LIBRARY_PATH", path);
  inside.set("TRITON_LIBCUDA_PATH", libraries);
  addFrameworkDefaults(inside, forwarded);

  std::vector<std::string> variables = inside.entries();
  std::sort(variables.begin(), variables.end());
  Json edits = {{"env", variables}};
  // An ordinary user's page faults of managed memory; in a container root's as well.
  if (isThere(kFaultDevice))
    edits["deviceNodes"] = {{{"path", kFaultDevice}, {"permissions", "rw"}}};
  edits["mounts"] = mounts;

  const bool digit_first = name.front() >= '0' && name.front() <= '9';
  Json device;
  device["name"] = name;
  device["containerEdits"] = edits;
  Json file;
  file["cdiVersion"] = digit_first ? "0.5.0" : "0.3.0";
  file["kind"] = kCdiKind;
  file["devices"] = Json::array({device});
  return file.dump(2, ' ', false, Json::error_handler_t::strict) + "\n";
}

Status writeCdi(const std::string& path, const std::string& text) {
  const auto failed = [&path](int why) {
    return Error{base::format("--out: {}: {}{}", base::printable(path), std::strerror(why),
                              why == ENOENT ? "; make its folder first" : "")};
  };
  // A name that engines do not read (they take .json and .yaml).
  const std::string before = base::format("{}.{}.new", path, getpid());
  base::UniqueFd file(open(before.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return failed(errno);
  size_t at = 0;
  int why = 0;
  while (at < text.size() && why == 0) {
    const ssize_t wrote = write(file.get(), text.data() + at, text.size() - at);
    if (wrote >= 0) {
      at += static_cast<size_t>(wrote);
    } else if (errno != EINTR) {
      why = errno;
    }
  }
  // Engines of other users read it, whatever the caller's umask.
  if (why == 0 && fchmod(file.get(), 0644) != 0) why = errno;
  if (why == 0 && fsync(file.get()) != 0) why = errno;
  if (why == 0 && rename(before.c_str(), path.c_str()) != 0) why = errno;
  if (why == 0) return {};
  unlink(before.c_str());
  return failed(why);
}

}  // namespace olpager::tools
