// The supervisor's budgets of VRAM: which session may have how much of which device.
#include <sys/socket.h>

#include <algorithm>

#include "base/log.h"
#include "base/size.h"
#include "gpunode/supervisor/shares.h"
#include "gpunode/supervisor/supervisor.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr auto kEach = 500ms;
constexpr uint64_t kReserve =
    256ull << 20;  // for contexts, modules and what libraries have beside the pager
constexpr uint64_t kLeastGrowth = 256ull
                                  << 20;  // that a session is expected to want beyond what it has

uint64_t reserveOf(uint64_t total) { return std::min(total / 4, std::max(kReserve, total / 32)); }

const WorkerReport::Device* reported(const WorkerReport& report,
                                     const std::vector<uint32_t>& devices, size_t device) {
  for (uint32_t i = 0; i < report.device_count; ++i) {
    if (devices[i] == device) return &report.devices[i];
  }
  return nullptr;
}

}  // namespace

uint64_t Supervisor::mostVram(size_t device) const {
  if (options_.vram.bytes != 0) return options_.vram.bytes;
  if (options_.vram.percent == 0) return UINT64_MAX;
  return static_cast<uint64_t>(static_cast<double>(devices_.at(device).total) *
                               options_.vram.percent / 100);
}

// Unused VRAM, and the VRAM of sessions' pages. Without NVML nobody knows who else uses the device.
uint64_t Supervisor::vramToShare(size_t device) const {
  const status::Device& one = devices_.at(device);
  const uint64_t reserve = reserveOf(one.total);
  uint64_t pages = 0;
  for (const auto& [id, session] : sessions_) {
    const auto* const use =
        session.socket ? reported(session.report, session.devices, device) : nullptr;
    if (use != nullptr) pages += use->resident;
  }
  const uint64_t all = measured_ ? one.free + pages : one.total;
  return all - std::min(all, reserve);
}

void Supervisor::order(Session& session, size_t device, uint64_t budget) {
  const auto place = std::find(session.devices.begin(), session.devices.end(), device);
  if (place == session.devices.end() || !session.socket) return;
  const WorkerOrder order{Order::kVramBudget, static_cast<int32_t>(place - session.devices.begin()),
                          budget};
  if (send(session.socket.get(), &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof order)
    return;
  if (session.budgets[device] != budget)
    base::logDebug("session %016llx (%s): VRAM budget of GPU %zu: %s",
                   static_cast<unsigned long long>(session.id), session.program.c_str(), device,
                   base::formatSize(budget).c_str());
  session.budgets[device] = budget;
}

// A session that comes where others are is told of its share before its program can ask how much
// memory there is.
void Supervisor::promiseVram(Session& session) {
  for (const uint32_t device : session.devices) {
    uint64_t users = 0;
    for (const auto& [id, other] : sessions_) {
      const auto* const use =
          other.socket ? reported(other.report, other.devices, device) : nullptr;
      if (use != nullptr && use->budget != 0) ++users;
    }
    if (users != 0)
      order(session, device, std::min(mostVram(device), vramToShare(device) / (users + 1)));
  }
}

void Supervisor::divideVram() {
  const auto now = std::chrono::steady_clock::now();
  if (now - divided_ < kEach) return;
  divided_ = now;
  size_t running = 0;
  bool ordered = false;
  for (const auto& [id, session] : sessions_) {
    running += session.socket ? 1 : 0;
    for (const uint64_t budget : session.budgets) ordered |= session.socket && budget != 0;
  }
  if (running < 2 && !ordered) return;
  measured_ = devices_.refresh(kEach);
  for (size_t device = 0; device < devices_.size(); ++device) {
    std::vector<Session*> users;
    std::vector<Claim> claims;
    ordered = false;
    for (auto& [id, session] : sessions_) {
      const auto* const use =
          session.socket ? reported(session.report, session.devices, device) : nullptr;
      if (use == nullptr || use->budget == 0) continue;  // it has not used the device
      users.push_back(&session);
      claims.push_back(
          {use->allocated + std::max(use->allocated / 8, kLeastGrowth), mostVram(device)});
      ordered |= session.budgets[device] != 0;
    }
    if (users.empty() || (users.size() < 2 && !ordered)) continue;
    const uint64_t total = vramToShare(device);
    const std::vector<uint64_t> budgets = shares(total, claims);
    for (size_t i = 0; i < users.size(); ++i) {
      Session& session = *users[i];
      const uint64_t had = session.budgets[device];
      const uint64_t has = reported(session.report, session.devices, device)->budget;
      // Small changes are left alone. A worker that has less than was ordered lacked it in the
      // driver: others may have given it back.
      const uint64_t change = had > budgets[i] ? had - budgets[i] : budgets[i] - had;
      if (had == 0 || change > total / 32) {
        order(session, device, budgets[i]);
      } else if (has < had) {
        order(session, device, had);
      }
    }
  }
}

}  // namespace olpager::gpunode
