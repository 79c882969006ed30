// Preloaded beside libolpager.so: counts how often that library asks for the time, on the program's
// first thread (which launches) and on all others (the pager's), and writes both when the program
// ends: "clocks: 12 on the first thread, 3456 on others".
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace {

std::atomic<uint64_t> g_first{0}, g_others{0};
std::atomic<uintptr_t> g_begin{0}, g_end{0};

// Finds the library's code.
int look(dl_phdr_info* info, size_t /*size*/, void* /*none*/) {
  const size_t length = std::strlen(info->dlpi_name);
  constexpr char kName[] = "/libolpager.so";
  constexpr size_t kLength = sizeof kName - 1;
  if (length < kLength || std::strcmp(info->dlpi_name + length - kLength, kName) != 0) return 0;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    g_end.store(info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
    g_begin.store(info->dlpi_addr + segment.p_vaddr);
    return 1;
  }
  return 0;
}

__attribute__((constructor)) void begin() { dl_iterate_phdr(look, nullptr); }

__attribute__((destructor)) void end() {
  std::fprintf(stderr, "clocks: %llu on the first thread, %llu on others\n",
               static_cast<unsigned long long>(g_first.load()),
               static_cast<unsigned long long>(g_others.load()));
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* into) noexcept {
  const auto from = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  if (from >= g_begin.load(std::memory_order_relaxed) &&
      from < g_end.load(std::memory_order_relaxed)) {
    static thread_local const bool first = syscall(SYS_gettid) == getpid();
    (first ? g_first : g_others).fetch_add(1, std::memory_order_relaxed);
  }
  return static_cast<int>(syscall(SYS_clock_gettime, clock, into));
}
