// counting_program <launches> [wait|die]: counts, as the pager in a program does; with `wait` runs
// until it is told to end, with `die` it is killed.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "pager/counters/counters.h"

namespace {
volatile std::sig_atomic_t g_told = 0;
}

int main(int argc, char** argv) {
  using namespace olpager::pager;
  std::signal(SIGTERM, [](int) { g_told = 1; });
  auto& device = counters().device(0);
  add(device.launches, argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0);
  if (argc > 2 && std::strcmp(argv[2], "wait") == 0) {
    [[maybe_unused]] const ssize_t n = write(STDOUT_FILENO, "ready\n", 6);
    while (g_told == 0) usleep(10000);
    return 9;
  }
  if (argc > 2 && std::strcmp(argv[2], "die") == 0) std::raise(SIGKILL);
  return 0;
}
