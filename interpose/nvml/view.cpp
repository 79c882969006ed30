#include "interpose/nvml/view.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "coherence/status/ask.h"
#include "coherence/transport/from_settings.h"
#include "forwarding/wire/session_protocol.h"

namespace olpager::nvml {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kFresh = 200ms;
constexpr auto kRetry = 1s;
constexpr uint32_t kPatienceMs = 3000;

// Of one gpunode.
struct Known {
  std::shared_ptr<const status::Status> last;
  bool failed = false;
};
struct View {
  std::mutex mutex;
  std::vector<Known> nodes;  // in the order of the settings
  std::shared_ptr<const Seen> seen;
  Clock::time_point asked{};
};
View& view() {
  static View* const instance = new View;  // used until the process ends
  return *instance;
}

// The lock may have been held by a thread that the child does not have.
void inChild() { new (&view().mutex) std::mutex; }

Result<status::Status> ask(const base::Settings& settings, const std::string& address) {
  auto network = transport::optionsFrom(settings, address);
  if (!network.ok()) return network.error();
  network.value().connect_ms = kPatienceMs;
  network.value().choice = transport::Choice::kTcp;
  auto asker = status::Asker::make(network.value(), address, kPatienceMs);
  if (!asker.ok()) return asker.error();
  auto told = asker.value()->ask();
  if (!told.ok()) return Error{"gpunode " + told.error().message};
  if (told.value().status.kind != "gpunode") return Error{address + " is no gpunode"};
  if (told.value().status.devices.empty())
    return Error{"gpunode " + address + " has no device: its log says why"};
  return std::move(told.value().status);
}

// All gpunodes' devices one after another; each session has figures for all, 0 for those of other
// gpunodes.
std::shared_ptr<const Seen> merged(const std::vector<Known>& nodes) {
  auto all = std::make_shared<Seen>();
  for (unsigned slot = 0; slot < nodes.size(); ++slot) {
    if (!nodes[slot].last) return nullptr;
    const status::Status& one = *nodes[slot].last;
    const size_t first = all->status.devices.size();
    if (slot == 0) {
      all->status = one;
      all->lost.assign(one.devices.size(), nodes[slot].failed);
      continue;
    }
    for (status::Device device : one.devices) {
      device.pci_domain = forward::pciDomainOf(slot, device.pci_domain);
      device.peers = first < 64 ? device.peers << first : 0;
      all->status.devices.push_back(std::move(device));
      all->lost.push_back(nodes[slot].failed);
    }
    for (auto session : one.sessions) {
      session.budgets.insert(session.budgets.begin(), first, 0);
      session.bytes.insert(session.bytes.begin(), first, 0);
      all->status.sessions.push_back(std::move(session));
    }
    all->status.cuda_version = std::min(all->status.cuda_version, one.cuda_version);
  }
  return all;
}

void askAll(View& state) {
  const auto settings = base::loadSettings();
  Status status = settings.ok() ? base::checkLocalStarted(settings.value()) : settings.error();
  if (status.ok() && settings.value().gpunodes.empty())
    status = Error{
        "no gpunode is named (OL_GPUNODE): this is olpager's libnvidia-ml.so.1, for programs under "
        "olrun --gpunode"};
  if (status.ok()) {
    state.nodes.resize(settings.value().gpunodes.size());
  } else if (state.nodes.empty()) {
    state.nodes.resize(1);
  }
  for (size_t i = 0; i < state.nodes.size(); ++i) {
    Known& node = state.nodes[i];
    Result<status::Status> told =
        status.ok() ? Result<status::Status>(Error{"no memory for it"}) : status.error();
    try {
      if (status.ok()) told = ask(settings.value(), settings.value().gpunodes[i]);
    } catch (const std::exception& failure) {
      told = Error{failure.what()};
    }
    if (told.ok()) {
      node = {std::make_shared<const status::Status>(std::move(told).value()), false};
      continue;
    }
    if (!node.failed && base::logs(base::LogLevel::kError))
      base::logError("NVML: %s", base::printable(told.error().message).c_str());
    node.failed = true;
  }
}

}  // namespace

std::shared_ptr<const Seen> look(Freshness freshness) {
  static const int registered = pthread_atfork(nullptr, nullptr, inChild);
  (void)registered;
  View& state = view();
  std::lock_guard lock(state.mutex);
  const auto failed = [&](auto which) {
    return !state.nodes.empty() && which(state.nodes.begin(), state.nodes.end(),
                                         [](const Known& one) { return one.failed; });
  };
  const auto any = [](auto... range) { return std::any_of(range...); };
  const auto every = [](auto... range) { return std::all_of(range...); };
  const auto age = Clock::now() - state.asked;
  const bool settled =
      failed(any) ? age < kRetry : state.seen && (freshness == Freshness::kAny || age < kFresh);
  if (!settled) {
    try {
      askAll(state);
      state.seen = merged(state.nodes);
    } catch (const std::exception& failure) {
      base::logError("NVML: %s", failure.what());
    }
    state.asked = Clock::now();
  }
  return freshness == Freshness::kNow && failed(every) ? nullptr : state.seen;
}

void lookAgain() {
  std::lock_guard lock(view().mutex);
  for (Known& node : view().nodes) node.failed = false;
  view().asked = {};
}

}  // namespace olpager::nvml
