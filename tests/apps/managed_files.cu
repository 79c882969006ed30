// Files that are read and written past the system's cache (O_DIRECT), into and out of managed
// memory: the disk's transfers use the memory itself. The GPU has had the pages before and has them
// again after; launches use other managed memory meanwhile. Children are forked beside it all.
#include <fcntl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "common.h"

namespace {

/// A file without a name, opened past the cache; -1 where no folder's file system does that.
int openDirect() {
  const char* const own = std::getenv("TMPDIR");
  for (const std::string folder : {own != nullptr ? own : "/tmp", "/var/tmp", "."}) {
    std::string path = folder + "/olpager-direct-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) continue;
    const int direct = open(path.c_str(), O_RDWR | O_DIRECT);
    unlink(path.c_str());
    close(file);
    if (direct >= 0) return direct;
  }
  return -1;
}

/// A child that exits, and one that runs a program: neither has to do with the GPU.
void haveChildren() {
  const pid_t child = fork();
  CHECK(child >= 0, "fork failed");
  if (child == 0) _exit(7);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7,
        "the forked child ended with status %#x", status);
  CHECK(std::system("true") == 0, "a child's program failed");
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t bytes = options.bytes / 4 & ~((size_t{1} << 20) - 1);
  const int file = openDirect();
  if (file < 0) apps::skip("no file system here that reads and writes past its cache");
  apps::Pressure pressure(options.bytes / 2);
  uint32_t *source, *target;
  RUNTIME_OK(cudaMallocManaged(&source, bytes));
  RUNTIME_OK(cudaMallocManaged(&target, bytes));
  // Memory that launches use without a pause: little, so that there are many. The CPU's accesses to
  // the rest don't wait for any.
  constexpr size_t kOther = size_t{512} << 10;
  uint32_t* other;
  RUNTIME_OK(cudaMallocManaged(&other, kOther));
  std::memset(other, 0, kOther);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::atomic<bool> over{false};
  std::atomic<uint32_t> launches{0};
  std::thread storm([&] {
    while (!over) {
      apps::add(other, kOther, 1, stream);
      if (++launches % 8 == 0) RUNTIME_OK(cudaStreamSynchronize(stream));
    }
    RUNTIME_OK(cudaStreamSynchronize(stream));
  });
  for (uint32_t round = 0; round < 3; ++round) {
    apps::fill(source, bytes, seed + round);
    apps::fill(target, bytes, seed + 100);
    RUNTIME_OK(cudaStreamSynchronize(nullptr));
    // The GPU has both; the disk reads one and writes the other.
    CHECK(pwrite(file, source, bytes, 0) == ssize_t(bytes), "round %u: pwrite failed", round);
    haveChildren();
    const size_t half = bytes / 2;
    const iovec parts[] = {{reinterpret_cast<char*>(target) + half, half}, {target, half}};
    CHECK(preadv(file, parts, 2, 0) == ssize_t(bytes), "round %u: preadv failed", round);
    apps::add(target, bytes, 1);
    pressure.apply();
    RUNTIME_OK(cudaStreamSynchronize(nullptr));
    std::vector<uint32_t> joined(bytes / 4);
    std::memcpy(joined.data(), reinterpret_cast<char*>(target) + half, half);
    std::memcpy(joined.data() + half / 4, target, half);
    apps::verifyHost(joined.data(), bytes, seed + round, 1, "read past the cache, then the GPU");
    apps::verifyHost(source, bytes, seed + round, 0, "written past the cache");
  }
  over = true;
  storm.join();
  for (size_t i = 0; i < kOther / 4; ++i)
    CHECK(other[i] == launches, "word %zu beside the files is %u after %u launches", i, other[i],
          launches.load());
  pressure.check();
  for (uint32_t* memory : {source, target, other}) RUNTIME_OK(cudaFree(memory));
  RUNTIME_OK(cudaStreamDestroy(stream));
  close(file);
  return apps::ok("managed memory of %zu KiB and files past the cache", bytes >> 10);
}
