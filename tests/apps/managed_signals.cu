// Signal handlers and managed memory. A timer's handler counts there while its thread is in calls
// of CUDA's that use that memory, or other memory. Then a thread is stopped by a signal wherever it
// is, as a collector of garbage does, while another one reads managed memory. If the device has no
// concurrent managed access the two touch it all the same: such a touch waits for the kernels
// (docs/limits.md).
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "common.h"

// The words at multiples of kStride are the CPU's.
constexpr uint32_t kStride = 4096, kWords = (8u << 20) / 4;

__global__ void addBeside(uint32_t* words, uint32_t count) {
  for (uint32_t i = 1 + (blockIdx.x * blockDim.x + threadIdx.x) * kStride; i < count;
       i += gridDim.x * blockDim.x * kStride)
    words[i] += 1;
}

static std::atomic<uint32_t*> counter{nullptr};
static std::atomic<uint32_t> ticks{0};
static void tick(int) {
  uint32_t* const counts = counter.load();
  if (counts == nullptr) return;
  *static_cast<volatile uint32_t*>(counts) = *counts + 1;
  ticks.fetch_add(1);
}

// At this thread, each millisecond.
class Timer {
 public:
  Timer() {
    sigevent event{};
    event.sigev_signo = SIGALRM;
    event.sigev_notify = SIGEV_THREAD_ID;
    event._sigev_un._tid = pid_t(syscall(SYS_gettid));
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0, "no timer: errno %d", errno);
    const itimerspec each{{0, 1'000'000}, {0, 1'000'000}};
    timer_settime(timer_, 0, &each, nullptr);
  }
  ~Timer() { timer_delete(timer_); }

 private:
  timer_t timer_;
};

static void countWhileLaunching(uint32_t* used, uint32_t* counts, cudaStream_t stream) {
  *counts = 0;
  ticks = 0;
  counter = counts;
  {
    const Timer timer;
    for (uint32_t launches = 0; launches < 150 || ticks < 75; ++launches) {
      addBeside<<<1, 32, 0, stream>>>(used, kWords);
      RUNTIME_OK(cudaGetLastError());
      if (launches % 8 == 0) RUNTIME_OK(cudaStreamSynchronize(stream));
      cudaEvent_t event;
      RUNTIME_OK(cudaEventCreate(&event));
      RUNTIME_OK(cudaEventDestroy(event));
    }
  }
  counter = nullptr;
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(*counts == ticks, "the handler has counted to %u in %u calls", *counts, ticks.load());
}

static sem_t stopped;
static std::atomic<int> stops{0}, goes{0};
static void stopHere(int) {
  const int kept = errno, mine = stops;
  sigset_t others;
  sigfillset(&others);
  sigdelset(&others, SIGUSR2);
  sem_post(&stopped);
  while (goes < mine) sigsuspend(&others);
  errno = kept;
}
static void goOn(int) {}

// A worker launches, allocates and asks; now and then it is stopped, and all pages are read.
static void collect(uint32_t* roots, int collections) {
  std::atomic<bool> ends{false};
  std::thread worker([&] {
    cudaStream_t stream;
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    while (!ends) {
      addBeside<<<1, 32, 0, stream>>>(roots, kWords);
      RUNTIME_OK(cudaGetLastError());
      RUNTIME_OK(cudaStreamSynchronize(stream));
      void* memory;
      RUNTIME_OK(cudaMalloc(&memory, 4 << 20));
      RUNTIME_OK(cudaFree(memory));
      size_t left, total;
      RUNTIME_OK(cudaMemGetInfo(&left, &total));
    }
    RUNTIME_OK(cudaStreamDestroy(stream));
  });
  for (int round = 1; round <= collections; ++round) {
    usleep(500 + useconds_t(round * 137) % 1500);
    stops = round;
    pthread_kill(worker.native_handle(), SIGUSR1);
    while (sem_wait(&stopped) != 0) {
    }
    for (uint32_t i = 0; i < kWords; i += 32 * kStride)
      CHECK(static_cast<volatile uint32_t*>(roots)[i] == i, "root %u is %u", i, roots[i]);
    goes = round;
    pthread_kill(worker.native_handle(), SIGUSR2);
  }
  ends = true;
  worker.join();
}

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  apps::Pressure pressure(size_t{12} << 20);
  sem_init(&stopped, 0, 0);
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = tick;
  sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = goOn;
  sigaction(SIGUSR2, &action, nullptr);
  action.sa_handler = stopHere;
  sigfillset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);

  uint32_t *used, *other;
  RUNTIME_OK(cudaMallocManaged(&used, kWords * 4));
  RUNTIME_OK(cudaMallocManaged(&other, kWords * 4));
  for (uint32_t i = 0; i < kWords; i += kStride) used[i] = i;
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  countWhileLaunching(used, used, stream);
  countWhileLaunching(used, other, stream);
  used[0] = 0;
  pressure.apply();
  collect(used, 30);
  RUNTIME_OK(cudaDeviceSynchronize());
  pressure.check();
  return apps::ok("handlers and stopped threads");
}
