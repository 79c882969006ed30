#include "base/process.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace olpager::base {

uint64_t processNamespace() {
  struct stat found {};
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

UniqueFd watchProcess(pid_t pid) {
  return UniqueFd(pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
}

void raiseLimit(int resource) {
  const auto which = static_cast<__rlimit_resource>(resource);
  rlimit limit{};
  if (getrlimit(which, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(which, &limit);
}

void keepFromOthers() { (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); }

}  // namespace olpager::base
