// The resolver behind the stubs of the library under test: hands out what the test gave, and counts
// how often it is asked.
#include <atomic>
#include <cstdint>

#define VISIBLE extern "C" __attribute__((visibility("default")))

namespace {
std::atomic<void*> g_target{nullptr};
std::atomic<uint32_t> g_last{0};
std::atomic<int> g_calls{0};
}  // namespace

extern "C" __attribute__((used)) void* olpager_resolve_symbol(uint32_t index) {
  // Registers that a resolver may use are lost: the trampoline has to keep what the function was
  // given.
  asm volatile(
      "pcmpeqd %%xmm0, %%xmm0\n pcmpeqd %%xmm1, %%xmm1\n pcmpeqd %%xmm2, %%xmm2\n pcmpeqd %%xmm3, "
      "%%xmm3\n"
      "pcmpeqd %%xmm4, %%xmm4\n pcmpeqd %%xmm5, %%xmm5\n pcmpeqd %%xmm6, %%xmm6\n pcmpeqd %%xmm7, "
      "%%xmm7\n"
      "movq $-1, %%rcx\n movq $-1, %%rdx\n movq $-1, %%rsi\n movq $-1, %%r8\n movq $-1, %%r9\n "
      "movq $-1, %%r10\n" ::
          : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "rcx", "rdx", "rsi",
            "r8", "r9", "r10");
  g_last = index;
  ++g_calls;
  return g_target;
}

// The library exports the driver's names only; these are reached through a function of the
// debugger's that is otherwise unused here: the address of this table stands in the exported object
// cudbgInjectionPath.
struct Controls {
  std::atomic<void*>* target;
  std::atomic<uint32_t>* last;
  std::atomic<int>* calls;
};
extern "C" char cudbgInjectionPath[4096];
__attribute__((constructor)) static void publishControls() {
  *reinterpret_cast<Controls*>(cudbgInjectionPath) = {&g_target, &g_last, &g_calls};
}
