#include "gpunode/worker/reporter.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "forwarding/control.h"
#include "gpunode/worker/introductions.h"
#include "gpunode/worker/named_sockets.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {
namespace {

using Clock = std::chrono::steady_clock;

decltype(&olpager_figures) figuresOf(Worker& worker) {
  return worker.library().function<decltype(olpager_figures)>("olpager_figures");
}

WorkerReport reportOf(Worker& worker, decltype(&olpager_figures) figures_of) {
  WorkerReport report;
  report.calls = worker.calls();
  report.moved = worker.moved();
  if (const auto kind = worker.channel().linkKind()) report.link = static_cast<uint32_t>(*kind);
  report.pinned = worker.hostMemory().bytes();
  OlpagerFigures figures;
  if (figures_of == nullptr || figures_of(&figures) != 0) return report;
  report.host = figures.host_used;
  report.host_limit = figures.host_limit;
  report.device_count = std::min(figures.device_count, kMostDevices);
  for (uint32_t i = 0; i < report.device_count; ++i)
    report.devices[i] = {figures.devices[i].allocated, figures.devices[i].vram_budget,
                         figures.devices[i].resident};
  return report;
}

// True if the supervisor is there. One that does not read misses reports, and nothing else.
bool sent(int fd, const WorkerReport& report) {
  return send(fd, &report, sizeof report, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN ||
         errno == EINTR;
}

}  // namespace

void startReporter(Worker& worker, int fd) {
  const DriverLibrary& library = worker.library();
  auto* const figures_of = figuresOf(worker);
  auto* const set_budget =
      library.function<decltype(olpager_set_vram_budget)>("olpager_set_vram_budget");
  auto* const set_host =
      library.function<decltype(olpager_set_host_limit)>("olpager_set_host_limit");
  std::thread([&worker, fd, figures_of, set_budget, set_host] {
    auto due = Clock::now();
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now()).count();
      pollfd socket{fd, POLLIN, 0};
      if (left > 0 && poll(&socket, 1, static_cast<int>(left)) > 0) {
        WorkerOrder order;
        base::UniqueFd connection;
        const ssize_t got = receiveWith(fd, &order, sizeof order, &connection, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
          return;  // the supervisor is gone
        if (got != sizeof order) continue;
        if (order.order == Order::kEnd) worker.endNow("the gpunode has been told to end");
        if (order.order == Order::kConnection)
          introductions().came(order.bytes, std::move(connection));
        if (order.order == Order::kClientIsDead) worker.clientIsDead();
        if (order.order == Order::kHostLimit && set_host != nullptr) {
          const uint64_t limit = set_host(order.bytes);
          base::logDebug("host tier: at most %llu MiB (%llu MiB wanted)",
                         static_cast<unsigned long long>(limit >> 20),
                         static_cast<unsigned long long>(order.bytes >> 20));
          due = Clock::now();
        }
        if (order.order != Order::kVramBudget || set_budget == nullptr) continue;
        const uint64_t budget = set_budget(order.device, order.bytes);
        base::logDebug("device %d: VRAM budget %llu MiB (%llu MiB wanted)", order.device,
                       static_cast<unsigned long long>(budget >> 20),
                       static_cast<unsigned long long>(order.bytes >> 20));
        continue;
      }
      if (Clock::now() < due) continue;
      due = Clock::now() + std::chrono::milliseconds(kReportMs);
      worker.countLinks();
      if (!sent(fd, reportOf(worker, figures_of))) return;
    }
  }).detach();
}

void report(Worker& worker, int fd) { (void)sent(fd, reportOf(worker, figuresOf(worker))); }

}  // namespace olpager::gpunode
