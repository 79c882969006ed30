// The supervisor's limits of host tiers: how much of this machine's RAM the pages of which session
// may have.
#include <sys/socket.h>

#include <algorithm>

#include "base/log.h"
#include "base/size.h"
#include "gpunode/supervisor/shares.h"
#include "gpunode/supervisor/supervisor.h"
#include "pager/residency/budgets.h"

namespace olpager::gpunode {

// Once, before there are sessions: what they take is available no more.
void Supervisor::findRam() {
  const auto found = [](const base::Budget& given) {
    return std::max(pager::kPageBytes, pager::hostLimit({given.bytes, given.percent}));
  };
  ram_ = found(options_.total_memory);
  const uint64_t asked = options_.memory.given() ? found(options_.memory) : ram_;
  most_ram_ = std::min(asked, ram_);
  if (asked > ram_)
    base::logWarn(
        "--memory: %s for a session is more than the %s that all have together (--total-memory), "
        "which is its most",
        base::formatSize(asked).c_str(), base::formatSize(ram_).c_str());
}

// Pinned memory comes and goes as programs ask for it: what of it is in use can't be pages'.
uint64_t Supervisor::ramToShare() const {
  uint64_t pinned = 0;
  for (const auto& [id, session] : sessions_) pinned += session.socket ? session.report.pinned : 0;
  return ram_ - std::min(ram_, pinned);
}

void Supervisor::divideRam(Session* coming) {
  ram_changed_ = false;
  ram_divided_ = std::chrono::steady_clock::now();
  std::vector<Session*> users;
  for (auto& [id, session] : sessions_) {
    if (session.socket) users.push_back(&session);
  }
  if (coming != nullptr) users.push_back(coming);
  // A program's workers start at once, and each says then how much it has: what those that are not
  // here yet will have nobody gets before.
  size_t to_come = 0;
  for (const Expected& one : expected(coming)) to_come += one.sessions;
  const uint64_t total = ramToShare();
  uint64_t left = total;
  std::vector<uint64_t> has;
  std::vector<HostClaim> claims;
  for (const Session* const session : users) {
    // A worker that says more than was ordered has not heard of that yet, or its pages have no
    // other place.
    const uint64_t said = session->report.host_limit;
    claims.push_back({said > session->host_limit ? said : 0, most_ram_});
    has.push_back(std::max(said, session->host_limit));
    left -= std::min(left, has.back());
  }
  claims.resize(claims.size() + to_come, {0, most_ram_});
  const std::vector<uint64_t> limits = hostShares(total, claims);
  for (size_t i = 0; i < users.size(); ++i) {
    Session& session = *users[i];
    uint64_t limit = limits[i];
    if (limit > has[i]) {  // of what nobody has any more
      const uint64_t more = std::min(limit - has[i], left);
      limit = (has[i] + more) / pager::kPageBytes * pager::kPageBytes;
      left -= more;
      if (limit <= session.host_limit) continue;
    } else {
      limit = limit / pager::kPageBytes * pager::kPageBytes;
      // Asked again and again where it could not give all of it: it gives what it can by then.
      if (limit == session.host_limit && has[i] <= limit) continue;
    }
    const WorkerOrder order{Order::kHostLimit, 0, limit};
    if (session.socket && send(session.socket.get(), &order, sizeof order,
                               MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof order)
      continue;
    if (session.host_limit != limit)
      base::logDebug("session %016llx (%s): at most %s of RAM for its pages",
                     static_cast<unsigned long long>(session.id), session.program.c_str(),
                     base::formatSize(limit).c_str());
    session.host_limit = limit;
  }
}

}  // namespace olpager::gpunode
