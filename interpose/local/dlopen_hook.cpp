// dlopen and dlmopen of the program: a libcuda that is named with a folder, or as libcuda.so,
// becomes this library. Everything else goes on unchanged. Both (dlopen_jumps.S) end in a jump, not
// a call, because glibc finds the caller's RUNPATH by the return address. The plain name
// libcuda.so.1 needs no help: it is our SONAME and we are loaded.
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

// Read by the jumps of dlopen_jumps.S; set by the rewriting functions, which run first.
__attribute__((visibility("hidden"))) std::atomic<DlopenFunction> olpager_next_dlopen{nullptr};
__attribute__((visibility("hidden"))) std::atomic<DlmopenFunction> olpager_next_dlmopen{nullptr};

__attribute__((visibility("hidden"))) const char* olpager_rewrite_dlopen(const char* name) {
  (void)olpager::local::nextDlopen();
  if (name == nullptr || !namesLibcuda(name) || strcmp(name, kOwnSoname) == 0) return name;
  if (strchr(name, '/') != nullptr && olpager::local::isOwnFile(name)) return name;
  return kOwnSoname;
}

// A libcuda in a namespace of its own would be a second pager over the same GPU and range: it gets
// the base one.
__attribute__((visibility("hidden"))) const char* olpager_rewrite_dlmopen(Lmid_t* space,
                                                                          const char* name) {
  if (olpager_next_dlmopen.load(std::memory_order_relaxed) == nullptr) {
    olpager_next_dlmopen.store(reinterpret_cast<DlmopenFunction>(dlsym(RTLD_NEXT, "dlmopen")),
                               std::memory_order_relaxed);
  }
  if (name == nullptr || !namesLibcuda(name)) return name;
  *space = LM_ID_BASE;
  return kOwnSoname;
}

}  // extern "C"

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
