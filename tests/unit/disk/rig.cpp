#include "tests/unit/disk/rig.h"

#include <errno.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

namespace olpager::disk::test {
namespace {

uint64_t wordAt(uint64_t seed, uint64_t index) {
  return (seed * 0x9e3779b97f4a7c15ull + index) * 0xd6e8feb86659fd93ull | 1;
}

// True so many times as `left` says.
bool takes(std::atomic<int>& left) {
  int now = left.load();
  while (now > 0 && !left.compare_exchange_weak(now, now - 1)) {
  }
  return now > 0;
}

class FaultyQueue final : public IoQueue {
 public:
  FaultyQueue(Faults& faults, std::unique_ptr<IoQueue> under)
      : faults_(faults), under_(std::move(under)) {}

  void begin(const Io& io) override {
    ++faults_.begun;
    if (takes(faults_.throwing)) throw std::bad_alloc();
    if (takes(io.write ? faults_.failing_writes : faults_.failing_reads))
      return own_.push_back({io.tag, -faults_.error.load()});
    if (takes(faults_.interrupted))
      return own_.push_back({io.tag, faults_.interrupted.load() % 2 == 0 ? -EINTR : -EAGAIN});
    if (!io.write && takes(faults_.ended)) return own_.push_back({io.tag, 0});
    Io part = io;
    // An O_DIRECT request moves whole sectors; that of which less is told is made again.
    const bool is_short = io.bytes > 8192 && takes(faults_.short_ones);
    if (is_short) part.bytes = io.bytes / 2 & ~4095u;
    begun_[io.tag] = {part, is_short};
    under_->begin(part);
    ++under_way_;
  }

  void wait(std::vector<IoEnd>& ended) override {
    while (faults_.held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ended.insert(ended.end(), own_.begin(), own_.end());
    if (!std::exchange(own_, {}).empty() || under_way_ == 0) return;
    std::vector<IoEnd> came;
    under_->wait(came);
    under_way_ -= came.size();
    for (IoEnd& end : came) {
      const Begun& begun = begun_.at(end.tag);
      if (!begun.io.write && end.result > 0 && takes(faults_.wrong_reads))
        begun.io.memory[end.result / 2] ^= std::byte{4};
      if (begun.is_short && end.result > 0) end.result -= 100;
      ended.push_back(end);
    }
  }

 private:
  struct Begun {
    Io io;
    bool is_short = false;
  };
  Faults& faults_;
  std::unique_ptr<IoQueue> under_;
  std::map<uint64_t, Begun> begun_;
  size_t under_way_ = 0;
  std::vector<IoEnd> own_;
};

}  // namespace

void Bytes::fill(uint64_t seed) {
  for (uint64_t i = 0; i < words_.size(); ++i) words_[i] = wordAt(seed, i);
}

bool Bytes::holds(uint64_t seed) const {
  for (uint64_t i = 0; i < words_.size(); ++i)
    if (words_[i] != wordAt(seed, i)) return false;
  return true;
}

QueueMaker faulty(Faults& faults, QueueMaker under) {
  return [&faults, under](unsigned depth) -> std::unique_ptr<IoQueue> {
    return std::make_unique<FaultyQueue>(faults, under(depth));
  };
}

namespace {
std::unique_ptr<LowerTier> openedWell(const TierOptions& options) {
  auto opened = openTier(options);
  INFO((opened.ok() ? "" : opened.error().message));
  REQUIRE(opened.ok());
  return std::move(opened).value();
}
}  // namespace

Caller::Caller(TierOptions options) : Caller(openedWell(options)) {}

Caller::Caller(std::unique_ptr<LowerTier> given) : tier(std::move(given)) {
  tier->setWake([this] {
    ++wakes;
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

LowerTier::Finished Caller::await(uint64_t address) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  std::unique_lock lock(mutex_);
  for (;;) {
    for (const LowerTier::Finished& one : tier->take())
      if (!finished_.emplace(one.address, one).second) std::abort();  // twice
    if (const auto found = finished_.find(address); found != finished_.end()) {
      const LowerTier::Finished result = found->second;
      finished_.erase(found);
      return result;
    }
    if (changed_.wait_until(lock, end) == std::cv_status::timeout)
      throw std::runtime_error("a transfer does not end");
  }
}

Outcome Caller::sent(uint64_t address, const Bytes& bytes, const pager::ContentHash* hash) {
  tier->send(address, bytes.base(), bytes.length(), hash);
  return await(address).outcome;
}

Outcome Caller::received(uint64_t address, Bytes& bytes) {
  tier->receive(address, bytes.base(), bytes.length(), true);
  return await(address).outcome;
}

TierOptions optionsFor(const std::vector<const TemporaryFolder*>& folders, uint64_t bytes) {
  TierOptions options;
  for (const TemporaryFolder* folder : folders) options.folders.push_back({folder->path, bytes});
  return options;
}

}  // namespace olpager::disk::test
