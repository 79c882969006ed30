// Two processes share memory by handles: one allocates, lets it leave VRAM, exports it and goes on
// using it; the other maps it, reads and writes it by kernels and copies. Handles of freed memory,
// of an ended process and of the process's own are refused.
//
// The driver puts small allocations into blocks of 2 MiB and shares a block as a whole: memory
// whose handle is to be refused after its free is therefore not small, and of two small ones the
// second may be there already with the first.
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common.h"

constexpr int kBlocks = 4;
constexpr size_t kBytes[kBlocks] = {size_t{5} << 20, size_t{2} << 20, 40960, 4096};
constexpr size_t kWorked = 4096;  // bytes at the start of each that both write

constexpr int kLeftAlone = 2;  // exit of a process whose peer ended first

struct Shared {
  cudaIpcMemHandle_t handles[kBlocks];
  cudaIpcMemHandle_t freed;
};

static void tell(int pipe, const void* what, size_t bytes) {
  CHECK(write(pipe, what, bytes) == ssize_t(bytes), "a pipe broke");
}
static void hear(int pipe, void* what, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t n = read(pipe, static_cast<char*>(what) + got, bytes - got);
    if (n == 0) {
      std::printf("waited for the other process, which had ended");
      std::fflush(stdout);
      std::exit(kLeftAlone);
    }
    CHECK(n > 0, "a pipe broke");
    got += size_t(n);
  }
}

