#include "tools/olbench/disk.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/format.h"
#include "disk/open.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::tools::bench {
namespace {

using nlohmann::json;
using pager::LowerTier;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kExtent = 4ull << 20;
constexpr uint64_t kFlight = 32;  // extents on their way, as the engine has them
constexpr unsigned kWorkers = 4;  // that make requests of the disk alone
constexpr unsigned kDepth = 4;    // requests of each at a time, as a worker of the tier has
constexpr auto kPatience = std::chrono::seconds(60);

double secondsSince(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

double medianRate(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Memory in whole pages, with bytes that no disk packs.
struct Noise {
  explicit Noise(uint64_t bytes) : length(bytes) {
    void* const got = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (got == MAP_FAILED) throw std::runtime_error("no memory for what is written");
    base = static_cast<std::byte*>(got);
    std::mt19937_64 random(1);
    for (uint64_t at = 0; at < length; at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(base + at, &word, sizeof word);
    }
  }
  ~Noise() { munmap(base, length); }
  Noise(const Noise&) = delete;
  Noise& operator=(const Noise&) = delete;

  const uint64_t length;
  std::byte* base = nullptr;
};

/// Requests of 2 MiB over a file, by several threads with a queue each.
class Alone {
 public:
  Alone(const std::string& folder, uint64_t bytes)
      : pages_(bytes / disk::kPlaceBytes), memory_(kWorkers * kDepth * disk::kPlaceBytes) {
    auto opened = disk::openNameless({folder, bytes});
    if (!opened.ok()) throw std::runtime_error(opened.error().message);
    file_ = std::move(opened).value();
  }

  /// Bytes per second.
  double rate(bool write) {
    const auto begun = Clock::now();
    std::vector<std::thread> threads;
    std::atomic<bool> failed{false};
    for (unsigned i = 0; i < kWorkers; ++i)
      threads.emplace_back([&, i] { failed = failed || !work(i, write); });
    for (std::thread& thread : threads) thread.join();
    if (failed) throw std::runtime_error("the disk alone failed to read or write");
    return static_cast<double>(pages_ * disk::kPlaceBytes) / secondsSince(begun);
  }

 private:
  bool work(unsigned worker, bool write) {
    const auto queue = disk::makeQueue(kDepth);
    uint64_t next = worker;
    unsigned under_way = 0;
    const auto begin = [&](uint64_t slot) {
      if (next >= pages_) return;
      queue->begin({.fd = file_.get(),
                    .write = write,
                    .offset = next * disk::kPlaceBytes,
                    .memory = memory_.base + (worker * kDepth + slot) * disk::kPlaceBytes,
                    .bytes = static_cast<uint32_t>(disk::kPlaceBytes),
                    .tag = slot});
      next += kWorkers;
      ++under_way;
    };
    for (uint64_t slot = 0; slot < kDepth; ++slot) begin(slot);
    bool well = true;
    std::vector<disk::IoEnd> ended;
    while (under_way > 0) {
      ended.clear();
      queue->wait(ended);
      for (const disk::IoEnd& end : ended) {
        well = well && end.result == static_cast<int64_t>(disk::kPlaceBytes);
        --under_way;
        begin(end.tag);
      }
    }
    return well;
  }

  const uint64_t pages_;
  Noise memory_;
  base::UniqueFd file_;
};

/// The tier, and what the engine does with it.
class Tiered {
 public:
  Tiered(const std::string& folder, uint64_t bytes, bool encrypt)
      : extents_(bytes / kExtent), memory_(kFlight * kExtent) {
    auto opened = disk::openTier({.folders = {{folder, bytes}}, .encrypt = encrypt});
    if (!opened.ok()) throw std::runtime_error(opened.error().message);
    tier_ = std::move(opened).value();
    for (uint64_t i = 0; i < kFlight; ++i)
      hashes_.push_back(kernels::hashMemory(memory_.base + i * kExtent, kExtent));
    tier_->setWake([this] {
      std::lock_guard lock(mutex_);
      rung_ = true;
      changed_.notify_one();
    });
  }
  ~Tiered() { tier_.reset(); }

  /// Bytes per second.
  double rate(bool write) {
    const auto begun = Clock::now();
    uint64_t next = 0, under_way = 0;
    const auto begin = [&] {
      if (next >= extents_) return;
      std::byte* const memory = memory_.base + next % kFlight * kExtent;
      if (write) {
        tier_->send(next, memory, kExtent, &hashes_[next % kFlight]);
      } else {
        tier_->receive(next, memory, kExtent, false);
      }
      ++next;
      ++under_way;
    };
    // An extent is begun when the one is over whose memory it has, so in order.
    std::vector<bool> over(extents_);
    uint64_t first = 0;
    for (uint64_t i = 0; i < kFlight; ++i) begin();
    while (under_way > 0) {
      {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, kPatience, [&] { return rung_; }))
          throw std::runtime_error("the tier hangs");
        rung_ = false;
      }
      for (const LowerTier::Finished& one : tier_->take()) {
        if (one.outcome != LowerTier::Outcome::kDone)
          throw std::runtime_error("the tier failed to read or write");
        over[one.address] = true;
        --under_way;
      }
      while (first < extents_ && over[first] && first < next) {
        ++first;
        begin();
      }
    }
    return static_cast<double>(extents_ * kExtent) / secondsSince(begun);
  }

 private:
  const uint64_t extents_;
  Noise memory_;
  std::vector<pager::ContentHash> hashes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
  std::unique_ptr<LowerTier> tier_;
};

json row(const DiskOptions& options, bool encrypt) {
  const uint64_t bytes = std::max(options.bytes / kExtent, kFlight) * kExtent;
  Alone alone(options.folder, bytes);
  Tiered tiered(options.folder, bytes, encrypt);
  json result = {{"encrypted", encrypt}, {"bytes", bytes}};
  // The first writing gives the files their room.
  (void)alone.rate(true);
  (void)tiered.rate(true);
  for (const bool write : {true, false}) {
    std::vector<double> disk, tier;
    for (unsigned round = 0; round < options.rounds; ++round) {
      disk.push_back(alone.rate(write));
      tier.push_back(tiered.rate(write));
    }
    const std::string prefix = write ? "write" : "read";
    result[prefix + "_disk_gigabytes_per_second"] = medianRate(disk) / 1e9;
    result[prefix + "_tier_gigabytes_per_second"] = medianRate(tier) / 1e9;
    result[prefix + "_ratio"] = medianRate(tier) / medianRate(disk);
  }
  return result;
}

}  // namespace

json measureDisk(const DiskOptions& options) {
  return {{"rows", json::array({row(options, true), row(options, false)})}};
}

void printDisk(const json& result) {
  base::print("{:<16}{:>22}{:>22}\n", "2 MiB, GB/s", "written", "read");
  for (const json& each : result["rows"]) {
    base::print("{:<16}", each["encrypted"].get<bool>() ? "encrypted" : "as it is");
    for (const std::string part : {"write", "read"})
      base::print("{:>8.2f} of {:>5.2f} {:>4.2f} ",
                  each[part + "_tier_gigabytes_per_second"].get<double>(),
                  each[part + "_disk_gigabytes_per_second"].get<double>(),
                  each[part + "_ratio"].get<double>());
    base::print("\n");
  }
  base::print("the tier of the disk alone, share\n");
}

}  // namespace olpager::tools::bench
