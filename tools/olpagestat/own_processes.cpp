#include "tools/olpagestat/own_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/fd.h"
#include "base/format.h"
#include "base/text.h"

namespace olpager::tools {
namespace {

constexpr size_t kMostBytes = 1 << 20;

std::string contents(const std::string& path, size_t most = kMostBytes) {
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  std::string text;
  if (!file) return text;
  char bytes[4096];
  while (text.size() < most) {
    const ssize_t got = read(file.get(), bytes, std::min(sizeof bytes, most - text.size()));
    if (got <= 0) break;
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

// Parts of a file of /proc: NUL behind each.
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

std::string baseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool isText(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
  constexpr size_t kLook = 512;
  const std::string begin = contents(path, kLook);
  return !begin.empty() && begin.find('\0') == std::string::npos;
}

}  // namespace

std::string scriptOf(uint32_t pid) {
  const std::string folder = base::format("/proc/{}/", pid);
  const auto arguments = words(contents(folder + "cmdline"));
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& one = arguments[i];
    if (one.empty() || one == "-c" || one == "--") return "";
    if (one.front() == '-') continue;
    const bool absolute = one.front() == '/';
    return isText(absolute ? one : folder + "cwd/" + one) ? baseName(one) : "";
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> settingsOf(uint32_t pid) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& each : words(contents(base::format("/proc/{}/environ", pid)))) {
    const size_t end = each.find('=');
    if (!each.starts_with("OL_") || end == std::string::npos) continue;
    if (end + 1 == each.size()) continue;  // an empty one stands for what is built in
    found.emplace_back(base::printable(each.substr(0, end)), base::printable(each.substr(end + 1)));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Forwarded> forwardedProcesses() {
  std::vector<Forwarded> found;
  DIR* const listing = opendir("/proc");
  if (listing == nullptr) return found;
  while (const dirent* const entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string folder = "/proc/" + name + "/";
    struct stat about {};
    if (stat(folder.c_str(), &about) != 0 || about.st_uid != geteuid()) continue;
    std::string gpunodes;
    for (const std::string& each : words(contents(folder + "environ"))) {
      constexpr std::string_view kVariable = "OL_GPUNODE=";
      if (each.starts_with(kVariable)) gpunodes = each.substr(kVariable.size());
    }
    if (gpunodes.empty() || gpunodes == "none") continue;
    constexpr size_t kMostMaps = 16 << 20;
    if (contents(folder + "maps", kMostMaps).find("/libolpager.so") == std::string::npos) continue;
    Forwarded one;
    one.pid = static_cast<uint32_t>(std::strtoul(name.c_str(), nullptr, 10));
    one.program = contents(folder + "comm");
    while (one.program.ends_with('\n')) one.program.pop_back();
    if (const std::string script = scriptOf(one.pid); !script.empty()) one.program += " " + script;
    one.program = base::printable(one.program);
    one.gpunodes = base::printable(gpunodes);
    found.push_back(std::move(one));
  }
  closedir(listing);
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return found;
}

const std::vector<Forwarded>& ForwardedLooks::at(double seconds) {
  constexpr double kEvery = 1;
  if (count_ != 0 && seconds < looked_ + kEvery) return found_;
  found_ = forwardedProcesses();
  looked_ = seconds;
  count_++;
  return found_;
}

}  // namespace olpager::tools
