#include "tools/olrun/machine_check.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/cgroup.h"
#include "base/fd.h"
#include "base/format.h"
#include "base/machine_memory.h"
#include "base/memory_files.h"
#include "base/size.h"
#include "base/text.h"
#include "pager/counters/files.h"
#include "tools/olrun/daemons.h"
#include "tools/olrun/driver_probe.h"

namespace olpager::tools {
namespace {

namespace fs = std::filesystem;
using base::formatSize;
using Kind = Finding::Kind;

using Findings = std::vector<Finding>;

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t numberIn(const std::string& path) {
  const std::string line = firstLine(path);
  return line.empty() || line.find_first_not_of("0123456789") != std::string::npos
             ? 0
             : std::stoull(line);
}

void checkInstallation(Findings& findings, const std::string& library,
                       const std::string& link_folder) {
  if (library.empty()) {
    findings.push_back({Kind::kGap, "library",
                        "libolpager.so is not beside olrun; build it: meson compile -C build"});
  } else {
    findings.push_back({Kind::kGood, "library", library});
  }
  if (link_folder.empty()) {
    findings.push_back(
        {Kind::kGap, "links",
         "the folder with libcuda.so.1 for LD_LIBRARY_PATH is missing; build again"});
  }
}

void checkDevices(Findings& findings) {
  unsigned gpus = 0;
  std::vector<std::string> nodes{"/dev/nvidiactl", "/dev/nvidia-uvm"};
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename();
    if (name.size() > 6 && name.starts_with("nvidia") &&
        name.find_first_not_of("0123456789", 6) == std::string::npos) {
      nodes.push_back(entry.path());
      gpus++;
    }
  }
  if (gpus == 0) {
    findings.push_back(
        {Kind::kGap, "GPU",
         "no /dev/nvidia0: no NVIDIA GPU, its kernel module is not loaded (modprobe nvidia), or "
         "this "
         "container was started without it (--gpus all); --gpunode and --driver sim need none"});
    return;
  }
  for (const auto& node : nodes) {
    if (access(node.c_str(), R_OK | W_OK) == 0) continue;
    const bool there = access(node.c_str(), F_OK) == 0;
    findings.push_back(
        {Kind::kGap, "GPU",
         there ? base::format("{}: no permission to read and write; join the group that owns it",
                              node)
               : base::format("{}: missing; run nvidia-modprobe -u -c 0", node)});
  }
  findings.push_back(
      {Kind::kGood, "GPU", base::format("{} device node{}", gpus, gpus == 1 ? "" : "s")});
}

void checkDriver(Findings& findings, const std::string& driver, const std::string& library) {
  const auto probed = probeDriver(driver, Probe::kStart, library);
  if (!probed.ok()) {
    findings.push_back(
        {Kind::kGap, "driver",
         probed.error().message +
             "; install the NVIDIA driver, name it (--driver), or use --gpunode or --driver sim"});
    return;
  }
  const DriverFacts& facts = probed.value();
  findings.push_back({Kind::kGood, "driver",
                      facts.version == 0
                          ? facts.path
                          : base::format("{} (CUDA {}.{})", facts.path, facts.version / 1000,
                                         facts.version % 1000 / 10)});
  if (!facts.start_problem.empty()) {
    findings.push_back(
        {Kind::kGap, "driver", facts.start_problem + "; does nvidia-smi work here?"});
    findings.push_back({Kind::kNote, "host memory",
                        "whether HOST_NUMA memory is allowed can't be tested without a GPU"});
    return;
  }
  findings.push_back({Kind::kGood, "devices", base::format("{}", facts.devices)});
  if (facts.host_problem.empty()) {
    findings.push_back({Kind::kGood, "host memory",
                        "the driver gives HOST_NUMA memory: pages can be used in place"});
  } else {
    findings.push_back(
        {Kind::kGap, "host memory",
         base::format("the driver refuses HOST_NUMA memory ({}): what a launch reaches has to fit "
                      "VRAM; in a "
                      "container allow the set_mempolicy and mbind calls (--cap-add SYS_NICE)",
                      facts.host_problem)});
  }
}

void checkDaemons(Findings& findings, const base::Settings& settings) {
  const auto asked = askDaemons(settings);
  if (!asked.ok()) {
    findings.push_back({Kind::kGap, "key", asked.error().message});
    return;
  }
  for (const DaemonAnswer& answer : asked.value()) {
    findings.push_back(
        answer.problem.empty()
            ? Finding{Kind::kGood, answer.kind, base::format("{}: {}", answer.address, answer.text)}
            : Finding{Kind::kGap, answer.kind, answer.problem});
  }
}

void checkLimits(Findings& findings) {
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  if (limit.rlim_cur != RLIM_INFINITY) {
    findings.push_back(
        {Kind::kGap, "address space",
         base::format(
             "limited to {}, the global range takes 16TiB of it (no memory); ulimit -v unlimited",
             formatSize(limit.rlim_cur))});
  }
  getrlimit(RLIMIT_MEMLOCK, &limit);
  findings.push_back(
      {Kind::kNote, "memlock",
       limit.rlim_cur == RLIM_INFINITY
           ? "unlimited"
           : base::format("{}: enough here, the driver pins for us", formatSize(limit.rlim_cur))});
}

void checkMemory(Findings& findings, const base::Settings& settings) {
  const uint64_t available = base::availableMemory();
  const base::CgroupMemory group = base::cgroupMemory(base::ownCgroup());
  const uint64_t base_bytes = std::min(available, group.room());
  const uint64_t host = hostTier(settings.host);
  findings.push_back(
      {base_bytes < host || host < base::kSettingsPageBytes ? Kind::kGap : Kind::kGood, "RAM",
       base::format("{} available, {}; host tier {}", formatSize(available),
                    group.limit ? base::format("{} left of the cgroup limit of {}",
                                               formatSize(group.room()), formatSize(*group.limit))
                                : std::string("no cgroup limit"),
                    formatSize(host)) +
           (base_bytes < host ? ", more than there is; lower --host" : "")});
  const uint64_t huge = numberIn("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  findings.push_back(
      {Kind::kNote, "hugepages",
       huge != 0
           ? base::format("{} of 2MiB reserved", huge)
           : "none of 2MiB reserved: not needed here (sysctl vm.nr_hugepages reserves some)"});
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) != 0 || access("/dev/shm", W_OK) != 0) {
    findings.push_back({Kind::kGap, "/dev/shm",
                        "can't be written; mount a tmpfs there (container: --shm-size 1g)"});
  } else {
    const uint64_t bytes = static_cast<uint64_t>(shm.f_bavail) * shm.f_frsize;
    findings.push_back({bytes < (64ull << 20) ? Kind::kNote : Kind::kGood, "/dev/shm",
                        formatSize(bytes) + " free"});
  }
}

