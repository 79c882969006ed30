#include "gpunode/worker/peers.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "forwarding/wire/session_protocol.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kConnectMs = 3000;
constexpr auto kComesUp = 5s;  // the end that connected has it already

}  // namespace

Result<PeerPtr> Peers::connect(unsigned slot, const std::string& address, uint64_t route,
                               const transport::NamedKey& key, transport::Tls tls, bool tcp_only) {
  if (!options_.allowed) return Error{"the gpunode makes no links to others (--straight off)"};
  transport::Options network;
  // Shared memory by itself where both are on one host, whatever clients have to use.
  if (tcp_only) {
    network.choice = transport::Choice::kTcp;
  } else if (options_.choice != transport::Choice::kShm) {
    network.choice = options_.choice;
  }
  network.tls = std::max(tls, options_.tls);
  network.rails = options_.rails;
  network.connect_ms = kConnectMs;
  forward::setLanes(network);  // bulk, as a session's link
  network.limits.links = 2;
  network.keys = std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{key});
  auto endpoint = transport::makeEndpoint(network);
  if (!endpoint.ok()) return endpoint.error();
  auto peer = std::make_shared<Peer>(slot, pages_);
  auto queue = endpoint.value()->makeQueue();
  auto link = endpoint.value()->connect(address, {peer->staging().domain(), queue, "", route});
  if (!link.ok()) return link.error();
  peer->run(std::move(queue), std::move(link).value());
  return put(slot, std::move(peer), std::move(endpoint).value());
}

Result<transport::Accepted> Peers::accept(unsigned slot, transport::Endpoint& endpoint) {
  if (!options_.allowed || slot == options_.slot)
    return Error{"no link of this kind is taken here"};
  auto peer = std::make_shared<Peer>(slot, pages_);
  auto queue = endpoint.makeQueue();
  transport::Accepted accepted{peer->staging().domain(), queue};
  peer->run(std::move(queue), nullptr);
  (void)put(slot, std::move(peer), nullptr);
  return accepted;
}

// What an earlier link still has under way ends with it.
PeerPtr Peers::put(unsigned slot, PeerPtr peer, std::unique_ptr<transport::Endpoint> endpoint) {
  Slot old;
  {
    std::lock_guard lock(mutex_);
    old = std::exchange(slots_.at(slot), Slot{peer, std::move(endpoint)});
  }
  if (old.peer != nullptr) old.peer->close("there is a new link");
  // An endpoint waits for the end of its links, which may not be done where this is called from.
  if (old.endpoint != nullptr)
    std::thread([endpoint = std::move(old.endpoint)]() mutable { endpoint.reset(); }).detach();
  return peer;
}

PeerPtr Peers::at(unsigned slot) {
  std::lock_guard lock(mutex_);
  return slot < slots_.size() ? slots_[slot].peer : nullptr;
}

PeerPtr Peers::find(unsigned slot) {
  const PeerPtr peer = at(slot);
  return peer != nullptr && peer->waitUp(kComesUp) ? peer : nullptr;
}

void Peers::stop(unsigned slot, uint64_t copy) {
  if (const PeerPtr peer = at(slot); peer != nullptr) peer->stop(copy);
}

CUresult Peers::takeStream(const api::DriverTable& driver, uint64_t context, CUstream* stream) {
  {
    std::lock_guard lock(mutex_);
    Streams& streams = streams_[context];
    if (!streams.idle.empty()) {
      *stream = streams.idle.back();
      streams.idle.pop_back();
      streams.used.push_back(*stream);
      return CUDA_SUCCESS;
    }
  }
  if (driver.cuStreamCreate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = driver.cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(mutex_);
  streams_[context].used.push_back(*stream);
  return result;
}

// One whose context has gone meanwhile went with it.
void Peers::giveStream(uint64_t context, CUstream stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(context);
  if (found != streams_.end() && std::erase(found->second.used, stream) != 0)
    found->second.idle.push_back(stream);
}

void Peers::contextGone(uint64_t context) {
  std::array<PeerPtr, forward::kMostSlots> all;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < all.size(); ++i) all[i] = slots_[i].peer;
    streams_.erase(context);
  }
  for (const PeerPtr& peer : all) {
    if (peer != nullptr) peer->staging().contextGone(context);
  }
}

}  // namespace olpager::gpunode
