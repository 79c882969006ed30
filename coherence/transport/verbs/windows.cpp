#include "coherence/transport/verbs/windows.h"

#include <cerrno>
#include <cstring>

#include "base/format.h"

namespace olpager::transport::verbs {

Window::~Window() {
  end();
  const std::lock_guard lock(all_->mutex_);
  all_->open_.erase(this);  // also where the card kept one of them
}

bool Window::end() {
  std::lock_guard lock(all_->mutex_);
  return all_->endOne(*this);
}

ibv_send_wr Window::opening(Class klass) const {
  ibv_send_wr request{};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = made_[index(klass)];
  request.bind_mw.rkey = rkeys_[index(klass)];
  request.bind_mw.bind_info.mr = of_;
  request.bind_mw.bind_info.addr = reinterpret_cast<uint64_t>(entry_.base);
  request.bind_mw.bind_info.length = entry_.length;
  unsigned rights = 0;
  if ((entry_.access & kRemoteRead) != 0) rights |= IBV_ACCESS_REMOTE_READ;
  if ((entry_.access & kRemoteWrite) != 0) rights |= IBV_ACCESS_REMOTE_WRITE;
  request.bind_mw.bind_info.mw_access_flags = rights;
  return request;
}

Result<std::unique_ptr<Registration>> Windows::make(const RegionEntry& entry) {
  const CardRegion* const whole = CardDomain::known(*entry.whole, card_);
  if (whole == nullptr) return Error{"a part of memory that the card can't have goes by TCP"};
  auto window = std::make_unique<Window>(shared_from_this(), whole->get(), entry);
  std::lock_guard lock(mutex_);
  if (ended_) return Error{"the link is down"};
  for (size_t i = 0; i < kClasses; ++i) {
    ibv_mw* const made = ibv_alloc_mw(card_->get(), IBV_MW_TYPE_2);
    if (made == nullptr) {
      const int error = errno;
      endOne(*window);
      return Error{base::format("card {}: no memory window for {} bytes, so they go by TCP: {}",
                                card_->get()->context->device->name, entry.length,
                                std::strerror(error))};
    }
    window->made_[i] = made;
    // A bound window has another key than a new one.
    window->rkeys_[i] = ibv_inc_rkey(made->rkey);
  }
  open_.insert(window.get());
  return std::unique_ptr<Registration>(std::move(window));
}

bool Windows::endOne(Window& window) {
  bool all = true;
  for (ibv_mw*& made : window.made_) {
    if (made == nullptr) continue;
    if (ibv_dealloc_mw(made) == 0) {
      made = nullptr;
    } else {
      all = false;
    }
  }
  if (all) open_.erase(&window);
  return all;
}

void Windows::end() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (Window* const window : std::unordered_set<Window*>(open_)) endOne(*window);
}

}  // namespace olpager::transport::verbs
