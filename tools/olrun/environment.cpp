#include "tools/olrun/environment.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace olpager::tools {
namespace {

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end != at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ":") + part;
  return text;
}

// libasan.so.8, libtsan.so, libclang_rt.asan-x86_64.so, ...
bool isSanitizer(std::string_view library) {
  const std::string_view name = library.substr(library.rfind('/') + 1);
  return name.find("san.so") != std::string_view::npos || name.starts_with("libclang_rt.");
}

Status separatorFree(const std::string& path, const char* variable) {
  if (path.find_first_of(" :;") == std::string::npos) return {};
  return Error{base::format(
      "{}: {} can't hold a path with a space, colon or semicolon; install olpager elsewhere", path,
      variable)};
}

}  // namespace

std::string Environment::get(const std::string& name) const {
  for (const auto& entry : entries_) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name)) {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

bool Environment::has(const std::string& name) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

void Environment::set(const std::string& name, const std::string& value) {
  remove(name);
  entries_.push_back(name + "=" + value);
}

void Environment::remove(const std::string& name) {
  std::erase_if(entries_, [&](const std::string& entry) {
    return entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name);
  });
}

std::vector<std::string> addFrameworkDefaults(Environment& environment, bool forwarded) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kAsNeeded = {
      {{"XLA_PYTHON_CLIENT_PREALLOCATE", "false"},
       {"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},
       {"TF_FORCE_GPU_ALLOW_GROWTH", "true"}}};
  std::vector<std::string> added;
  const auto add = [&](const char* name, const char* value) {
    if (environment.has(name)) return;
    environment.set(name, value);
    added.push_back(std::string(name) + "=" + value);
  };
  for (const auto& [name, value] : kAsNeeded) add(name, value);
  if (forwarded) add("NCCL_P2P_LEVEL", "SYS");
  return added;
}

Status addPreload(Environment& environment, const std::string& library) {
  if (auto status = separatorFree(library, "LD_PRELOAD"); !status.ok()) return status;
  std::vector<std::string> first;
  std::vector<std::string> rest;
  for (const auto& entry : split(environment.get("LD_PRELOAD"), " :")) {
    if (entry == library) continue;
    (isSanitizer(entry) ? first : rest).push_back(entry);
  }
  first.push_back(library);
  first.insert(first.end(), rest.begin(), rest.end());
  environment.set("LD_PRELOAD", join(first));
  return {};
}

Status addLibraryFolder(Environment& environment, const std::string& folder) {
  if (auto status = separatorFree(folder, "LD_LIBRARY_PATH"); !status.ok()) return status;
  std::vector<std::string> folders{folder};
  for (const auto& entry : split(environment.get("LD_LIBRARY_PATH"), ":;")) {
    if (entry != folder) folders.push_back(entry);
  }
  environment.set("LD_LIBRARY_PATH", join(folders));
  return {};
}

}  // namespace olpager::tools
