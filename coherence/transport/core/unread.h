// Bounds the bytes that wait in this process because the peer of a link does not read: for all
// links of a key together, since a key may open many.
//
// If the links of a key are above their bound, those with more than an equal part of it are at
// fault. So a link whose peer reads goes on, whatever others with its key do, and all of them
// together hold twice the bound at most. Thread-safety: any thread; counters alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace olpager::transport {

/// One link's.
class Unread {
 public:
  struct OfKey {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint32_t> links{0};
  };
  using OfKeyPtr = std::shared_ptr<OfKey>;

  /// `most`: of all links of the key. Without `of_key` nothing is counted.
  Unread(OfKeyPtr of_key, uint64_t most) : of_key_(std::move(of_key)), most_(most) {
    if (of_key_) of_key_->links.fetch_add(1);
  }
  ~Unread() {
    if (!of_key_) return;
    of_key_->bytes.fetch_sub(own_.load());
    of_key_->links.fetch_sub(1);
  }
  Unread(const Unread&) = delete;
  Unread& operator=(const Unread&) = delete;

  void grow(uint64_t bytes) {
    if (!of_key_ || bytes == 0) return;
    own_.fetch_add(bytes, std::memory_order_relaxed);
    of_key_->bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  /// By what grow() has added before.
  void shrink(uint64_t bytes) {
    if (!of_key_ || bytes == 0) return;
    own_.fetch_sub(bytes, std::memory_order_relaxed);
    of_key_->bytes.fetch_sub(bytes, std::memory_order_relaxed);
  }
  /// True if this link is one of those to blame for a crossed bound.
  bool tooMuch() const {
    if (!of_key_ || of_key_->bytes.load(std::memory_order_relaxed) <= most_) return false;
    const uint64_t links = std::max(1u, of_key_->links.load(std::memory_order_relaxed));
    return own_.load(std::memory_order_relaxed) > most_ / links;
  }

 private:
  const OfKeyPtr of_key_;
  const uint64_t most_;
  std::atomic<uint64_t> own_{0};
};

}  // namespace olpager::transport
