// PageMap: the mapping that holds one entry per page.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "pager/space/space.h"

namespace olpager::space {

namespace {
constexpr uint64_t kLargestRange = 64ull << 40;
}

Result<std::unique_ptr<PageMap>> PageMap::create(uint64_t base, uint64_t size) {
  if (size == 0 || base % kPageBytes != 0 || size % kPageBytes != 0 || size > kLargestRange ||
      base + size < base) {
    return Error{
        base::format("address range {:#x} + {:#x}: base and size must be multiples of 2 MiB, the "
                     "size at most 64 TiB",
                     base, size)};
  }
  const size_t bytes = (size >> kPageShift) * sizeof(std::atomic<RegionIndex>);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{
        base::format("page map of {} MiB: mmap: {}; raise the limit on address space (ulimit -v) "
                     "or choose a smaller "
                     "OL_VA_SIZE",
                     bytes >> 20, std::strerror(errno))};
  }
  madvise(memory, bytes, MADV_DONTFORK);
  madvise(memory, bytes, MADV_DONTDUMP);
  return std::unique_ptr<PageMap>(
      new PageMap(base, size, static_cast<std::atomic<RegionIndex>*>(memory)));
}

PageMap::~PageMap() { munmap(entries_, (size_ >> kPageShift) * sizeof(*entries_)); }

}  // namespace olpager::space
