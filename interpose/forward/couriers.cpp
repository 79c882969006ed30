#include "interpose/forward/couriers.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/held_signals.h"
#include "base/log.h"
#include "interpose/forward/program.h"

namespace olpager::forward {
namespace {

constexpr std::chrono::seconds kIdle{5};

Couriers& couriers() { return *program().parts().couriers; }

thread_local bool t_courier = false;

void work() {
  t_courier = true;
  Couriers& all = couriers();
  std::unique_lock lock(all.mutex);
  for (;;) {
    ++all.idle;
    const bool there = all.due.wait_for(lock, kIdle, [&] { return !all.jobs.empty(); });
    --all.idle;
    if (!there) return;
    const auto job = std::move(all.jobs.front());
    all.jobs.pop_front();
    lock.unlock();
    try {
      job();
    } catch (const std::exception& error) {
      base::logError("a copy between gpunodes failed: %s", error.what());
    }
    lock.lock();
  }
}

}  // namespace

bool isCourier() { return t_courier; }

void runByCourier(std::function<void()> job) {
  Couriers& all = couriers();
  std::unique_lock lock(all.mutex);
  all.jobs.push_back(std::move(job));
  const bool enough = all.idle >= all.jobs.size();
  lock.unlock();
  all.due.notify_one();
  if (!enough) base::ownThread(work).detach();
}

}  // namespace olpager::forward
