#include "interpose/nvml/view.h"

#include <pthread.h>

#include <chrono>
#include <mutex>
#include <new>
#include <string>

#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "coherence/status/ask.h"
#include "coherence/transport/from_settings.h"

namespace olpager::nvml {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kFresh = 200ms;
constexpr auto kRetry = 1s;
constexpr uint32_t kPatienceMs = 3000;

struct View {
  std::mutex mutex;
  std::shared_ptr<const status::Status> last;
  Clock::time_point asked{};
  bool failed = false;
};
View& view() {
  static View* const instance = new View;  // used until the process ends
  return *instance;
}

// The lock may have been held by a thread that the child does not have.
void inChild() { new (&view().mutex) std::mutex; }

Result<status::Status> ask() {
  const auto settings = base::loadSettings();
  if (!settings.ok()) return settings.error();
  const std::string& address = settings.value().gpunode;
  if (address.empty())
    return Error{
        "no gpunode is named (OL_GPUNODE): this is olpager's libnvidia-ml.so.1, for programs under olrun --gpunode"};
  auto network = transport::optionsFrom(settings.value());
  if (!network.ok()) return network.error();
  network.value().connect_ms = kPatienceMs;
  network.value().choice = transport::Choice::kTcp;
  auto asker = status::Asker::make(network.value(), address, kPatienceMs);
  if (!asker.ok()) return asker.error();
  auto told = asker.value()->ask();
  if (!told.ok()) return Error{"gpunode " + told.error().message};
  if (told.value().status.kind != "gpunode") return Error{address + " is no gpunode"};
  if (told.value().status.devices.empty()) return Error{"gpunode " + address + " has no device: its log says why"};
  return std::move(told.value().status);
}

}  // namespace

std::shared_ptr<const status::Status> look(Freshness freshness) {
  static const int registered = pthread_atfork(nullptr, nullptr, inChild);
  (void)registered;
  View& state = view();
  std::lock_guard lock(state.mutex);
  const auto age = Clock::now() - state.asked;
  if (state.failed && age < kRetry) return freshness == Freshness::kAny ? state.last : nullptr;
  if (!state.failed && state.last && (freshness == Freshness::kAny || age < kFresh)) return state.last;
  Result<status::Status> told = Error{"no memory for it"};
  try {
    told = ask();
  } catch (const std::exception& failure) {
    told = Error{failure.what()};
  }
  state.asked = Clock::now();
  if (!told.ok()) {
    if (!state.failed && base::logs(base::LogLevel::kError))
      base::logError("NVML: %s", base::printable(told.error().message).c_str());
    state.failed = true;
    return freshness == Freshness::kAny ? state.last : nullptr;
  }
  state.failed = false;
  state.last = std::make_shared<const status::Status>(std::move(told).value());
  return state.last;
}

void lookAgain() {
  std::lock_guard lock(view().mutex);
  view().failed = false;
}

}  // namespace olpager::nvml
