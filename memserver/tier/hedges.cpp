// Receives that are late: their other replica is read as well (tier.h).
#include <algorithm>

#include "memserver/tier/tier.h"

namespace olpager::memserver {
namespace {

using transport::Class;

constexpr size_t kHedges =
    4;  // at a time. When one of them is first, all else at that memserver is read elsewhere
constexpr int64_t kLatestMs = 1000;  // late at the latest
constexpr int64_t kLateLookMs = 20;  // between looks while any is late
constexpr double kSlowestKnown =
    1e8;  // bytes a second, of a memserver that has not shown its speed

}  // namespace

// Twice the time that all that is under way at this memserver should take, and some more.
int64_t MemserverTier::lateAt(const Server& server, uint64_t bytes) const {
  const uint64_t shown = std::min(server.seen.read_bytes_per_s, server.seen.write_bytes_per_s);
  const double speed = shown == 0 ? kSlowestKnown : static_cast<double>(shown);
  const double expected_ms =
      static_cast<double>(server.reading + server.writing + bytes) / speed * 1e3;
  const auto twice = static_cast<int64_t>(std::min(2 * expected_ms, 1e6));
  return monotonicMs() + std::min(kLatestMs, kLateMs + twice + server.seen.round_trip_us / 500);
}

void MemserverTier::lookForLate() {
  late_look_at_ms_ = INT64_MAX;
  const int64_t now = monotonicMs();
  std::vector<uint64_t> late;
  for (const auto& [number, pass] : passes_) {
    if (pass.kind != Pass::Kind::kReceive) continue;
    const Copy& copy = copies_.at(pass.id);
    if (copy.reading != number || copy.hedged || copy.replicas.size() < 2 ||
        copy.bytes > kStagingBytes)
      continue;
    if (now >= copy.late_at_ms) {
      late.push_back(number);
    } else {
      late_look_at_ms_ = std::min(late_look_at_ms_, copy.late_at_ms);
    }
  }
  std::sort(late.begin(), late.end(), [&](uint64_t a, uint64_t b) {
    const bool a_urgent = copies_.at(passes_.at(a).id).urgent,
               b_urgent = copies_.at(passes_.at(b).id).urgent;
    return a_urgent != b_urgent ? a_urgent : a < b;
  });
  for (const uint64_t number : late) {
    late_look_at_ms_ = std::min(late_look_at_ms_, now + kLateLookMs);
    if (hedges_.size() >= kHedges) return;
    const Pass& pass = passes_.at(number);
    Copy& copy = copies_.at(pass.id);
    const auto other =
        std::find_if(copy.replicas.begin(), copy.replicas.end(), [&](const Replica& replica) {
          return replica.server != pass.server && servers_[replica.server]->usable();
        });
    if (other == copy.replicas.end()) continue;
    if (copy.toDevice()) {  // nothing but a card brings bytes there: it is read anew
      if (!servers_[pass.server]->usable()) cut(*servers_[pass.server]);
      continue;
    }
    auto staging = std::make_unique<Staging>(domain_);
    if (staging->memory == nullptr) return;
    copy.hedged = true;
    const uint64_t hedge = next_hedge_++;
    Hedge& made = hedges_[hedge];
    made.id = pass.id;
    made.late = number;
    made.staging = std::move(staging);
    post(Pass::Kind::kHedge, hedge, other->server, *made.staging->region, other->frames,
         copy.urgent ? Class::kDemand : Class::kPrefetch);
  }
}

// The copy's frames may have been given away meanwhile: only bytes with the right hash count, and
// others say nothing.
void MemserverTier::hedgePassed(const Pass& pass) {
  const auto found = hedges_.find(pass.id);
  Hedge hedge = std::move(found->second);
  hedges_.erase(found);
  const auto waiting = copies_.find(hedge.id);
  if (waiting == copies_.end() || waiting->second.reading != hedge.late)
    return;  // it is here, or read anew
  Copy& copy = waiting->second;
  if (pass.result != TransferResult::kOk ||
      hasher_.hash(hedge.staging->memory, copy.bytes) != copy.hash) {
    copy.hedged = false;
    copy.late_at_ms = monotonicMs() + (pass.result == TransferResult::kOk ? kLatestMs : kLateMs);
    late_look_at_ms_ = std::min(late_look_at_ms_, copy.late_at_ms);
    return;
  }
  copy.spare = std::move(hedge.staging);
  cut(*servers_[passes_.at(hedge.late).server]);
}

}  // namespace olpager::memserver
