#include "pager/reach/roots.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "pager/space/region.h"

namespace olpager::pager {

bool RootTable::add(uint64_t address, const Root& root, bool spans) {
  if (!roots_.try_emplace(address, root).second) return false;
  if (spans) span_.add(address, root.bytes);
  if (root.kind == RootKind::kVariable) ++variables_[root.context];
  return true;
}

Root RootTable::remove(uint64_t address) {
  const auto found = roots_.find(address);
  if (found == roots_.end()) return {};
  const Root root = found->second;
  roots_.erase(found);
  if (root.kind != RootKind::kVariable) return root;
  const auto count = variables_.find(root.context);
  if (count != variables_.end() && --count->second == 0) variables_.erase(count);
  return root;
}

void RootTable::dropContext(CUcontext context, std::vector<Region*>& regions) {
  std::erase_if(roots_, [&](const auto& entry) {
    const Root& root = entry.second;
    // Pinned and managed memory is every context's.
    if (root.context != context || root.kind == RootKind::kHost || root.kind == RootKind::kManaged)
      return false;
    if (root.region != nullptr) regions.push_back(root.region);
    return true;
  });
  variables_.erase(context);
}

Region* RootTable::regionAt(uint64_t address) const {
  if (!span_.contains(address)) return nullptr;
  Region* found = nullptr;
  forAt(address, 1, [&](uint64_t, const Root& root) { found = root.region; });
  return found;
}

void splitByPresence(uint64_t address, uint64_t bytes, std::vector<ByteRun>& present,
                     std::vector<ByteRun>& absent) {
  const uint64_t begin = (address + 7) / 8 * 8, end = (address + bytes) / 8 * 8;
  if (begin >= end) return;
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t first = begin / page, last = (end + page - 1) / page;
  // One 64-bit entry for each page; bit 63: mapped, bit 62: swapped out. Opened anew each time: the
  // program may close descriptors that it does not know.
  std::vector<uint64_t> entries(last - first);
  const base::UniqueFd file(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto wanted = static_cast<ssize_t>(entries.size() * sizeof(uint64_t));
  if (!file || ::pread(file.get(), entries.data(), entries.size() * sizeof(uint64_t),
                       static_cast<off_t>(first * sizeof(uint64_t))) != wanted) {
    present.push_back({begin, end});
    return;
  }
  for (uint64_t p = first; p < last; ++p) {
    const ByteRun run{std::max(begin, p * page), std::min(end, (p + 1) * page)};
    std::vector<ByteRun>& runs = entries[p - first] >> 62 != 0 ? present : absent;
    if (!runs.empty() && runs.back().end == run.begin) {
      runs.back().end = run.end;
    } else {
      runs.push_back(run);
    }
  }
}

void rootRuns(const Region& root, std::vector<ByteRun>& by_cpu, std::vector<ByteRun>& by_gpu) {
  const RootKind kind = root.root->kind;
  if (kind == RootKind::kManaged)
    return splitByPresence(root.base, root.requested_bytes, by_cpu, by_gpu);
  const ByteRun whole{(root.base + 7) / 8 * 8, (root.base + root.requested_bytes) / 8 * 8,
                      root.root->registered};
  if (whole.begin < whole.end) (kind == RootKind::kHost ? by_cpu : by_gpu).push_back(whole);
}

}  // namespace olpager::pager
