#include "interpose/nvml/view.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <numeric>
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

// The answer of one gpunode.
struct Known {
  std::shared_ptr<const status::Status> last;
  bool failed = false;
};
struct View {
  std::mutex mutex;
  std::vector<Known> nodes;  // in the order of the settings
  bool one_device = false;   // the unified view
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

uint32_t sumOf(uint32_t one, uint32_t other) {
  return one == status::kUnknown || other == status::kUnknown ? status::kUnknown : one + other;
}
uint32_t greatestOf(uint32_t one, uint32_t other) {
  return one == status::kUnknown || other == status::kUnknown ? status::kUnknown
                                                              : std::max(one, other);
}

// The first `devices` figures, one of each device, become one.
void foldDevices(std::vector<uint64_t>& figures, size_t devices) {
  if (devices == 0) return;
  const auto end = figures.begin() + static_cast<ptrdiff_t>(devices);
  figures.front() = std::accumulate(figures.begin(), end, uint64_t{0});
  figures.erase(figures.begin() + 1, end);
}

// As the unified view has it: one device of all, under the name of the first. The device is as busy
// as the busiest, and has the memory of all. A program has a session at each; it is one process.
void makeOne(Seen& all) {
  status::Status& told = all.status;
  const size_t devices = told.devices.size();
  status::Device& one = told.devices.front();
  one.peers = 0;
  for (size_t i = 1; i < devices; ++i) {
    const status::Device& other = told.devices[i];
    one.total += other.total, one.used += other.used, one.free += other.free;
    one.gpu_percent = greatestOf(one.gpu_percent, other.gpu_percent);
    one.memory_percent = greatestOf(one.memory_percent, other.memory_percent);
    one.temperature = greatestOf(one.temperature, other.temperature);
    one.power_mw = sumOf(one.power_mw, other.power_mw);
    one.power_limit_mw = sumOf(one.power_limit_mw, other.power_limit_mw);
    one.multiprocessors = std::min(one.multiprocessors, other.multiprocessors);
  }
  told.devices.resize(1);
  all.lost = {std::find(all.lost.begin(), all.lost.end(), true) != all.lost.end()};
  std::vector<status::Session> sessions;
  for (status::Session& session : told.sessions) {
    foldDevices(session.bytes, session.bytes.empty() ? 0 : session.bytes.size() - 1);  // then RAM
    foldDevices(session.budgets, session.budgets.size());
    const auto same = std::find_if(sessions.begin(), sessions.end(), [&](const auto& before) {
      return session.process != 0 && before.process == session.process &&
             before.node == session.node;
    });
    if (same == sessions.end()) {
      sessions.push_back(std::move(session));
      continue;
    }
    same->connected = std::max(same->connected, session.connected);
    for (size_t i = 0; i < std::min(same->bytes.size(), session.bytes.size()); ++i)
      same->bytes[i] += session.bytes[i];
    for (size_t i = 0; i < std::min(same->budgets.size(), session.budgets.size()); ++i)
      same->budgets[i] += session.budgets[i];
  }
  told.sessions = std::move(sessions);
}

// All gpunodes' devices one after another, or all in one. Each session has figures for all, 0 for
// those of other gpunodes.
std::shared_ptr<const Seen> merged(const std::vector<Known>& nodes, bool one_device) {
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
  if (one_device && all->status.devices.size() > 1) makeOne(*all);
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
    state.one_device = settings.value().view == base::ViewSetting::kUnified;
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
      state.seen = merged(state.nodes, state.one_device);
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
