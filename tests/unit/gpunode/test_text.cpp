// What is printed on standard output reaches whoever is to have it, before drain() returns, and also where nobody drains.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "gpunode/worker/text.h"
#include "tests/catch.h"

TEST_CASE("printed text is given on", "[gpunode]") {
  const int before = dup(STDOUT_FILENO);
  std::fflush(stdout);
  // Its thread stays: it may outlive the test.
  auto* const text = new olpager::gpunode::Text;
  static std::mutex mutex;
  static std::string got;
  text->start([](std::string_view bytes) {
    std::lock_guard lock(mutex);
    got += bytes;
  });
  std::printf("kernel %d\n", 7);
  text->drain();
  std::string first;
  {
    std::lock_guard lock(mutex);
    first = got;
  }
  // More than a pipe holds.
  const std::string line(1023, 'x');
  for (int i = 0; i < 4096; ++i) std::printf("%s\n", line.c_str());
  text->drain();
  std::string all;
  {
    std::lock_guard lock(mutex);
    all = got;
  }
  std::fflush(stdout);
  dup2(before, STDOUT_FILENO);
  close(before);
  CHECK(first == "kernel 7\n");
  CHECK(all.size() == first.size() + 4096 * 1024);
}