static int importer(const apps::Options& options, int in, int out) {
  const uint32_t seed = uint32_t(options.seed);
  Shared shared;
  hear(in, &shared, sizeof shared);
  apps::Pressure pressure(options.bytes / 2);  // this process pages, too
  char* blocks[kBlocks];
  int opened = 0;
  for (; opened < kBlocks; ++opened) {
    const int b = opened;
    const cudaError_t result = cudaIpcOpenMemHandle(
        reinterpret_cast<void**>(&blocks[b]), shared.handles[b], cudaIpcMemLazyEnablePeerAccess);
    if (result == cudaErrorAlreadyMapped && b == kBlocks - 1) {
      (void)cudaGetLastError();
      break;
    }
    CHECK(result == cudaSuccess, "%s:%d: cudaIpcOpenMemHandle of block %d: %d %s", __FILE__,
          __LINE__, b, int(result), cudaGetErrorString(result));
    apps::verify(blocks[b], kBytes[b], seed + uint32_t(b), 0, "what was exported");
  }
  void* again = nullptr;
  RUNTIME_OK(cudaIpcOpenMemHandle(&again, shared.handles[0], cudaIpcMemLazyEnablePeerAccess));
  CHECK(again == blocks[0], "opened twice, it lies in two places");
  RUNTIME_OK(cudaIpcCloseMemHandle(again));
  CHECK(cudaIpcOpenMemHandle(&again, shared.freed, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
        "memory that was freed can be opened");
  (void)cudaGetLastError();
  pressure.apply();
  for (int b = 0; b < opened; ++b) apps::add(blocks[b], kWorked, 1000);
  RUNTIME_OK(cudaDeviceSynchronize());
  tell(out, &opened, sizeof opened);
  char word = 1;
  hear(in, &word, 1);  // the other side has written
  pressure.apply();
  for (int b = 0; b < opened; ++b)
    apps::verify(blocks[b], kWorked, seed + uint32_t(b), 1007, "what the other wrote");
  // Bytes move between both kinds of memory.
  char* own;
  RUNTIME_OK(cudaMalloc(&own, kBytes[0]));
  RUNTIME_OK(cudaMemcpy(own, blocks[0], kBytes[0], cudaMemcpyDeviceToDevice));
  pressure.apply();
  apps::verify(own, kWorked, seed, 1007, "a copy of what the other wrote");
  // One stays open while the other process frees it.
  for (int b = 1; b < opened; ++b) RUNTIME_OK(cudaIpcCloseMemHandle(blocks[b]));
  tell(out, &word, 1);
  hear(in, &word, 1);
  apps::verify(blocks[0], kWorked, seed, 1007, "memory that the other freed");
  CHECK(cudaIpcOpenMemHandle(&again, shared.handles[1], cudaIpcMemLazyEnablePeerAccess) !=
            cudaSuccess,
        "memory that was freed since can be opened");
  (void)cudaGetLastError();
  RUNTIME_OK(cudaIpcCloseMemHandle(blocks[0]));
  CHECK(cudaIpcCloseMemHandle(blocks[0]) != cudaSuccess, "closed twice");
  (void)cudaGetLastError();
  pressure.check();
  tell(out, &word, 1);
  // The exporter has ended when the pipe has.
  while (read(in, &word, 1) > 0) {
  }
  CHECK(cudaIpcOpenMemHandle(&again, shared.handles[0], cudaIpcMemLazyEnablePeerAccess) !=
            cudaSuccess,
        "memory of a process that has ended can be opened");
  return 0;
}

static int exporter(const apps::Options& options, int in, int out) {
  const uint32_t seed = uint32_t(options.seed);
  char* blocks[kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    RUNTIME_OK(cudaMalloc(&blocks[b], kBytes[b]));
    apps::fill(blocks[b], kBytes[b], seed + uint32_t(b));
  }
  apps::Pressure pressure(options.bytes);
  pressure.apply();
  Shared shared;
  for (int b = 0; b < kBlocks; ++b) {
    const cudaError_t made = cudaIpcGetMemHandle(&shared.handles[b], blocks[b]);
    if (b == 0 && made == cudaErrorNotSupported) return 77;
    RUNTIME_OK(made);
  }
  cudaIpcMemHandle_t twice;
  RUNTIME_OK(cudaIpcGetMemHandle(&twice, blocks[0]));
  CHECK(std::memcmp(&twice, &shared.handles[0], sizeof twice) == 0,
        "one allocation has two handles");
  void* own = nullptr;
  CHECK(
      cudaIpcOpenMemHandle(&own, shared.handles[0], cudaIpcMemLazyEnablePeerAccess) != cudaSuccess,
      "a process can open its own handle");
  (void)cudaGetLastError();
  char* gone;
  RUNTIME_OK(cudaMalloc(&gone, size_t{2} << 20));
  RUNTIME_OK(cudaIpcGetMemHandle(&shared.freed, gone));
  RUNTIME_OK(cudaFree(gone));
  pressure.apply();
  RUNTIME_OK(cudaDeviceSynchronize());
  tell(out, &shared, sizeof shared);
  char word = 0;
  int opened = 0;
  hear(in, &opened, sizeof opened);
  pressure.apply();
  for (int b = 0; b < opened; ++b) {
    apps::verify(blocks[b], kWorked, seed + uint32_t(b), 1000, "what the other wrote");
    apps::add(blocks[b], kWorked, 7);
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  tell(out, &word, 1);
  hear(in, &word, 1);
  for (int b = 0; b < kBlocks; ++b) RUNTIME_OK(cudaFree(blocks[b]));
  pressure.apply();
  pressure.check();
  tell(out, &word, 1);
  hear(in, &word, 1);
  return 0;
}

// A child process and what it says.
struct Child {
  const char* name;
  pid_t id = 0;
  int output = -1;
  std::string said;
  int status = 0;

  template <typename Body>
  Child(const char* who, Body body) : name(who) {
    int ends[2];
    CHECK(pipe(ends) == 0, "no pipes");
    std::fflush(stdout);
    id = fork();
    if (id == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]), close(ends[1]);
      std::exit(body());
    }
    CHECK(id > 0, "no child process");
    close(ends[1]);
    output = ends[0];
  }
  void end() {
    char bytes[512];
    for (ssize_t n; (n = read(output, bytes, sizeof bytes)) > 0;) said.append(bytes, size_t(n));
    CHECK(waitpid(id, &status, 0) == id, "the %s is lost", name);
    while (!said.empty() && said.back() == '\n') said.pop_back();
  }
  bool exited(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
  std::string verdict() const {
    if (exited(0)) return std::string(name) + ": right to its end";
    const std::string how = WIFEXITED(status) ? "exit " + std::to_string(WEXITSTATUS(status))
                                              : "signal " + std::to_string(WTERMSIG(status));
    return std::string(name) + ": " + how + (said.empty() ? "" : " (" + said + ")");
  }
};

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  int down[2], up[2];
  CHECK(pipe(down) == 0 && pipe(up) == 0, "no pipes");
  // Both processes begin with CUDA after the fork, in children, so that one can be seen to end
  // before the other.
  Child exporting("exporter", [&] {
    close(down[0]), close(up[1]);
    return exporter(options, up[0], down[1]);
  });
  Child importing("importer", [&] {
    close(exporting.output), close(down[1]), close(up[0]);
    return importer(options, down[0], up[1]);
  });
  close(down[0]), close(down[1]), close(up[0]), close(up[1]);
  exporting.end();
  importing.end();
  if (exporting.exited(77)) apps::skip("no handles between processes here");
  CHECK(exporting.exited(0) && importing.exited(0), "%s; %s", exporting.verdict().c_str(),
        importing.verdict().c_str());
  return apps::ok("ipc_memory with %d allocations", kBlocks);
}
