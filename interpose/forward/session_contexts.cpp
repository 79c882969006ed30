#include "interpose/forward/session_contexts.h"

#include <algorithm>

#include "interpose/forward/context.h"
#include "interpose/forward/session.h"

namespace olpager::forward {

SessionContexts::SessionContexts(Session& session) : session_(session) {}
SessionContexts::~SessionContexts() = default;

// Under the mutex.
Context& SessionContexts::at(uint64_t number) {
  auto& known = known_[number];
  if (known == nullptr) known = std::make_unique<Context>(session_.parts(), number);
  return *known;
}

void SessionContexts::made(uint64_t number, CUdevice device) {
  std::lock_guard lock(mutex_);
  device_of_[number] = device;
  std::erase(alive_, number);
  alive_.push_back(number);
}

void SessionContexts::retained(uint64_t primary) {
  std::lock_guard lock(mutex_);
  std::erase(alive_, primary);
  alive_.push_back(primary);
  ++retained_[primary];
}

bool SessionContexts::released(uint64_t primary, bool reset) {
  std::lock_guard lock(mutex_);
  unsigned& count = retained_[primary];
  count -= count != 0 && !reset ? 1 : 0;
  return count == 0;
}

void SessionContexts::gone(uint64_t number) {
  if (Group* const group = session_.group(); group != nullptr) group->contextGone(number);
  std::unique_ptr<Context> ends;  // without the lock
  std::lock_guard lock(mutex_);
  device_of_.erase(number);
  std::erase(alive_, number);
  if (const auto found = known_.find(number); found != known_.end()) {
    ends = std::move(found->second);
    known_.erase(found);
  }
}

std::vector<uint64_t> SessionContexts::alive() const {
  std::lock_guard lock(mutex_);
  return alive_;
}

uint64_t SessionContexts::only() const {
  std::lock_guard lock(mutex_);
  return alive_.size() == 1 && !hasGreens() ? alive_.front() : 0;
}

uint64_t SessionContexts::newest() const {
  std::lock_guard lock(mutex_);
  return alive_.empty() ? 0 : alive_.back();
}

bool SessionContexts::deviceOf(uint64_t number, CUdevice* device) const {
  std::unique_lock lock(mutex_);
  const auto found = device_of_.find(number);
  if (found == device_of_.end()) return false;
  const CUdevice its = found->second;
  lock.unlock();  // the caller's memory may be managed
  *device = its;
  return true;
}

void SessionContexts::greenMade(uint64_t green, CUdevice device) {
  std::lock_guard lock(mutex_);
  green_[green] = {device, 0};
  greens_.store(green_.size());
}

bool SessionContexts::greenStandsFor(uint64_t green, uint64_t context) {
  std::lock_guard lock(mutex_);
  const auto found = green_.find(green);
  if (found == green_.end()) return false;
  found->second.context = context;
  device_of_[context] = found->second.device;
  return true;
}

bool SessionContexts::green(uint64_t number, Green* found) const {
  std::lock_guard lock(mutex_);
  const auto at = green_.find(number);
  if (at == green_.end()) return false;
  *found = at->second;
  return true;
}

bool SessionContexts::isKept(CUdevice device, uint64_t primary, uint64_t without_green) const {
  std::lock_guard lock(mutex_);
  if (const auto count = retained_.find(primary); count != retained_.end() && count->second != 0)
    return true;
  return std::any_of(green_.begin(), green_.end(), [&](const auto& one) {
    return one.first != without_green && one.second.device == device;
  });
}

void SessionContexts::greenGone(uint64_t green) {
  std::lock_guard lock(mutex_);
  green_.erase(green);
  greens_.store(green_.size());
}

bool SessionContexts::greenDeviceOf(uint64_t context, CUdevice* device) const {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(green_.begin(), green_.end(),
                                  [&](const auto& one) { return one.second.context == context; });
  if (found == green_.end()) return false;
  *device = found->second.device;
  return true;
}

}  // namespace olpager::forward
