// A lower tier for tests: keeps copies in this process, ends transfers after a random time in a
// random order, and can be told to have no room or to lose what it has. A use against the contract
// of lower_tier.h ends the test.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "pager/tiers/lower_tier.h"

namespace olpager::pager::test {

class FakeRemote final : public LowerTier {
 public:
  FakeRemote(uint64_t capacity, uint64_t seed)
      : capacity_(capacity), random_(seed), thread_([this] { run(); }) {}
  ~FakeRemote() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    for (const auto& [memory, mapping] : devices_) munmap(mapping.at, mapping.bytes);
  }

  // Memory of a device, by the memfd that the simulated GPU gives for a dma-buf.
  std::string whyNotDirect() const override {
    return cut ? "connected by other means" : direct ? "" : "no cards here";
  }
  Status makeKnown(const void* memory, uint64_t bytes, int dma_buf) override {
    std::lock_guard lock(mutex_);
    if (devices_.size() >= most_known) return Error{"the card has had enough"};
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0);
    if (at == MAP_FAILED || !devices_.insert({memory, {at, bytes}}).second)
      broken_ = "a dma-buf that is none, or is known";
    return {};
  }
  void checked(uint64_t id, bool right) override {
    std::lock_guard lock(mutex_);
    const auto found = unchecked_.find(id);
    if (found == unchecked_.end()) {
      broken_ = "checked without having come";
      return;
    }
    unchecked_.erase(found);
    ++(right ? right_ : not_right_);
    const auto copy = copies_.find(id);
    const ContentHash hash =
        copy != copies_.end() ? hashed(copy->second.data(), copy->second.size()) : ContentHash{};
    finished_.push_back({id, false,
                         right                   ? Outcome::kDone
                         : copy != copies_.end() ? Outcome::kNotNow
                                                 : Outcome::kLost,
                         hash});
    answered_ = true;  // the thread tells of it
    changed_.notify_all();
  }

  void send(uint64_t id, const void* memory, uint64_t bytes, const ContentHash* hash) override {
    std::lock_guard lock(mutex_);
    if (busy(id)) broken_ = "a second transfer of one id";
    jobs_.push_back({id, true, const_cast<void*>(memory), bytes, due()});  // NOLINT: only read
    known_.insert(memory);
    if (isDevice(memory) && hash == nullptr) broken_ = "a device's memory is sent with no hash";
    if (hash != nullptr && *hash != hashed(at(memory), bytes))
      broken_ = "the hash given is not that of the bytes";
    changed_.notify_all();
  }
  void receive(uint64_t id, void* memory, uint64_t bytes, bool urgent) override {
    static_cast<void>(urgent);
    std::lock_guard lock(mutex_);
    if (busy(id)) broken_ = "a second transfer of one id";
    if (no_memory) {
      finished_.push_back(
          {id, false, Outcome::kNotNow, hashed(copies_[id].data(), copies_[id].size())});
      return;
    }
    if (!lost && (copies_.count(id) == 0 || copies_[id].size() != bytes))
      broken_ = "what is received was never sent";
    jobs_.push_back({id, false, memory, bytes, due()});
    known_.insert(memory);
    changed_.notify_all();
  }
  void setWake(std::function<void()> wake) override {
    std::lock_guard lock(wake_mutex_);
    wake_ = std::move(wake);
  }
  // A send that does not go on is given up.
  void raise(uint64_t id) override {
    std::lock_guard lock(mutex_);
    const auto raised = [&](const Job& job) { return job.id == id && job.sent && frozen; };
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), raised);
    if (job == jobs_.end()) return;
    copies_.erase(id);
    finished_.push_back({id, true, Outcome::kNoRoom, {}});
    jobs_.erase(job);
  }
  // Likewise a receive. Nothing else writes its target.
  void giveUp(uint64_t id) override {
    std::lock_guard lock(mutex_);
    const auto given_up = [&](const Job& job) { return job.id == id && !job.sent && frozen; };
    const auto job = std::find_if(jobs_.begin(), jobs_.end(), given_up);
    if (job == jobs_.end()) return;
    finished_.push_back(
        {id, false, Outcome::kNotNow, hashed(copies_[id].data(), copies_[id].size())});
    jobs_.erase(job);
  }
  bool holds(uint64_t id, const ContentHash& hash) const override {
    std::lock_guard lock(mutex_);
    const auto found = copies_.find(id);
    if (found == copies_.end() || hashed(found->second.data(), found->second.size()) != hash)
      return false;
    if (forgets && forgets(id)) {
      copies_.erase(found);
      ++forgotten_;
    }
    return true;
  }
  std::vector<uint64_t> heldAddresses() const override {
    std::lock_guard lock(mutex_);
    std::vector<uint64_t> ids;
    for (const auto& [id, copy] : copies_)
      if (!busy(id)) ids.push_back(id);
    return ids;
  }
  bool drop(uint64_t id) override {
    std::lock_guard lock(mutex_);
    if (busy(id)) broken_ = "dropped while it is under way";
    return copies_.erase(id) != 0;
  }
  void letGo(const void* memory) override {
    std::lock_guard lock(mutex_);
    for (const Job& job : jobs_)
      if (job.memory == memory) broken_ = "memory let go of while it is used";
    for (const auto& [id, job] : unchecked_)
      if (job.memory == memory) broken_ = "memory let go of before it was checked";
    known_.erase(memory);
    if (const auto found = devices_.find(memory); found != devices_.end()) {
      munmap(found->second.at, found->second.bytes);
      devices_.erase(found);
    }
  }
  std::vector<Finished> take() override {
    std::lock_guard lock(mutex_);
    return std::exchange(finished_, {});
  }
  TierFigures figures() const override {
    TierFigures figures;
    figures.capacity_bytes = capacity_;
    figures.held_bytes = held();
    return figures;
  }

  /// Memservers want memory back, or have more.
  void setCapacity(uint64_t bytes) {
    capacity_ = bytes;
    std::lock_guard waking(wake_mutex_);
    if (wake_) wake_();
  }
  /// All copies are gone, and their holders have not asked yet. With `lost`.
  void forget() {
    std::lock_guard lock(mutex_);
    copies_.clear();
  }
  unsigned receiving() const {
    std::lock_guard lock(mutex_);
    return static_cast<unsigned>(
        std::count_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.sent; }));
  }
  size_t underWay() const {
    std::lock_guard lock(mutex_);
    return jobs_.size();
  }
  /// Sends of a device's memory that have not ended, and receives that wait for checked().
  size_t sendingDirectly() const {
    std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [this](const Job& job) {
      return job.sent && isDevice(job.memory);
    }));
  }
  size_t unchecked() const {
    std::lock_guard lock(mutex_);
    return unchecked_.size();
  }
  /// Memory of transfers that the pager has not let go of.
  size_t known() const {
    std::lock_guard lock(mutex_);
    return known_.size();
  }
  const char* broken() const {
    std::lock_guard lock(mutex_);
    return broken_;
  }
  uint64_t held() const {
    std::lock_guard lock(mutex_);
    return heldNow();
  }

  struct Directly {
    unsigned sent = 0, right = 0, not_right = 0;
    size_t known = 0;
  };
  /// Transfers by a device's memory, and chunks that are known.
  Directly directly() const {
    std::lock_guard lock(mutex_);
    return {direct_sent_, right_, not_right_, devices_.size()};
  }
  std::atomic<bool> direct{false};   // a device's memory can be known
  std::atomic<bool> cut{false};      // cards move nothing of it
  std::atomic<unsigned> corrupt{0};  // so many receives into it bring other bytes
  std::atomic<size_t> most_known{SIZE_MAX};
  std::atomic<bool> no_room{false}, lost{false};
  std::atomic<unsigned> admitted{0};   // so many find room all the same
  std::atomic<unsigned> refused{0};    // found none
  std::atomic<bool> frozen{false};     // no transfer ends
  std::atomic<bool> no_memory{false};  // for receives
  std::function<bool(uint64_t id)>
      forgets;  // set while nothing runs: a copy of which holds() was true is lost right then
  unsigned forgotten() const {
    std::lock_guard lock(mutex_);
    return forgotten_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    uint64_t id;
    bool sent;
    void* memory;
    uint64_t bytes;
    Clock::time_point due;
  };

  struct Mapping {
    void* at;
    uint64_t bytes;
  };
  bool isDevice(const void* memory) const { return devices_.contains(memory); }
  // The address of a processor's view of it.
  void* at(const void* memory) const {
    const auto found = devices_.find(memory);
    return found != devices_.end() ? found->second.at : const_cast<void*>(memory);  // NOLINT
  }

  static ContentHash hashed(const void* memory, uint64_t bytes) {
    std::vector<ContentHash> pages;
    for (uint64_t at = 0; at < bytes; at += kernels::kHashPageBytes)
      pages.push_back(kernels::hashPage(static_cast<const char*>(memory) + at));
    return kernels::combineHashes(pages.data(), pages.size());
  }
  uint64_t heldNow() const {
    uint64_t bytes = 0;
    for (const auto& [id, copy] : copies_) bytes += copy.size();
    return bytes;
  }
  bool busy(uint64_t id) const {
    for (const Job& job : jobs_)
      if (job.id == id) return true;
    for (const Finished& one : finished_)
      if (one.address == id) return true;
    return unchecked_.contains(id);
  }
  Clock::time_point due() { return Clock::now() + std::chrono::microseconds(random_() % 3000); }

  bool admits() {
    for (unsigned left = admitted; left != 0;)
      if (admitted.compare_exchange_weak(left, left - 1)) return true;
    return false;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
      bool ended = std::exchange(answered_, false);
      for (size_t i = 0; i < jobs_.size();) {
        if (frozen || jobs_[i].due > Clock::now()) {
          ++i;
          continue;
        }
        const Job job = jobs_[i];
        jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(i));
        finished_.push_back(finish(job));
        ended = true;
      }
      if (!ended) continue;
      lock.unlock();
      {
        std::lock_guard waking(wake_mutex_);
        if (wake_) wake_();
      }
      lock.lock();
    }
  }
  Finished finish(const Job& job) {
    Finished done{job.id, job.sent, Outcome::kDone, {}};
    if (job.sent) copies_.erase(job.id);  // it is written over
    if (cut && isDevice(job.memory)) {
      const auto copy = copies_.find(job.id);
      done.outcome = job.sent ? Outcome::kNoRoom : Outcome::kNotNow;
      if (!job.sent && copy == copies_.end()) done.outcome = Outcome::kLost;
      if (copy != copies_.end()) done.hash = hashed(copy->second.data(), copy->second.size());
    } else if (job.sent && ((no_room && !admits()) || heldNow() + job.bytes > capacity_)) {
      done.outcome = Outcome::kNoRoom;
      ++refused;
    } else if (job.sent) {
      const char* from = static_cast<const char*>(at(job.memory));
      copies_[job.id].assign(from, from + job.bytes);
      done.hash = hashed(from, job.bytes);
      direct_sent_ += isDevice(job.memory);
    } else if (lost) {
      std::memset(at(job.memory), 0x5a, job.bytes);
      copies_.erase(job.id);
      done.outcome = Outcome::kLost;
    } else {
      std::memcpy(at(job.memory), copies_[job.id].data(), job.bytes);
      done.hash = hashed(at(job.memory), job.bytes);
      if (isDevice(job.memory)) {
        done.outcome = Outcome::kUnchecked;
        unchecked_.insert({job.id, job});
        if (corrupt > 0) {
          --corrupt;
          static_cast<char*>(at(job.memory))[job.bytes / 2] ^= 1;
        }
      }
    }
    return done;
  }

  std::atomic<uint64_t> capacity_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  mutable std::map<uint64_t, std::vector<char>> copies_;
  mutable unsigned forgotten_ = 0;
  std::set<const void*> known_;
  std::map<const void*, Mapping> devices_;
  std::map<uint64_t, Job> unchecked_;
  unsigned direct_sent_ = 0, right_ = 0, not_right_ = 0;
  std::vector<Job> jobs_;
  std::vector<Finished> finished_;
  const char* broken_ = nullptr;
  bool answered_ = false;
  bool stop_ = false;
  std::mutex wake_mutex_;
  std::function<void()> wake_;
  std::thread thread_;
};

}  // namespace olpager::pager::test
