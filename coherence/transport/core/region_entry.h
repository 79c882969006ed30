// The state behind a Region and a Domain: keys, rights, who is touching the memory right now, and
// which cards know it.
//
// The end of a region, in this order: its key is gone (Domain::remove), peers that can reach it by
// themselves are told (KeyWatcher), nothing new begins and what this side has under way ends
// (pins), and it is taken from the cards (Registration's end). If a card refuses, all links of the
// domain that gave it away are cut off, and it is taken again.
//
// Locks, in this order: RegionEntry::registering (held while a card pins memory: milliseconds) ->
// RegionEntry::mutex, Domain::mutex_, which are leaves.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "coherence/transport/regions.h"
#include "coherence/transport/transport.h"

namespace olpager::transport {

/// A region as a card knows it.
class Registration {
 public:
  virtual ~Registration() = default;
  /// Takes it back: afterwards nobody reaches the memory by the card. False: the card does not let
  /// it go.
  virtual bool end() = 0;
};

/// A domain's registrations at one card.
class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;
  // For memory that the card pins: windows pin none.
  std::atomic<uint64_t> registrations{0};  // made so far
  std::atomic<uint64_t> pinned_bytes{0};   // of host memory, now
  /// Makes a region known to the card, which pins its pages.
  virtual Result<std::unique_ptr<Registration>> make(const RegionEntry& entry) = 0;
  /// Why the card can't have memory by a dma-buf, whatever it is; "": it can, as far as it says.
  virtual std::string whyNoDmaBufs() const { return ""; }
};

struct RegionEntry {
  std::byte* base = nullptr;  // null without a CPU address
  uint64_t length = 0;
  uint32_t access = 0;
  uint64_t key = 0;
  base::UniqueFd fd;  // own duplicate of the memfd
  uint64_t fd_offset = 0;
  uint64_t fd_size = 0;
  std::atomic<bool> handed_out{false};
  base::UniqueFd dma_buf;  // own duplicate
  uint64_t dma_buf_offset = 0;
  std::shared_ptr<RegionEntry> whole;  // what it is a part of, which is lent
  std::atomic<bool> reachable{false};  // a peer has been told how to reach it by itself
  std::atomic<bool> refused{false};    // a card could not have it

  /// The region as the card of this protection domain knows it, made known if need be. The caller
  /// holds a pin. Null: the card can't; the first time an Error line goes to the log.
  Registration* registered(const std::shared_ptr<ProtectionDomain>& with);
  /// Takes it from the cards; false: one does not let it go.
  bool unregister();

  /// Takes part in the memory until unpin(); false when the region has ended.
  bool pin() {
    std::lock_guard lock(mutex);
    if (revoked) return false;
    ++pins;
    return true;
  }
  void unpin() {
    std::function<void()> last;
    {
      std::lock_guard lock(mutex);
      if (--pins != 0) return;
      last = std::exchange(on_idle, nullptr);
      idle.notify_all();
    }
    if (last) last();
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
  /// As transport::revoke().
  bool revoke(std::function<void()> then) {
    std::lock_guard lock(mutex);
    revoked = true;
    if (pins != 0) on_idle = std::move(then);
    return pins == 0;
  }

 private:
  std::mutex mutex;
  std::condition_variable idle;
  uint64_t pins = 0;
  std::function<void()> on_idle;
  bool revoked = false;
  struct Known {
    std::shared_ptr<ProtectionDomain> with;
    std::unique_ptr<Registration> as;  // null: the card can't
  };
  std::mutex registering;
  std::vector<Known> known;  // a few at most
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

/// A link that may have given away a key for good: by a mapping, by what a card needs. The link
/// tells its peer when the key is taken back.
class KeyWatcher {
 public:
  virtual ~KeyWatcher() = default;
  virtual void keyRevoked(uint64_t key) = 0;
  /// Ends the link; when this has returned, its peer reaches nothing by itself any more.
  virtual void cutOff(const std::string& /*why*/) {}
};

class Domain {
 public:
  explicit Domain(DomainPtr within) : within_(std::move(within)) {}
  /// Null: it is within none.
  const DomainPtr& within() const { return within_; }
  /// kOk and a pin when [offset, offset + length) of `key` may be accessed so; kRevoked for a key
  /// that once was good; kBadRange for anything else.
  Outcome pin(uint64_t key, uint64_t offset, uint64_t length, uint32_t access, Pin& into);

  void add(const std::shared_ptr<RegionEntry>& entry);
  void remove(const RegionEntry& entry);
  void watch(std::weak_ptr<KeyWatcher> watcher);
  void cutOff(const std::string& why);
  /// The protection domain for the card that `card` identifies, made the first time.
  Result<std::shared_ptr<ProtectionDomain>> on(
      const void* card, const std::function<Result<std::shared_ptr<ProtectionDomain>>()>& make);
  CardMemory cardMemory();
  /// Those of all cards that links have asked for so far.
  std::vector<std::shared_ptr<ProtectionDomain>> cards();

 private:
  std::vector<std::shared_ptr<KeyWatcher>> watchers();  // under mutex_
  static constexpr size_t kRevokedKeys =
      4096;  // remembered, so that a late request is not taken for an attack
  const DomainPtr within_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<RegionEntry>> entries_;
  std::unordered_set<uint64_t> revoked_;
  std::deque<uint64_t> revoked_order_;
  std::vector<std::weak_ptr<KeyWatcher>> watchers_;
  std::unordered_map<const void*, std::shared_ptr<ProtectionDomain>> cards_;
};

}  // namespace olpager::transport
