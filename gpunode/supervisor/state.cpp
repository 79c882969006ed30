// What the supervisor says of itself to whom asks.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "gpunode/supervisor/supervisor.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr auto kFresh = 200ms;  // what NVML said

uint64_t installedMemory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}
uint64_t freeMemory() {
  const long pages = sysconf(_SC_AVPHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
}

}  // namespace

void Supervisor::answer(const transport::LinkPtr& client, std::span<const std::byte> bytes) {
  const auto question = status::decodeQuestion(bytes);
  if (!question.ok()) return client->close(question.error().message);
  const status::Answer told{question.value().number, state(question.value().first, client->peer())};
  (void)client->send(transport::MessageClass::kReply, status::encode(told));
}

status::Status Supervisor::state(uint64_t first, const transport::PeerInfo& asker) {
  const auto now = std::chrono::steady_clock::now();
  measured_ = devices_.refresh(kFresh);
  std::vector<uint64_t> vram(devices_.size(), 0);
  uint64_t host = 0, pinned = 0, calls = ended_calls_, moved = ended_moved_, running = 0;
  for (const auto& [id, session] : sessions_) {
    if (!session.ended.empty()) continue;
    ++running;
    calls += session.report.calls;
    moved += session.report.moved;
    host += session.report.host;
    pinned += session.report.pinned;
    for (uint32_t i = 0; i < session.report.device_count; ++i)
      vram[session.devices[i]] += session.report.devices[i].resident;
  }
  if (!measured_) {
    for (size_t i = 0; i < devices_.size(); ++i) devices_.setMemory(i, vram[i]);
  }

  status::Status told;
  told.kind = "gpunode";
  told.uptime_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now - started_).count());
  told.serving = 1;
  told.driver = devices_.driverVersion();
  told.cuda_version = devices_.cudaVersion();
  told.devices = devices_.all();
  for (size_t i = 0; i < devices_.size(); ++i)
    told.tiers.push_back({base::format("VRAM {}", i), devices_.at(i).total, devices_.at(i).used, devices_.at(i).free});
  told.tiers.push_back({"RAM", installedMemory(), host + pinned, freeMemory()});
  told.figures = {{"sessions", running},     {"sessions_total", next_number_ - 1},
                  {"calls_total", calls},    {"moved_bytes_total", moved},
                  {"host_tier_bytes", host}, {"pinned_bytes", pinned}};

  std::vector<const Session*> by_number;
  for (const auto& [id, session] : sessions_) {
    if (session.number >= first && session.key_name == asker.key_name) by_number.push_back(&session);
  }
  told.session_count = sessions_.size();
  std::sort(by_number.begin(), by_number.end(), [](const auto* a, const auto* b) { return a->number < b->number; });
  for (const Session* const session : by_number) {
    if (told.sessions.size() == status::kMaxRows) {
      told.next = session->number;
      break;
    }
    status::Session row;
    row.number = session->number;
    row.key_name = session->key_name;
    row.node = session->node;
    row.program = session->program;
    row.process = session->process;
    row.address = session->peer;
    row.connected = session->ended.empty() ? 1 : 0;
    row.calls = session->report.calls;
    row.moved = session->report.moved;
    row.bytes.resize(told.tiers.size());
    row.budgets.resize(told.tiers.size());
    if (session->ended.empty()) {
      if (session->report.link != kNoLink)
        row.transport = transport::linkKindName(static_cast<transport::LinkKind>(session->report.link));
      for (uint32_t i = 0; i < session->report.device_count; ++i) {
        row.bytes[session->devices[i]] = session->report.devices[i].resident;
        row.budgets[session->devices[i]] = session->report.devices[i].budget;
      }
      row.bytes.back() = session->report.host + session->report.pinned;
    }
    row.state = !session->ended.empty() ? "ended: " + session->ended : session->starting ? "starting" : "running";
    told.sessions.push_back(std::move(row));
  }
  return told;
}

}  // namespace olpager::gpunode
