// Measures the cost of a watcher to a program: launches with nobody there, with a screen that reads
// everything ten times a second, and with a trace.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "pager/clock.h"
#include "pager/counters/files.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/measure.h"

namespace olpager::tools::bench {
namespace {

enum Reader { kNobody, kScreen, kTrace, kReaders };
constexpr const char* kNames[kReaders] = {"nobody", "screen", "trace"};

/// Another process that looks at this one, while it lives.
class Looking {
 public:
  explicit Looking(Reader reader) {
    if (reader == kNobody) return;
    const pid_t looked_at = getpid();
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("fork failed");
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(look(reader, static_cast<uint64_t>(looked_at)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ~Looking() {
    if (child_ < 0) return;
    kill(child_, SIGTERM);
    waitpid(child_, nullptr, 0);
  }
  Looking(const Looking&) = delete;
  Looking& operator=(const Looking&) = delete;

 private:
  static int look(Reader reader, uint64_t pid) {
    const auto folders = pager::countersFolders();
    if (reader == kScreen) {
      for (;;) {
        pager::readCounters(folders, true);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    for (const auto& folder : folders) {
      auto made = pager::TraceReader::open(folder, pid, pager::processStartTicks(pid));
      if (!made.ok()) continue;
      for (std::vector<pager::TraceReader::Event> events;; events.clear()) {
        made.value().ask(pager::nowNs() + 1'000'000'000);
        made.value().read(events);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return 1;
  }
  pid_t child_ = -1;
};

}  // namespace

nlohmann::json measureSampled(const Options& options) {
  using Clock = std::chrono::steady_clock;
  constexpr unsigned kPointers = 8;
  constexpr unsigned kBatch = 128;
  const Driver driver(options.driver);
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  std::vector<CUdeviceptr> buffers(kPointers);
  std::vector<void*> parameters;
  for (CUdeviceptr& buffer : buffers) {
    driver.check(driver.cuMemAlloc(&buffer, 2u << 20), "cuMemAlloc");
    driver.check(driver.cuMemsetD8(buffer, 0, 2u << 20), "cuMemsetD8");
    parameters.push_back(&buffer);
  }
  const CUfunction function = driver.function(emptyKernelPtx("empty", kPointers), "empty");
  std::vector<double> times[kReaders];
  for (unsigned round = 0; round < 2 * options.rounds; ++round) {
    for (int reader = 0; reader < kReaders; ++reader) {
      const Looking looking(static_cast<Reader>(reader));
      for (unsigned done = 0; done < options.launches / 4; done += kBatch) {
        for (unsigned i = 0; i < kBatch; ++i) {
          const auto begin = Clock::now();
          const CUresult rc = driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream,
                                                    parameters.data(), nullptr);
          times[reader].push_back(
              std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
          driver.check(rc, "cuLaunchKernel");
        }
        driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
      }
    }
  }
  nlohmann::json rows = nlohmann::json::array();
  double nobody = 0;
  for (int reader = 0; reader < kReaders; ++reader) {
    std::sort(times[reader].begin(), times[reader].end());
    const double median = times[reader][times[reader].size() / 2];
    if (reader == kNobody) nobody = median;
    rows.push_back({{"reader", kNames[reader]},
                    {"median_ns", median},
                    {"p99_ns", times[reader][times[reader].size() * 99 / 100]},
                    {"ratio", median / nobody}});
  }
  return {{"measurement", "sampled"},
          {"device", driver.deviceName()},
          {"launches", times[0].size()},
          {"rows", rows}};
}

}  // namespace olpager::tools::bench