// `otherwise`: whose managed memory is then.
void checkUserfaultfd(Findings& findings, const char* otherwise) {
  base::UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (!fd) {
    const base::UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
#ifdef USERFAULTFD_IOC_NEW
    if (device) fd.reset(ioctl(device.get(), USERFAULTFD_IOC_NEW, O_CLOEXEC));
#endif
  }
  findings.push_back(
      {Kind::kNote, "userfaultfd",
       fd ? "allowed: managed memory is paged"
          : base::format("refused ({}): managed memory {} (access to "
                         "/dev/userfaultfd allows it, which members of the group olpager have "
                         "by the installed udev rule, or sysctl vm.unprivileged_userfaultfd=1)",
                         std::strerror(errno), otherwise)});
}

void checkCounters(Findings& findings) {
  std::string why;
  for (const auto& folder : pager::countersFolders()) {
    const auto opened = pager::openCountersFolder(folder, true);
    if (opened.ok()) {
      findings.push_back({Kind::kGood, "counters", folder});
      return;
    }
    why += (why.empty() ? "" : "; ") + opened.error().message;
  }
  findings.push_back({Kind::kGap, "counters", why + "; olpagestat will show nothing"});
}

void checkDisks(Findings& findings, const base::Settings& settings) {
  for (const base::DiskSetting& disk : settings.disks) {
    const auto found = [&](Kind kind, const std::string& text) {
      findings.push_back(
          {kind, "disk", base::format("{}: {}", base::printable(disk.folder), text)});
    };
    struct statvfs system {};
    if (access(disk.folder.c_str(), W_OK | X_OK) != 0 ||
        statvfs(disk.folder.c_str(), &system) != 0) {
      found(Kind::kGap, base::format("it can't be written to: {}; name a folder that this user may "
                                     "write to (--disk)",
                                     std::strerror(errno)));
      continue;
    }
    const uint64_t free = uint64_t{system.f_bavail} * system.f_frsize;
    const base::UniqueFd past_cache(
        open(disk.folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
    const bool cached = !past_cache && errno == EINVAL;
    const base::UniqueFd folder(open(disk.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder && base::isInMemory(folder.get())) {
      found(Kind::kGap,
            "its file system is in RAM (tmpfs), so pages there spare none; name a folder on a disk "
            "(--disk)");
    } else if (cached) {
      found(Kind::kNote, "its file system takes no O_DIRECT, so pages take page cache as well");
    } else if (free < disk.bytes) {
      found(Kind::kNote, base::format("{} are free, less than the {} that --disk names",
                                      base::formatSize(free), base::formatSize(disk.bytes)));
    } else {
      found(Kind::kGood, base::format("room for {}, and {} are free", base::formatSize(disk.bytes),
                                      base::formatSize(free)));
    }
  }
}

}  // namespace

uint64_t hostTier(const base::Budget& given) {
  if (given.bytes != 0) return given.bytes;
  const uint64_t all =
      std::min(base::availableMemory(), base::cgroupMemory(base::ownCgroup()).room());
  if (given.percent == 0) return all / 10 * 8;
  return static_cast<uint64_t>(static_cast<double>(all) * given.percent / 100);
}

std::vector<Finding> checkMachine(const base::Settings& settings, const Installation& installed,
                                  const std::string& no_local) {
  const auto& [library, link_folder, driver] = installed;
  Findings findings;
  checkInstallation(findings, library, link_folder);
  if (!no_local.empty()) findings.push_back({Kind::kGap, "gpunode", "local: " + no_local});
  checkDaemons(findings, settings);
  if (!settings.gpunodes.empty() && settings.local_gpunode.empty() && no_local.empty()) {
    findings.push_back({Kind::kNote, "here",
                        "a forwarded program needs neither a GPU nor a driver of this machine"});
    if (settings.view == base::ViewSetting::kUnified)
      checkUserfaultfd(findings, "is in the host memory of one gpunode");
    return findings;
  }
  if (settings.driver != "sim") checkDevices(findings);
  if (driver.empty()) {
    findings.push_back({Kind::kGap, "driver",
                        "libolsimcuda.so, the simulated GPU, is not beside olrun; build it"});
  } else {
    checkDriver(findings, driver, library);
  }
  checkLimits(findings);
  checkMemory(findings, settings);
  checkDisks(findings, settings);
  checkUserfaultfd(findings, "stays the driver's");
  checkCounters(findings);
  return findings;
}

}  // namespace olpager::tools
