// The CPU and a running kernel talk through pinned memory: the kernel waits for each number,
// answers, and meanwhile the program pages on another stream. A managed flag is polled by the CPU
// while a kernel runs, where the device allows that.
#include <atomic>
#include <chrono>

#include "common.h"

struct Mailbox {
  volatile uint32_t question;
  volatile uint32_t answer;
};

__global__ void serve(Mailbox* box, uint32_t* log, uint32_t rounds, uint32_t limit) {
  for (uint32_t round = 1; round <= rounds; ++round) {
    uint32_t waited = 0;
    while (box->question != round && ++waited < limit) {
    }
    if (box->question != round) return;  // nobody writes: give up, so that the test ends
    log[round] = round * 7;
    __threadfence_system();
    box->answer = round;
  }
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr uint32_t kRounds = 20;
  Mailbox* box;
  uint32_t* log;
  RUNTIME_OK(cudaHostAlloc(&box, sizeof *box, cudaHostAllocMapped));
  box->question = box->answer = 0;
  RUNTIME_OK(cudaMalloc(&log, 4 * (kRounds + 1)));
  RUNTIME_OK(cudaMemset(log, 0, 4 * (kRounds + 1)));
  cudaStream_t server, other;
  RUNTIME_OK(cudaStreamCreateWithFlags(&server, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  apps::Pressure pressure(options.bytes);
  RUNTIME_OK(cudaDeviceSynchronize());
  serve<<<1, 1, 0, server>>>(box, log, kRounds, 400'000'000);
  RUNTIME_OK(cudaGetLastError());
  for (uint32_t round = 1; round <= kRounds; ++round) {
    box->question = round;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (box->answer != round) {
      (void)cudaStreamQuery(server);
      CHECK(std::chrono::steady_clock::now() < deadline, "no answer to %u within 30 s", round);
    }
    if (round % 5 == 0) pressure.apply(other);
  }
  RUNTIME_OK(cudaStreamSynchronize(server));
  RUNTIME_OK(cudaStreamSynchronize(other));
  std::vector<uint32_t> got(kRounds + 1);
  RUNTIME_OK(cudaMemcpy(got.data(), log, got.size() * 4, cudaMemcpyDeviceToHost));
  for (uint32_t round = 1; round <= kRounds; ++round)
    CHECK(got[round] == round * 7, "log %u is %u", round, got[round]);
  pressure.check();
  int concurrent = 0;
  RUNTIME_OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
  if (concurrent != 0) {
    Mailbox* managed;
    RUNTIME_OK(cudaMallocManaged(&managed, sizeof *managed));
    managed->answer = 0;
    managed->question = 1;
    serve<<<1, 1, 0, server>>>(managed, log, 1, 400'000'000);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (managed->answer != 1) {
      (void)cudaStreamQuery(server);
      CHECK(std::chrono::steady_clock::now() < deadline,
            "the managed flag did not change within 30 s");
    }
    RUNTIME_OK(cudaStreamSynchronize(server));
    RUNTIME_OK(cudaFree(managed));
  }
  return apps::ok("mailbox with %u questions", kRounds);
}
