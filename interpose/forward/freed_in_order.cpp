#include "interpose/forward/freed_in_order.h"

#include <algorithm>
#include <utility>

namespace olpager::forward {

uint64_t FreedInOrder::add(const Memory& memory, uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const uint64_t number = next_++;
  by_number_[number] =
      waiting_.insert({{memory.context, stream, memory.bytes}, {memory.address, number}});
  return number;
}

void FreedInOrder::comes(uint64_t number, bool well) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  const auto& [key, one] = *found->second;
  (well ? come_ : stuck_).push_back({one.address, key[0], key[2]});
  waiting_.erase(found->second);
  by_number_.erase(found);
  if (well) ++count_;
  more_.notify_all();
}

void FreedInOrder::drop(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  waiting_.erase(found->second);
  by_number_.erase(found);
}

CUdeviceptr FreedInOrder::takeBack(uint64_t context, uint64_t stream, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = waiting_.find({context, stream, bytes});
  if (found == waiting_.end()) return 0;
  const Waiting one = found->second;
  waiting_.erase(found);
  by_number_.erase(one.number);
  return one.address;
}

std::vector<FreedInOrder::Memory> FreedInOrder::takeCome() {
  const std::lock_guard lock(mutex_);
  return std::exchange(come_, {});
}

std::vector<FreedInOrder::Memory> FreedInOrder::takeOf(uint64_t context) {
  std::vector<Memory> taken;
  const std::lock_guard lock(mutex_);
  for (auto* const all : {&come_, &stuck_}) {
    std::erase_if(*all, [&](const Memory& one) {
      if (one.context != context) return false;
      taken.push_back(one);
      return true;
    });
  }
  const auto begin = waiting_.lower_bound({context, 0, 0});
  const auto end = waiting_.upper_bound({context, UINT64_MAX, UINT64_MAX});
  for (auto one = begin; one != end; ++one) {
    taken.push_back({one->second.address, context, one->first[2]});
    by_number_.erase(one->second.number);
  }
  waiting_.erase(begin, end);
  more_.notify_all();
  return taken;
}

uint64_t FreedInOrder::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

bool FreedInOrder::anyWaits() const {
  const std::lock_guard lock(mutex_);
  return !waiting_.empty();
}

bool FreedInOrder::awaitMore(uint64_t count, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  (void)more_.wait_for(lock, patience, [&] { return count_ > count || waiting_.empty(); });
  return count_ > count;
}

}  // namespace olpager::forward
