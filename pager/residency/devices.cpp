#include "pager/residency/devices.h"

#include <algorithm>

#include "pager/residency/engine.h"

namespace olpager::pager {

Engine* Devices::engineOf(CUdevice device) const {
  for (const auto& engine : engines)
    if (engine->device() == device) return engine.get();
  return nullptr;
}

Engine* Devices::engineIn(CUcontext context) const {
  for (const auto& engine : engines)
    if (engine->context() == context) return engine.get();
  return nullptr;
}

// Puts `now` where `before` is.
void Devices::showToChild(Engine* before, Engine* now) {
  for (auto& place : for_child_) {
    if (Engine* expected = before; place.compare_exchange_strong(expected, now)) return;
  }
}

void Devices::add(std::shared_ptr<Engine> engine) {
  showToChild(nullptr, engine.get());
  engines.push_back(std::move(engine));
}

std::shared_ptr<Engine> Devices::take(const Engine* engine) {
  const auto found = std::find_if(engines.begin(), engines.end(),
                                  [engine](const auto& one) { return one.get() == engine; });
  if (found == engines.end()) return nullptr;
  std::shared_ptr<Engine> going = std::move(*found);
  showToChild(going.get(), nullptr);
  engines.erase(found);
  return going;
}

void Devices::abandonEngines() const noexcept {
  for (const auto& place : for_child_)
    if (Engine* const engine = place.load()) engine->abandon();
}

}  // namespace olpager::pager
