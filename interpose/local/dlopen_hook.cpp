// dlopen and dlmopen of the program: a libcuda that is named with a folder, or as libcuda.so, becomes this library.
// Everything else goes on unchanged. Both end in a jump, not a call, because glibc finds the caller's RUNPATH by the
// return address. The plain name libcuda.so.1 needs no help: it is our SONAME and we are loaded.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "interpose/local/dlopen_hook.h"
#include "interpose/local/own_file.h"

namespace {

using DlopenFunction = void* (*)(const char*, int);
using DlmopenFunction = void* (*)(Lmid_t, const char*, int);

// The name under which the loader already knows us.
constexpr const char* kOwnSoname = "libcuda.so.1";

// True for libcuda.so, libcuda.so.1 and libcuda.so.580.1.2, with or without a folder.
bool namesLibcuda(const char* name) {
  const char* slash = strrchr(name, '/');
  const char* base = slash != nullptr ? slash + 1 : name;
  constexpr char kStem[] = "libcuda.so";
  if (strncmp(base, kStem, sizeof(kStem) - 1) != 0) return false;
  const char* rest = base + sizeof(kStem) - 1;
  if (*rest == '\0') return true;
  if (*rest != '.') return false;
  return strspn(rest, ".0123456789") == strlen(rest);
}

}  // namespace

extern "C" {

// Read by the jumps below; set by the rewriting functions, which run first.
__attribute__((visibility("hidden"))) std::atomic<DlopenFunction> olpager_next_dlopen{nullptr};
__attribute__((visibility("hidden"))) std::atomic<DlmopenFunction> olpager_next_dlmopen{nullptr};

__attribute__((visibility("hidden"))) const char* olpager_rewrite_dlopen(const char* name) {
  (void)olpager::local::nextDlopen();
  if (name == nullptr || !namesLibcuda(name) || strcmp(name, kOwnSoname) == 0) return name;
  if (strchr(name, '/') != nullptr && olpager::local::isOwnFile(name)) return name;
  return kOwnSoname;
}

// A libcuda in a namespace of its own would be a second pager over the same GPU and range: it gets the base one.
__attribute__((visibility("hidden"))) const char* olpager_rewrite_dlmopen(Lmid_t* space, const char* name) {
  if (olpager_next_dlmopen.load(std::memory_order_relaxed) == nullptr) {
    olpager_next_dlmopen.store(reinterpret_cast<DlmopenFunction>(dlsym(RTLD_NEXT, "dlmopen")),
                               std::memory_order_relaxed);
  }
  if (name == nullptr || !namesLibcuda(name)) return name;
  *space = LM_ID_BASE;
  return kOwnSoname;
}

}  // extern "C"

// rdi: name, rsi: flags. The two pushes and the eight bytes keep the stack aligned for the call.
asm(R"(
  .text
  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  endbr64
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  call olpager_rewrite_dlopen
  popq %rsi
  .cfi_adjust_cfa_offset -8
  movq %rax, %rdi
  movq olpager_next_dlopen(%rip), %r11
  jmp *%r11
  .cfi_endproc
  .size dlopen, . - dlopen

  .globl dlmopen
  .type dlmopen, @function
dlmopen:
  .cfi_startproc
  endbr64
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  movq %rsp, %rdi
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call olpager_rewrite_dlmopen
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  popq %rdx
  .cfi_adjust_cfa_offset -8
  movq %rax, %rsi
  movq olpager_next_dlmopen(%rip), %r11
  jmp *%r11
  .cfi_endproc
  .size dlmopen, . - dlmopen
)");

namespace olpager::local {

void* (*nextDlopen())(const char*, int) {
  DlopenFunction next = olpager_next_dlopen.load(std::memory_order_relaxed);
  if (next == nullptr) {
    next = reinterpret_cast<DlopenFunction>(dlsym(RTLD_NEXT, "dlopen"));
    olpager_next_dlopen.store(next, std::memory_order_relaxed);
  }
  return next;
}

}  // namespace olpager::local
