// Preloaded before libolpager.so: refuses it memory and threads, as a system at its limits does.
// The program itself, the driver and libc are left alone: a call counts when it comes from
// libolpager.so.
//
//   FAULTS_THREADS_FROM=n   the n-th pthread_create and all later ones fail (EAGAIN)
//   FAULTS_MEMORY_AT=n      the n-th allocation fails
//   FAULTS_MEMORY_FROM=n    the n-th allocation and all later ones fail
//
// At the end of the process it says on standard error how many there were.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void* __libc_malloc(size_t bytes);  // NOLINT(bugprone-reserved-identifier): glibc's own

namespace {

std::atomic<long> allocations{0};
std::atomic<long> threads{0};

long setting(const char* name) {
  const char* given = getenv(name);
  return given != nullptr ? atol(given) : LONG_MAX;
}

// Without locks or allocations, as malloc has to be.
bool fromPager(void* return_address) {
  dl_find_object found{};
  if (_dl_find_object(return_address, &found) != 0 || found.dlfo_link_map == nullptr) return false;
  return strstr(found.dlfo_link_map->l_name, "libolpager.so") != nullptr;
}

struct Report {
  ~Report() {
    fprintf(stderr, "faults: %ld allocations, %ld threads\n", allocations.load(), threads.load());
  }
} report;

}  // namespace

extern "C" __attribute__((visibility("default"))) void* malloc(size_t bytes) {
  if (fromPager(__builtin_return_address(0))) {
    static const long at = setting("FAULTS_MEMORY_AT");
    static const long from = setting("FAULTS_MEMORY_FROM");
    const long number = allocations.fetch_add(1) + 1;
    if (number == at || number >= from) {
      errno = ENOMEM;
      return nullptr;
    }
  }
  return __libc_malloc(bytes);
}

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  static const auto next =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (fromPager(__builtin_return_address(0))) {
    static const long from = setting("FAULTS_THREADS_FROM");
    if (threads.fetch_add(1) + 1 >= from) return EAGAIN;
  }
  return next(thread, attributes, body, argument);
}
