// fork and exec in a program that uses CUDA: workers that touch the parent's ordinary memory only
// (as a data loader's do), a child that tries CUDA and gets an error, a child that executes another
// program, and a parent that goes on. And a parent that is killed while its child sleeps: the child
// has nothing of it but its own memory.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common.h"

/// Waits for a child; what it returned.
static int exitOf(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "waitpid failed");
  CHECK(WIFEXITED(status), "a child died of signal %d", WTERMSIG(status));
  return WEXITSTATUS(status);
}

/// Descriptors of this process that are olpager's by name: shared memory, sockets.
static int openOfPager() {
  int found = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[512];
    const ssize_t length = readlink((std::string("/proc/self/fd/") + entry->d_name).c_str(), target,
                                    sizeof target - 1);
    if (length > 0 && std::string(target, size_t(length)).find("olpager") != std::string::npos)
      ++found;
  }
  closedir(folder);
  return found;
}

/// A process that pages, forks a child that sleeps, and is killed.
static void killedWhileAChildSleeps(const apps::Options& options) {
  constexpr size_t kPiece = size_t{2} << 20;
  int ready[2], wake[2], verdict[2];
  CHECK(pipe(ready) == 0 && pipe(wake) == 0 && pipe(verdict) == 0, "no pipes");
  char word = 0;
  const pid_t parent = fork();
  CHECK(parent >= 0, "fork failed");
  if (parent == 0) {
    apps::Pressure pressure(options.bytes);
    pressure.apply();
    std::vector<uint32_t> host(kPiece / 4);
    void* buffer;
    RUNTIME_OK(cudaMalloc(&buffer, kPiece));
    apps::fill(buffer, kPiece, 77);
    RUNTIME_OK(cudaMemcpy(host.data(), buffer, kPiece, cudaMemcpyDeviceToHost));
    if (fork() == 0) {
      close(wake[1]);
      // Sleeps until it is woken, long after its parent has gone.
      if (read(wake[0], &word, 1) != 1) _exit(1);
      void* p = nullptr;
      const bool same =
          host[1] == apps::word(0, 77) + 1 && host.back() == apps::word(kPiece / 16 - 1, 77) + 3;
      word = !same ? 1 : openOfPager() != 0 ? 2 : cudaMalloc(&p, 4096) == cudaSuccess ? 3 : 0;
      _exit(write(verdict[1], &word, 1) == 1 ? 0 : 1);
    }
    CHECK(write(ready[1], &word, 1) == 1, "a pipe broke");
    for (;;) {
      pressure.apply();
      RUNTIME_OK(cudaDeviceSynchronize());
    }
  }
  close(wake[0]), close(verdict[1]);
  CHECK(read(ready[0], &word, 1) == 1, "the process that is to be killed ended by itself");
  CHECK(kill(parent, SIGKILL) == 0, "kill failed");
  int status = 0;
  CHECK(waitpid(parent, &status, 0) == parent && WIFSIGNALED(status), "it ended otherwise");
  CHECK(write(wake[1], &word, 1) == 1, "the child has not outlived its parent");
  CHECK(read(verdict[0], &word, 1) == 1, "the child ended without a word");
  CHECK(word != 1, "the memory of a killed process's child has changed");
  CHECK(word != 2, "the child of a killed process holds descriptors of the pager");
  CHECK(word == 0, "CUDA works in the child of a killed process");
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  if (getenv("APPS_EXEC_CHILD") != nullptr) {  // a fresh program below: CUDA works as anywhere
    void* p;
    RUNTIME_OK(cudaMalloc(&p, 1 << 20));
    apps::fill(p, 1 << 20, seed);
    apps::verify(p, 1 << 20, seed, 0, "child after exec");
    return 0;
  }
  killedWhileAChildSleeps(options);  // before this process begins with CUDA
  constexpr size_t kPiece = size_t{2} << 20;
  std::vector<void*> buffers(options.bytes / kPiece);
  for (size_t b = 0; b < buffers.size(); ++b) {
    RUNTIME_OK(cudaMalloc(&buffers[b], kPiece));
    apps::fill(buffers[b], kPiece, seed + uint32_t(b));
  }
  std::vector<uint32_t> host(kPiece / 4);
  RUNTIME_OK(cudaMemcpy(host.data(), buffers[0], kPiece, cudaMemcpyDeviceToHost));

  // A file of the program's own, whatever it is called.
  char log_name[] = "/tmp/my-olpager-project-XXXXXX";
  const int log = mkstemp(log_name);
  CHECK(log >= 0 && unlink(log_name) == 0, "no file");

  // Loader workers: they read and write ordinary memory, allocate, and leave by _exit or by exit.
  std::vector<pid_t> workers;
  for (int w = 0; w < 4; ++w) {
    const pid_t child = fork();
    CHECK(child >= 0, "fork failed");
    if (child == 0) {
      std::vector<uint32_t> own(host);
      for (uint32_t& v : own) v += 1;
      for (uint32_t& v : host) v ^= 0xffffffffu;  // a copy of its own: the parent must not see it
      const bool good = own[1] == apps::word(0, seed) + 2 && write(log, "epoch\n", 6) == 6;
      if (w % 2 == 0) _exit(good ? 0 : 1);
      std::exit(good ? 0 : 1);  // runs the destructors of every library
    }
    workers.push_back(child);
    apps::add(buffers[size_t(w) % buffers.size()], kPiece, 1);  // the parent works on meanwhile
  }
  // A child that uses CUDA gets an error, no crash and no hang.
  const pid_t user = fork();
  CHECK(user >= 0, "fork failed");
  if (user == 0) {
    void* p = nullptr;
    const cudaError_t rc = cudaMalloc(&p, 4096);
    const cudaError_t copied = cudaMemcpy(host.data(), buffers[0], 4096, cudaMemcpyDeviceToHost);
    _exit(rc != cudaSuccess && copied != cudaSuccess ? 0 : 1);
  }
  // A child that executes another program.
  const pid_t other = fork();
  CHECK(other >= 0, "fork failed");
  if (other == 0) {
    setenv("APPS_EXEC_CHILD", "1", 1);
    execl("/proc/self/exe", argv[0], static_cast<char*>(nullptr));
    _exit(3);
  }
  for (size_t w = 0; w < workers.size(); ++w)
    CHECK(exitOf(workers[w]) == 0, "worker %zu failed", w);
  CHECK(exitOf(user) == 0, "CUDA in a forked child did not fail");
  CHECK(exitOf(other) == 0, "the executed program failed");
  CHECK(host[1] == apps::word(0, seed) + 1, "a child's write reached the parent");
  for (size_t b = 0; b < buffers.size(); ++b) {
    uint32_t added = 0;
    for (size_t w = 0; w < workers.size(); ++w) added += w % buffers.size() == b;
    apps::verify(buffers[b], kPiece, seed + uint32_t(b), added, "parent's buffer after the forks");
  }
  return apps::ok("fork_child with %zu buffers", buffers.size());
}
