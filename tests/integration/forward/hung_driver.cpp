// A driver that never starts: whoever loads it waits.
#include <unistd.h>

namespace {
__attribute__((constructor)) void hang() {
  for (;;) pause();
}
}  // namespace
