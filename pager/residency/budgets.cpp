#include "pager/residency/budgets.h"

#include <algorithm>

#include "base/cgroup.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/size.h"

namespace olpager::pager {

namespace {

uint64_t wholePages(uint64_t bytes) {
  return std::max(kPageBytes, bytes / kPageBytes * kPageBytes);
}

// A budget beyond what there is would be told to programs as memory that they have.
uint64_t atMost(uint64_t there, uint64_t asked, const char* what) {
  if (asked <= there) return asked;
  base::warnOnce(what, "a budget of %s of %s: there is %s, which is the budget",
                 base::formatSize(asked).c_str(), what, base::formatSize(there).c_str());
  return there;
}

}  // namespace

uint64_t vramBudgetOf(const Budget& given, uint64_t free_bytes, uint64_t total_bytes) {
  if (given.bytes != 0) return wholePages(atMost(total_bytes, given.bytes, "VRAM"));
  if (given.percent != 0)
    return wholePages(
        static_cast<uint64_t>(static_cast<double>(total_bytes) * given.percent / 100));
  // The program's libraries take memory of their own after us: modules, workspaces of the driver,
  // contexts.
  const uint64_t reserve =
      std::min<uint64_t>(free_bytes / 4, std::max<uint64_t>(256ull << 20, total_bytes / 32));
  return wholePages(free_bytes - reserve);
}

uint64_t vramBudget(const Budget& given, const DriverApi& driver) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
    return given.bytes != 0 ? wholePages(given.bytes) : kPageBytes;
  return vramBudgetOf(given, free_bytes, total_bytes);
}

uint64_t hostLimit(const Budget& given) {
  if (given.bytes != 0)
    return atMost(base::totalMemory(), given.bytes, "host RAM") / kPageBytes * kPageBytes;
  const uint64_t available =
      std::min(base::availableMemory(), base::cgroupMemory(base::ownCgroup()).room());
  const double share = given.percent != 0 ? given.percent / 100 : 0.8;
  return static_cast<uint64_t>(static_cast<double>(available) * share) / kPageBytes * kPageBytes;
}

}  // namespace olpager::pager
