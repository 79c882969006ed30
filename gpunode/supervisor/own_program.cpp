#include "gpunode/supervisor/own_program.h"

#include <poll.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/format.h"
#include "base/settings.h"

namespace olpager::gpunode {
namespace {

// True if the file of a process has this entry, with a zero before and behind it.
bool hasEntry(const std::filesystem::path& environment, const std::string& entry) {
  std::ifstream file(environment, std::ios::binary);
  if (!file) return false;
  std::string all(1, '\0');
  all.append(std::istreambuf_iterator<char>(file), {});
  all.push_back('\0');
  return all.find('\0' + entry + '\0') != std::string::npos;
}

bool anybodyHas(const std::string& entry) {
  std::error_code failure;
  std::filesystem::directory_iterator at("/proc", failure);
  for (; !failure && at != std::filesystem::directory_iterator(); at.increment(failure)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (hasEntry(at->path() / "environ", entry)) return true;
  }
  return false;
}

}  // namespace

OwnProgram::OwnProgram(base::UniqueFd process, const std::string& socket)
    : mark_(base::format("{}={}", base::kLocalVariable, socket)), process_(std::move(process)) {}

bool OwnProgram::ended() {
  if (mark_.empty()) return false;
  pollfd process{process_.get(), POLLIN, 0};
  if (process_ && poll(&process, 1, 0) > 0) process_.reset();
  return !process_;
}

// A process that is started while the others are looked at may be missed, and its parent be gone by
// then: the second look finds it.
bool OwnProgram::gone() { return ended() && !anybodyHas(mark_) && !anybodyHas(mark_); }

}  // namespace olpager::gpunode
