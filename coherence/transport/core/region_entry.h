// What is behind a Region and a Domain: keys, rights, and who is touching the memory right now.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "base/fd.h"
#include "coherence/transport/regions.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

struct RegionEntry {
  std::byte* base = nullptr;
  uint64_t length = 0;
  uint32_t access = 0;
  uint64_t key = 0;
  base::UniqueFd fd;  // own duplicate of the memfd
  uint64_t fd_offset = 0;
  uint64_t fd_size = 0;
  std::atomic<bool> handed_out{false};

  /// Takes part in the memory until unpin(); false when the region has ended.
  bool pin() {
    std::lock_guard lock(mutex);
    if (revoked) return false;
    ++pins;
    return true;
  }
  void unpin() {
    std::lock_guard lock(mutex);
    if (--pins == 0) idle.notify_all();
  }
  bool waitIdle(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    return idle.wait_for(lock, timeout, [&] { return pins == 0; });
  }
  void revokeAndWait() {
    std::unique_lock lock(mutex);
    revoked = true;
    idle.wait(lock, [&] { return pins == 0; });
  }

 private:
  std::mutex mutex;
  std::condition_variable idle;
  uint64_t pins = 0;
  bool revoked = false;
};

/// Holds one pin.
class Pin {
 public:
  Pin() = default;
  explicit Pin(std::shared_ptr<RegionEntry> entry) : entry_(std::move(entry)) {}
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&& other) noexcept {
    reset();
    entry_ = std::move(other.entry_);
    return *this;
  }
  ~Pin() { reset(); }
  void reset() {
    if (entry_) entry_->unpin();
    entry_.reset();
  }
  explicit operator bool() const { return entry_ != nullptr; }
  RegionEntry* operator->() const { return entry_.get(); }

 private:
  std::shared_ptr<RegionEntry> entry_;
};

/// Who wants to know when a key that peers may have mapped is taken back.
class KeyWatcher {
 public:
  virtual ~KeyWatcher() = default;
  virtual void keyRevoked(uint64_t key) = 0;
};

class Domain {
 public:
  /// kOk and a pin when [offset, offset + length) of `key` may be accessed so; kRevoked for a key
  /// that once was good; kBadRange for anything else.
  Outcome pin(uint64_t key, uint64_t offset, uint64_t length, uint32_t access, Pin& into);

  void add(const std::shared_ptr<RegionEntry>& entry);
  void remove(const RegionEntry& entry);
  void watch(std::weak_ptr<KeyWatcher> watcher);

 private:
  static constexpr size_t kRevokedKeys =
      4096;  // remembered, so that a late request is not taken for an attack
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<RegionEntry>> entries_;
  std::unordered_set<uint64_t> revoked_;
  std::deque<uint64_t> revoked_order_;
  std::vector<std::weak_ptr<KeyWatcher>> watchers_;
};

}  // namespace olpager::transport
