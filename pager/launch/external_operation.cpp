#include "pager/launch/external_operation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "pager/clock.h"
#include "pager/launch/acquisition.h"
#include "pager/pool_state.h"

namespace olpager::pager {

namespace {

__attribute__((tls_model("initial-exec"))) thread_local ExternalOperation* t_current = nullptr;

}  // namespace

ExternalOperation::ExternalOperation(void (*call)(void* of), void* data)
    : resumable(call), of(data) {}
ExternalOperation::~ExternalOperation() = default;

ExternalOperation* ExternalOperation::current() noexcept { return t_current; }
void ExternalOperation::setCurrent(ExternalOperation* operation) noexcept { t_current = operation; }

void Suspended::start() {
  std::call_once(started_, [this] { thread_ = base::ownThread([this] { run(); }); });
}

void Suspended::add(ExternalOperation& operation) { all_.push_back(&operation); }

void Suspended::giveUp(ExternalOperation& operation) {
  if (operation.kept == nullptr) return;
  Lock lock(state_.mutex);
  operation.kept->cancel(lock);
  operation.kept.reset();
}

void Suspended::run() {
  Lock lock(state_.mutex);
  // Those that are suspended when the pool stops are refused: their callers hear of it.
  for (bool last = false; !last;) {
    last = stops_;
    std::vector<ExternalOperation*> resumable;
    // To look may release the mutex, and others may come meanwhile, at the end.
    for (size_t i = 0; i < all_.size();) {
      ExternalOperation& operation = *all_[i];
      if (operation.kept->ready(lock) == Acquisition::State::kWaiting &&
          !operation.kept->mayDefer()) {
        ++i;
        continue;
      }
      all_.erase(all_.begin() + static_cast<ptrdiff_t>(i));
      resumable.push_back(&operation);
    }
    if (!resumable.empty()) {
      lock.unlock();
      for (const ExternalOperation* const operation : resumable)
        operation->resumable(operation->of);
      lock.lock();
    } else if (!last && !stops_) {
      state_.changed.wait_for(lock, kLook);
    }
  }
}

void Suspended::stopThread() noexcept {
  {
    const Lock lock(state_.mutex);
    stops_ = true;
  }
  state_.changed.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Suspended::forked() noexcept {
  if (thread_.joinable()) thread_.detach();  // it is the parent's
}

}  // namespace olpager::pager
