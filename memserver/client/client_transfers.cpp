// Transfers between local memory and frames (client_core.h).
#include "memserver/client/client_core.h"

namespace olpager::memserver {

uint64_t ClientCore::post(bool write, std::span<const LocalRange> local, const FrameRange& frame,
                          Class klass, uint64_t context) {
  uint64_t id = 0;
  bool bad = false;
  {
    std::lock_guard lock(mutex_);
    id = next_transfer_++;
    const auto slab = slabs_.find(frame.slab);
    uint64_t total = 0;
    for (const LocalRange& range : local) total += range.length;
    bad = slab == slabs_.end() || slab->second.releasing || frame.bytes == 0 ||
          frame.bytes != total || frame.offset > slab->second.bytes ||
          frame.bytes > slab->second.bytes - frame.offset ||
          frame.bytes > transport::kMaxOperationBytes || local.size() > transport::kMaxLocalRanges;
    if (bad || closing_) {
      done_.push_back({context, closing_ ? TransferResult::kClosed : TransferResult::kBadRange});
      bad = true;
    } else {
      Transfer& transfer = transfers_[id];
      transfer.id = id;
      transfer.write = write;
      transfer.klass = klass;
      transfer.context = context;
      transfer.local.assign(local.begin(), local.end());
      transfer.frame = frame;
      ++slab->second.transfers;
      waiting_[static_cast<size_t>(klass)].push_back(id);
    }
  }
  if (bad) {
    wake();
  } else {
    issueWaiting();
  }
  return id;
}

void ClientCore::raise(uint64_t id, Class klass) {
  LinkPtr link;
  transport::OperationId operation = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = transfers_.find(id);
    if (found == transfers_.end() || found->second.klass <= klass) return;
    Transfer& transfer = found->second;
    if (!transfer.issued) {
      auto& from = waiting_[static_cast<size_t>(transfer.klass)];
      if (const auto place = std::find(from.begin(), from.end(), id); place != from.end()) {
        from.erase(place);
        waiting_[static_cast<size_t>(klass)].push_back(id);
      }
    }
    transfer.klass = klass;
    operation = transfer.operation;
    link = link_;
  }
  if (operation != 0 && link) link->raise(operation, klass);
}

bool ClientCore::interrupt() {
  LinkPtr link;
  bool gives_up = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& queue : waiting_) {
      for (const uint64_t id : queue) finish(id, TransferResult::kInterrupted);
      queue.clear();
    }
    for (auto& [id, transfer] : transfers_) transfer.interrupted = true;
    if (issued_ != 0) link = link_;
    gives_up = link != nullptr && state_ == State::kUp;  // else it is lost already
  }
  if (link) link->close("its transfers are interrupted");
  wake();
  return gives_up;
}

// ---- transfers

// Takes from the most urgent class. The link's own call is made without the lock: it sends.
void ClientCore::issueWaiting() {
  for (;;) {
    LinkPtr link;
    uint64_t id = 0;
    bool write = false;
    std::vector<LocalRange> local;
    transport::RemoteRange remote;
    Class klass{};
    {
      std::lock_guard lock(mutex_);
      if (state_ != State::kUp || issued_ >= options_.in_flight) return;
      for (auto& queue : waiting_) {
        if (queue.empty()) continue;
        id = queue.front();
        queue.pop_front();
        break;
      }
      if (id == 0) return;
      Transfer& transfer = transfers_.at(id);
      const HeldSlab& slab = slabs_.at(transfer.frame.slab);
      transfer.issued = true;
      ++issued_;
      (transfer.write ? writes_ : reads_).begun(nowUs());
      link = link_;
      write = transfer.write;
      klass = transfer.klass;
      local = transfer.local;
      remote = {{slab.key, slab.bytes, transport::kRemoteReadWrite, 0},
                transfer.frame.offset,
                transfer.frame.bytes};
    }
    transport::OperationId operation = 0;
    const Outcome outcome = write ? link->write(local, remote, klass, id, &operation)
                                  : link->read(local, remote, klass, id, &operation);
    Lock lock(mutex_);
    const auto found = transfers_.find(id);
    if (outcome == Outcome::kOk) {
      // The transfer may have ended already, or been raised meanwhile.
      if (found == transfers_.end() || !found->second.issued) continue;
      found->second.operation = operation;
      const Class raised = found->second.klass;
      lock.unlock();
      if (raised != klass) link->raise(operation, raised);
      continue;
    }
    Transfer& transfer = found->second;
    transfer.issued = false;
    --issued_;
    (write ? writes_ : reads_).ended(0, nowUs());
    if (outcome == Outcome::kLinkDown || outcome == Outcome::kFull) {
      if (transfer.interrupted || closing_) {
        finish(id, closing_ ? TransferResult::kClosed : TransferResult::kInterrupted);
        wake();
      } else if (slabs_.count(transfer.frame.slab) == 0) {
        finish(id, TransferResult::kLost);
        wake();
      } else {
        waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
      }
      return;  // goes on with the next link, or when something has completed
    }
    finish(id, TransferResult::kBadRange);
    wake();
  }
}

// The transfer is over; waits for its slab may go on.
void ClientCore::finish(uint64_t id, TransferResult result) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;
  done_.push_back({found->second.context, result});
  const auto slab = slabs_.find(found->second.frame.slab);
  if (slab != slabs_.end() && --slab->second.transfers == 0 && slab->second.releasing) {
    to_release_.push_back(slab->second.lease);
    slabs_.erase(slab);
  }
  transfers_.erase(found);
}

void ClientCore::transferEnded(const Completion& completion) {
  Lock lock(mutex_);
  const auto found = transfers_.find(completion.context);
  if (found == transfers_.end() || !found->second.issued) return;
  Transfer& transfer = found->second;
  const uint64_t id = transfer.id;
  transfer.issued = false;
  transfer.operation = 0;
  --issued_;
  const bool ok = completion.outcome == Outcome::kOk;
  (transfer.write ? writes_ : reads_).ended(ok ? completion.bytes : 0, nowUs());
  if (ok) {
    heard_ms_ = bootMs();
    useful_ = true;
    (transfer.write ? figures_.bytes_written : figures_.bytes_read) += completion.bytes;
  }
  const SlabId slab = transfer.frame.slab;
  const bool lost = slabs_.count(slab) == 0;
  if (ok && !lost) {
    finish(id, TransferResult::kOk);
  } else if (lost) {
    finish(id, TransferResult::kLost);
  } else if (completion.outcome == Outcome::kRevoked) {
    // The memserver did so of its own accord: on this link the key was good. Ends this transfer as
    // well.
    waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
    lose(lock, slab, "it was taken back");
  } else if (completion.outcome == Outcome::kLinkDown) {
    if (transfer.interrupted || closing_) {
      finish(id, closing_ ? TransferResult::kClosed : TransferResult::kInterrupted);
    } else {
      waiting_[static_cast<size_t>(transfer.klass)].push_front(id);
      // Others may get through, and their lease lives: what waits for this one is not to wait for
      // ever.
      if (transfer.attempts++ == 0) transfer.failed_ms = bootMs();
      troubled_ = troubled_ || transfer.attempts > kFewAttempts;
      if (transfer.attempts >= kMostAttempts &&
          bootMs() - transfer.failed_ms >= std::min<int64_t>(lease_ms_, kMostPatienceMs))
        lose(lock, slab, "the connection fails at each attempt to use it");
    }
  } else {
    finish(id, TransferResult::kBadRange);
  }
}

}  // namespace olpager::memserver
