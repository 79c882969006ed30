// Memory that the box wants back (service.h).
#include <algorithm>

#include "base/format.h"
#include "base/log.h"
#include "base/size.h"
#include "memserver/server/service_parts.h"

namespace olpager::memserver {

// ---- recall

void Service::recall(uint64_t bytes, uint32_t deadline_ms, const std::string& why) {
  const auto sessions = allSessions();
  uint64_t lent = 0;
  for (const auto& session : sessions) lent += session->bytes.load();
  const int64_t by = bootMs() + deadline_ms;
  uint64_t asked = 0;
  for (const auto& session : sessions) {
    const uint64_t has = session->bytes.load();
    // Each its share, in whole slabs.
    uint64_t share =
        lent == 0 ? 0
                  : static_cast<uint64_t>(static_cast<double>(bytes) *
                                          (static_cast<double>(has) / static_cast<double>(lent)));
    share =
        std::min(has, (share + store_.slabBytes() - 1) / store_.slabBytes() * store_.slabBytes());
    std::lock_guard lock(session->mutex);
    if (session->recalled == share && share == 0) continue;
    session->recalled = share;
    session->recall_by_ms = by;
    session->recall_why = why;
    ++session->recall_number;
    asked += share;
  }
  std::lock_guard lock(mutex_);
  if (bytes != 0) ++figures_.recalls;
  figures_.recalled_bytes += asked;
}

void Service::sendRecall(const SessionPtr& session, int64_t now) {
  protocol::Recall notice;
  uint64_t overdue = 0, number = 0;
  {
    std::lock_guard lock(session->mutex);
    if (!session->greeted) return;
    if (options_.hard_recall && session->recalled != 0 && now >= session->recall_by_ms) {
      overdue = session->recalled;
    } else if (session->recall_told == session->recall_number) {
      return;
    }
    number = session->recall_number;
    notice.bytes = session->recalled;
    notice.deadline_ms = static_cast<uint32_t>(std::max<int64_t>(0, session->recall_by_ms - now));
    notice.why = session->recall_why;
  }
  if (overdue != 0) {
    take(session, overdue);
    return;
  }
  const auto bytes = protocol::encode({0, notice});
  if (tell(session, MessageClass::kNotice, bytes) != Outcome::kOk)
    return;  // a later look tries again
  std::lock_guard lock(session->mutex);
  session->recall_told = number;
}

// The deadline is over and the memory is needed: it is taken, and what was in it is gone.
void Service::take(const SessionPtr& session, uint64_t bytes) {
  std::vector<LeaseId> victims;
  {
    std::lock_guard lock(session->mutex);
    for (const LeaseId& id : session->leases) {
      if (victims.size() * store_.slabBytes() >= bytes || victims.size() == protocol::kMaxLeases)
        break;
      victims.push_back(id);
    }
    session->recall_by_ms = bootMs() + kEndMs;  // not again while these end
  }
  {
    const About about(*session);
    base::logWarn("%s has not released what was recalled: %zu slabs are taken",
                  session->peer.node.c_str(), victims.size());
  }
  working_.fetch_add(1);
  arena_.enqueue([this, session, victims] {
    for (const LeaseId& id : victims)
      end(id, session.get(), session->peer.key_name, Cause::kRevoked);
    const auto notice =
        protocol::encode({0, protocol::Revoked{victims, "the memserver needed the memory"}});
    tell(session, MessageClass::kNotice,
         notice);  // a session that does not take it learns it from its next access
    working_.fetch_sub(1);
  });
}

uint64_t Service::recalledBytes() const {
  uint64_t recalled = 0;
  for (const auto& session : allSessions()) {
    std::lock_guard lock(session->mutex);
    recalled += session->recalled;
  }
  return recalled;
}

}  // namespace olpager::memserver
