#include "memserver/tier/hasher.h"

#include <algorithm>
#include <system_error>

#include "base/held_signals.h"

namespace olpager::memserver {
namespace {
constexpr size_t kAlone = 2;  // pages that are hashed sooner than a helper wakes up
}

unsigned Hasher::helpersHere() {
  return std::clamp(std::thread::hardware_concurrency() / 4, 0u, 3u);
}

Hasher::Hasher(unsigned helpers) {
  try {
    for (unsigned i = 0; i < helpers; ++i) helpers_.push_back(base::ownThread([this] { help(); }));
  } catch (const std::system_error&) {
    // With those that there are.
  }
}

Hasher::~Hasher() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  begun_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Hasher::takePages() {
  for (size_t page = next_.fetch_add(1, std::memory_order_relaxed); page < pages_.size();
       page = next_.fetch_add(1, std::memory_order_relaxed)) {
    pages_[page] = kernels::hashPage(memory_ + page * kernels::kHashPageBytes);
  }
}

void Hasher::help() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begun_.wait(lock, [&] { return closing_ || call_ != seen; });
    if (closing_) return;
    seen = call_;
    ++inside_;
    lock.unlock();
    takePages();
    lock.lock();
    if (--inside_ == 0) ended_.notify_one();
  }
}

pager::ContentHash Hasher::hash(const void* memory, uint64_t bytes) {
  const size_t count = bytes / kernels::kHashPageBytes;
  if (helpers_.empty() || count <= kAlone) return kernels::hashMemory(memory, bytes);
  {
    std::unique_lock lock(mutex_);
    // A helper that woke up late for the call before may still be looking for pages of it.
    ended_.wait(lock, [&] { return inside_ == 0; });
    memory_ = static_cast<const std::byte*>(memory);
    pages_.resize(count);
    next_.store(0, std::memory_order_relaxed);
    ++call_;
  }
  begun_.notify_all();
  takePages();
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return inside_ == 0; });
  return kernels::combineHashes(pages_.data(), count);
}

}  // namespace olpager::memserver
