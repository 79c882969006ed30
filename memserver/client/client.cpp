#include "memserver/client/client_core.h"

#include <sys/eventfd.h>

#include "base/format.h"
#include "base/held_signals.h"
#include "base/log.h"

namespace olpager::memserver {

ClientCore::ClientCore(const ClientOptions& options, Observer& observer)
    : options_(options),
      observer_(observer),
      queue_(options.endpoint->makeQueue()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ClientCore::~ClientCore() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    for (auto& [number, wish] : wishes_) {
      wish->done = true;
      wish->why = "the client is being closed";
    }
    wishes_.clear();
    changed_.notify_all();
  }
  wake();
  if (agent_.joinable()) agent_.join();
}

Status ClientCore::open() {
  opened_ms_ = bootMs();
  agent_ = base::ownThread([this] { agent(); });
  Lock lock(mutex_);
  // connect() waits for its own time, the greeting for kAnswerMs; attempts that failed say so.
  changed_.wait(lock, [&] { return figures_.connects != 0 || !first_error_.empty(); });
  if (figures_.connects != 0 || options_.may_be_away) return {};
  return Error{first_error_};
}

// ---- what callers do

Result<std::vector<Slab>> ClientCore::lease(uint64_t bytes, uint32_t timeout_ms) {
  if (onAgent()) return Error{"lease() can't be waited for on the observer's own thread"};
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::vector<Slab> all;
  uint64_t have = 0;
  std::string why;
  while (have < bytes && why.empty()) {
    auto wish = std::make_shared<Wish>();
    uint64_t number = 0;
    {
      Lock lock(mutex_);
      if (closing_ || state_ != State::kUp) {
        why = base::format("{}: not connected", options_.address);
        break;
      }
      number = next_number_++;
      wishes_.emplace(number, wish);
    }
    const bool sent = request(protocol::Lease{bytes - have}, {}, number);
    Lock lock(mutex_);
    if (!sent) {
      wishes_.erase(number);
      why = base::format("{}: the request could not be sent", options_.address);
      break;
    }
    // A slab that comes after the time is over is given back when it comes (handle()).
    if (!changed_.wait_until(lock, deadline, [&] { return wish->done; })) {
      wishes_.erase(number);
      why = base::format("{}: no answer within {} ms", options_.address, timeout_ms);
      break;
    }
    for (const Slab& slab : wish->slabs) {
      all.push_back(slab);
      have += slab.bytes;
    }
    why = wish->why;
    if (wish->slabs.empty() && why.empty())
      why = base::format("{}: nothing to lease", options_.address);
  }
  if (all.empty() && bytes != 0) return Error{why};
  return all;
}

void ClientCore::release(SlabId slab) {
  {
    std::lock_guard lock(mutex_);
    const auto found = slabs_.find(slab);
    if (found == slabs_.end()) return;
    found->second.releasing = true;
    if (found->second.transfers != 0) return;
    to_release_.push_back(found->second.lease);
    slabs_.erase(found);
  }
  wake();
}

std::vector<Slab> ClientCore::slabs() const {
  std::lock_guard lock(mutex_);
  std::vector<Slab> all;
  for (const auto& [id, slab] : slabs_) {
    if (!slab.releasing) all.push_back({id, slab.bytes});
  }
  return all;
}

Figures ClientCore::figures() const {
  std::unique_lock lock(mutex_);
  Figures all = figures_;
  all.up = state_ == State::kUp;
  all.stalled = stalled_;
  all.total_bytes = capacity_.total;
  all.free_bytes = capacity_.free;
  all.available_bytes = all.up ? capacity_.available : 0;
  all.recalled_bytes = capacity_.recalled;
  all.lease_ms = lease_ms_;
  all.read_bytes_per_s = reads_.rate();
  all.write_bytes_per_s = writes_.rate();
  for (const auto& [id, slab] : slabs_) all.leased_bytes += slab.bytes;
  const LinkPtr link = all.up ? link_ : nullptr;
  lock.unlock();
  if (link) all.rails = link->stats().rails;
  return all;
}

const char* transferResultName(TransferResult result) {
  switch (result) {
    case TransferResult::kOk:
      return "done";
    case TransferResult::kLost:
      return "lost";
    case TransferResult::kInterrupted:
      return "interrupted";
    case TransferResult::kBadRange:
      return "bad range";
    case TransferResult::kClosed:
      return "closed";
  }
  return "?";
}

const char* eventName(Event::Kind kind) {
  constexpr const char* kEvents[] = {"up",        "down",   "stalled", "resumed",
                                     "slab lost", "recall", "capacity"};
  return kEvents[static_cast<size_t>(kind)];
}

transport::Options sessionTransport(transport::Options base) {
  base.silent_ms = 0;
  base.connect_answer_ms = kConnectAnswerMs;
  return base;
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options, Observer& observer) {
  if (options.endpoint == nullptr || !options.domain || options.in_flight == 0) {
    return Error{"a memserver's client needs an endpoint, a domain and room for transfers"};
  }
  auto client = std::make_unique<ClientCore>(options, observer);
  if (const Status opened = client->open(); !opened.ok()) return opened.error();
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace olpager::memserver
