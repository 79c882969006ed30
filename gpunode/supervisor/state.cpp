// The supervisor's status for those who ask.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/format.h"
#include "gpunode/supervisor/supervisor.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr auto kFresh = 200ms;  // what NVML said
constexpr auto kTell = 500ms;   // figures for Prometheus

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
  const auto reply = status::encode(told);
  if (client->send(transport::MessageClass::kReply, reply) == transport::Outcome::kTooLong)
    client->close(base::format("it takes messages of {} bytes, and one of {} is for it",
                               client->maxMessageBytes(), reply.size()));
}

// Also sets what devices_ says of memory.
std::vector<status::Metric> Supervisor::metrics() {
  measured_ = devices_.refresh(kFresh);
  std::vector<uint64_t> pages(devices_.size(), 0), budgets(devices_.size(), 0);
  uint64_t host = 0, pinned = 0, calls = ended_calls_, moved = ended_moved_, running = 0;
  for (const auto& [id, session] : sessions_) {
    if (!session.ended.empty()) continue;
    ++running;
    calls += session.report.calls;
    moved += session.report.moved;
    host += session.report.host;
    pinned += session.report.pinned;
    for (uint32_t i = 0; i < session.report.device_count; ++i) {
      pages[session.devices[i]] += session.report.devices[i].resident;
      budgets[session.devices[i]] += session.report.devices[i].budget;
    }
  }
  if (!measured_) {
    for (size_t i = 0; i < devices_.size(); ++i) devices_.setMemory(i, pages[i]);
  }

  std::vector<status::Metric> all = {
      {"sessions", "gauge", "Sessions that run, or are starting.", running},
      {"sessions_total", "counter", "Workers started, one for each session.", next_number_ - 1},
      {"sessions_ended_total", "counter", "Workers that have ended.", ended_},
      {"sessions_failed_total", "counter",
       "Of these, workers that were killed or ended with an error.", failed_},
      {"sessions_refused_total", "counter",
       "Requests for a session that were refused, or whose worker could not start.", refused_},
      {"calls_total", "counter", "Calls made for sessions.", calls},
      {"moved_bytes_total", "counter", "Bytes of calls and of their answers.", moved},
      {"host_tier_bytes", "gauge", "RAM of sessions' pages.", host},
      {"pinned_bytes", "gauge", "RAM of sessions' pinned memory.", pinned},
  };
  const auto each = [&](const char* name, const char* help, const auto& value) {
    for (size_t i = 0; i < devices_.size(); ++i)
      all.push_back({name, "gauge", help, value(i), base::format(R"({{device="{}"}})", i)});
  };
  each("vram_bytes", "VRAM of the device.", [&](size_t i) { return devices_.at(i).total; });
  each("vram_used_bytes", "Of it in use, by whom ever; without NVML by sessions' pages.",
       [&](size_t i) { return devices_.at(i).used; });
  each("vram_pages_bytes", "Of it in use by sessions' pages.", [&](size_t i) { return pages[i]; });
  each("vram_budget_bytes",
       "The most that the sessions that use the device may have for their pages, in all.",
       [&](size_t i) { return budgets[i]; });
  return all;
}

// Ahead, not when it is asked for: this thread may be busy, starting a driver.
void Supervisor::tellMetrics() {
  const auto now = std::chrono::steady_clock::now();
  if (!options_.prometheus.wanted() || now - told_ < kTell) return;
  told_ = now;
  std::string text = status::metricsText("olgpunode", metrics());
  std::lock_guard lock(metrics_mutex_);
  metrics_text_ = std::move(text);
}

status::Status Supervisor::state(uint64_t first, const transport::PeerInfo& asker) {
  const auto now = std::chrono::steady_clock::now();
  const std::vector<status::Metric> figures = metrics();
  status::Status told;
  told.kind = "gpunode";
  told.uptime_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now - started_).count());
  told.serving = 1;
  told.driver = devices_.driverVersion();
  told.cuda_version = devices_.cudaVersion();
  told.devices = devices_.all();
  for (size_t i = 0; i < devices_.size(); ++i)
    told.tiers.push_back({base::format("VRAM {}", i), devices_.at(i).total, devices_.at(i).used,
                          devices_.at(i).free});
  told.figures = status::figuresOf(figures);
  told.tiers.push_back({"RAM", installedMemory(),
                        told.figure("host_tier_bytes") + told.figure("pinned_bytes"),
                        freeMemory()});

  std::vector<const Session*> by_number;
  for (const auto& [id, session] : sessions_) {
    if (session.number >= first && session.key_name == asker.key_name)
      by_number.push_back(&session);
  }
  told.session_count = sessions_.size();
  std::sort(by_number.begin(), by_number.end(),
            [](const auto* a, const auto* b) { return a->number < b->number; });
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
        row.transport =
            transport::linkKindName(static_cast<transport::LinkKind>(session->report.link));
      for (uint32_t i = 0; i < session->report.device_count; ++i) {
        row.bytes[session->devices[i]] = session->report.devices[i].resident;
        row.budgets[session->devices[i]] = session->report.devices[i].budget;
      }
      row.bytes.back() = session->report.host + session->report.pinned;
    }
    row.state = !session->ended.empty()   ? "ended: " + session->ended
                : session->starting       ? "starting"
                : hasLostClient(*session) ? "running, without its client"
                                          : "running";
    told.sessions.push_back(std::move(row));
  }
  return told;
}

}  // namespace olpager::gpunode
