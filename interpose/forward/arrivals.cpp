#include "interpose/forward/arrivals.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "interpose/forward/session.h"

namespace olpager::forward {
namespace {

constexpr std::chrono::milliseconds kSlice{
    100};  // of a wait: looks at the session's end in between

}  // namespace

uint32_t Arrivals::expectRows(const Rows& into) {
  uint32_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = next_++;
    expected_[number] = into;
    bytes_come_.fetch_add(1);
  }
  session_.somethingComes();
  return number;
}

void Arrivals::bytesDoNotCome(uint32_t number) {
  std::lock_guard lock(mutex_);
  if (expected_.erase(number) == 0) return;
  came_.notify_all();
  bytes_come_.fetch_sub(1);
  session_.nothingComes();
}

bool Arrivals::bytesCome(uint32_t number, std::span<const std::byte> bytes) {
  Rows expected;
  {
    std::lock_guard lock(mutex_);
    const auto found = expected_.find(number);
    if (found == expected_.end()) return true;
    // The entry stays until its bytes are there: the reader waits for it.
    expected = found->second;
  }
  if (!bytes.empty() && bytes.size() != expected.bytes()) return false;
  if (const std::byte* from = bytes.data(); !bytes.empty()) {
    expected.forEach([&](std::byte* row) {
      std::memcpy(row, from, expected.width);
      from += expected.width;
    });
  }
  {
    std::lock_guard lock(mutex_);
    expected_.erase(number);
    came_.notify_all();
  }
  bytes_come_.fetch_sub(1);
  session_.nothingComes();
  return true;
}

void Arrivals::expectChanges() {
  changes_expected_.fetch_add(1);
  session_.somethingComesBehindCall();
}

void Arrivals::changesDoNotCome() {
  changes_answered_.fetch_add(1);
  session_.nothingComes();
}

void Arrivals::changesCome(uint32_t count) {
  const auto answered =
      std::min<uint64_t>(count, changes_expected_.load() - changes_answered_.load());
  changes_answered_.fetch_add(answered);
  session_.nothingComes(static_cast<uint32_t>(answered));
}

// In this order: no more are answered than are expected, so where both are equal they were so when
// the first was read.
bool Arrivals::changesOutstanding() const {
  const uint64_t answered = changes_answered_.load();
  return answered != changes_expected_.load();
}

// Under the mutex.
bool Arrivals::expects(uint64_t address, uint64_t bytes) const {
  return std::any_of(expected_.begin(), expected_.end(),
                     [&](const auto& entry) { return entry.second.touch(address, bytes); });
}

bool Arrivals::bytesOutstanding(uint64_t address, uint64_t bytes) {
  // The thread that counted the last one had put it in place.
  if (bytes_come_.load(std::memory_order_acquire) == 0) return false;
  std::lock_guard lock(mutex_);
  return expects(address, bytes);
}

// The session's attendant receives them.
void Arrivals::awaitBytes(uint64_t address, uint64_t bytes) {
  if (bytes_come_.load(std::memory_order_acquire) == 0) return;
  session_.flush();
  std::unique_lock lock(mutex_);
  while (!session_.ended() && expects(address, bytes)) came_.wait_for(lock, kSlice);
}

void Arrivals::wake() {
  std::lock_guard lock(mutex_);
  came_.notify_all();
}

}  // namespace olpager::forward
