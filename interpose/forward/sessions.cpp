#include "interpose/forward/sessions.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/log.h"
#include "coherence/transport/core/own_descriptors.h"
#include "forwarding/visible_devices.h"
#include "forwarding/wire/driver_environment.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/counted_links.h"
#include "interpose/forward/devices.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/read_environment.h"
#include "interpose/forward/session.h"
#include "interpose/forward/sites.h"
#include "interpose/forward/straight_copies.h"

namespace olpager::forward {

namespace {

Connecting& connecting() { return *program().parts().connecting; }

void childAfterFork() {
  const auto parents = existingSessions();
  program().session_count.store(0);
  program().unified.store(nullptr);
  // The parent's lock may be held by a thread that the child does not have: the child's is new.
  new (&connecting().mutex) std::mutex;
  connecting().tried = false;
  // Closes the descriptors that reach workers, which would else take the child for their client;
  // also of a session that is being made. The transport's threads are not here, so nobody else uses
  // it.
  transport::closeInForkedChild();
  for (const Session* const session : parents) {
    if (session->initialized()) program().forked.store(true);
  }
  forgetDevices();
}

// After the program's own exit handlers and destructors, which may still call. Nothing of ours is
// destroyed.
__attribute__((destructor)) void end() {
  if (program().forked.load()) return;
  tellCopiesBetween();
  for (Session* const session : existingSessions()) session->atExit();
}

// Parts of one range, or nobody could tell whose an address is.
Status checkRanges(std::span<Session* const> all) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Description &a = all[i]->executor().description(),
                        &b = all[j]->executor().description();
      if (a.va_base < b.va_base + b.va_size && b.va_base < a.va_base + a.va_size)
        return Error{
            "gpunodes " + all[j]->executor().name() + " and " + all[i]->executor().name() +
            " use the same addresses: their settings va_base and va_size have to be the same"};
    }
  }
  return {};
}

// All at once: the drivers start meanwhile.
Status connectAll(const base::Settings& settings, const View& view, std::vector<Session*>& all) {
  // In the unified view they are executors of one session.
  const bool unified = settings.view == base::ViewSetting::kUnified;
  const auto found = unified ? gpusOf(settings) : gpunodesOf(settings);
  if (!found.ok()) return found.error();
  const std::span<const Site> sites = found.value();
  const auto slots = static_cast<unsigned>(sites.size());
  const unsigned each = unified ? slots : 1;
  std::vector<std::future<Status>> opened;
  for (unsigned slot = 0; slot < slots; slot += each) {
    all.push_back(new Session(settings, sites.subspan(slot, each), slot, slots));
    // Sessions that were begun stay when another fails: threads may still use them.
    if (slot > 0)
      opened.push_back(
          std::async(std::launch::async, [session = all.back()] { return session->open(); }));
  }
  Status status = all.front()->open();
  for (auto& one : opened) {
    if (Status other = one.get(); status.ok()) status = std::move(other);
  }
  for (Session* const session : all) {
    if (status.ok()) status = session->start();
  }
  if (status.ok()) status = checkRanges(all);
  if (status.ok() && view.accepts != nullptr) status = view.accepts(all);
  if (status.ok()) status = findDevices(all);
  return status;
}

}  // namespace

void configureSessions(const base::Settings& settings, const View& view) {
  Connecting& state = connecting();
  std::lock_guard lock(state.mutex);
  state.settings = settings;
  state.view = view;
  state.configured = true;
}

bool inForkedChild() { return program().forked.load(std::memory_order_relaxed); }

std::span<Session* const> existingSessions() {
  const uint32_t count = program().session_count.load(std::memory_order_acquire);
  return {program().sessions.data(), count};
}

std::span<Session* const> sessions() {
  if (const auto made = existingSessions(); !made.empty()) return made;
  if (inForkedChild()) return {};
  Connecting& state = connecting();
  std::lock_guard lock(state.mutex);
  if (const auto made = existingSessions(); !made.empty()) return made;
  if (!state.configured || state.tried) return {};
  state.tried = true;
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
      visible != nullptr && hidesAll(visible)) {
    base::logInfo("CUDA_VISIBLE_DEVICES=%s: this program has no device, and no gpunode is asked",
                  visible);
    return {};
  }
  // Before a thread can fork while this one connects, with the lock.
  if (!state.forks_are_heard)
    state.forks_are_heard = pthread_atfork(nullptr, nullptr, childAfterFork) == 0;
  readLaunchBlocking();
  std::vector<Session*> all;
  if (const Status connected = connectAll(state.settings, state.view, all); !connected.ok()) {
    // Else their gpunodes would keep them for as long as the program runs.
    for (Session* const session : all) session->atExit();
    if (base::logLevel() != base::LogLevel::kOff)
      base::logError("%s", connected.error().message.c_str());
    return {};
  }
  if (const LinksSource source = program().links_source.load(); source != nullptr)
    program().links.store(&source(), std::memory_order_release);
  std::copy(all.begin(), all.end(), program().sessions.begin());
  if (state.settings.view == base::ViewSetting::kUnified) program().unified.store(all.front());
  program().session_count.store(static_cast<uint32_t>(all.size()), std::memory_order_release);
  return existingSessions();
}

Session* sessionOfHandle(uint64_t handle) {
  if (!isMarked(handle)) return nullptr;
  const auto all = existingSessions();
  const unsigned slot = slotOf(handle);
  return slot < all.size() ? all[slot] : program().unified.load(std::memory_order_relaxed);
}

Session* sessionOfRange(uint64_t address) {
  for (Session* const session : existingSessions()) {
    const Description& description = session->executor().description();
    if (address - description.va_base < description.va_size) return session;
  }
  return nullptr;
}

Session* sessionOfAddress(uint64_t address) {
  Session* const session = sessionOfRange(address);
  return session != nullptr ? session : sessionOfDriverMemory(address);
}

Session* existingSession() {
  const auto all = existingSessions();
  if (all.size() > 1) {
    if (Session* const current = sessionOfHandle(currentContext())) return current;
  }
  return all.empty() ? nullptr : all.front();
}

Session* currentSession() {
  if (Session* const session = existingSession()) return session;
  (void)sessions();
  return existingSession();
}

Session* sessionOfGroup() {
  Session* const session = existingSession();
  return session != nullptr && session->group() != nullptr ? session : nullptr;
}

void Route::toDevice(CUdevice device) {
  CUdevice at_worker = 0;
  (void)placeOf(device, &session_, &at_worker);
}

}  // namespace olpager::forward
