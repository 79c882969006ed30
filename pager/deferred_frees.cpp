#include "pager/deferred_frees.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace olpager::pager {

void DeferredFrees::add(const StreamKey& stream, const Entry& entry) {
  of_stream_[stream].push_back(entry);
  addresses_.insert(entry.address);
}

std::vector<CUdeviceptr> DeferredFrees::collect(const DriverApi& driver, Lock& lock) {
  constexpr size_t kStreams = 64, kOfEach = 16;  // at a time
  // The first ones of each stream: what is behind one that has not come has not either. With more
  // streams others have their turn the next time.
  std::vector<std::pair<StreamKey, std::deque<Entry>>> pending;
  auto at = of_stream_.upper_bound(asked_last_);
  for (size_t streams = std::min(kStreams, of_stream_.size()); streams != 0; --streams) {
    if (at == of_stream_.end()) at = of_stream_.begin();
    auto& all = at->second;
    const auto end = all.begin() + static_cast<ptrdiff_t>(std::min(kOfEach, all.size()));
    pending.emplace_back(at->first, std::deque(all.begin(), end));
    all.erase(all.begin(), end);
    asked_last_ = at->first;
    at = all.empty() ? of_stream_.erase(at) : std::next(at);
  }
  std::vector<CUdeviceptr> come;
  ++asking_;
  lock.unlock();
  for (auto& [stream, entries] : pending) {
    while (!entries.empty() && driver.cuEventQuery(entries.front().event) != CUDA_ERROR_NOT_READY) {
      driver.cuEventDestroy_v2(entries.front().event);
      come.push_back(entries.front().address);
      entries.pop_front();
    }
  }
  lock.lock();
  --asking_;
  for (const auto& [stream, entries] : pending) {
    if (entries.empty()) continue;
    auto& all = of_stream_[stream];
    all.insert(all.begin(), entries.begin(), entries.end());
  }
  return come;
}

void DeferredFrees::awaitAsking(base::Condition& changed, Lock& lock) const {
  while (asking_ > 0) changed.wait_for(lock, std::chrono::milliseconds(1));
}

std::vector<DeferredFrees::Entry> DeferredFrees::takeStreamsOf(CUcontext context) {
  std::vector<Entry> taken;
  std::erase_if(of_stream_, [&](const auto& stream) {
    if (stream.first.context != context) return false;
    taken.insert(taken.end(), stream.second.begin(), stream.second.end());
    return true;
  });
  return taken;
}

}  // namespace olpager::pager
