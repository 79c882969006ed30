#include "gpunode/worker/peers.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "forwarding/wire/session_protocol.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kAnswerMs = 3000;   // for each answer of the other worker's
constexpr uint32_t kConnectMs = 9000;  // for all of them
constexpr uint32_t kOfGrace = 5, kLeastSilentMs = 500, kLeastConnectMs = 1000;
constexpr auto kComesUp = 5s;  // the end that connected has it already
// Between trials to make a link again: a program that is at its end has said so before the first.
constexpr auto kFirstAgain = 100ms, kLastAgain = 1000ms;

}  // namespace

Peers::~Peers() {
  std::unique_lock lock(mutex_);
  ends_ = true;
  made_again_.wait(lock, [this] { return making_again_.empty(); });
}

Result<PeerPtr> Peers::connect(unsigned slot, const std::string& address, uint64_t route,
                               const transport::NamedKey& key, transport::Tls tls, bool tcp_only) {
  const Way way{address, route, key, tls, tcp_only};
  {
    // Before there is a link that may be lost.
    std::lock_guard lock(mutex_);
    ways_[slot] = way;
  }
  return connect(slot, way, kConnectMs);
}

void Peers::connectAgain(unsigned slot, std::chrono::milliseconds within) {
  Way way;
  {
    std::lock_guard lock(mutex_);
    const auto found = ways_.find(slot);
    if (found == ways_.end()) return;
    const auto until = std::chrono::steady_clock::now() + within;
    if (!making_again_.insert_or_assign(slot, until).second) return;
    way = found->second;
  }
  std::thread([this, slot, way = std::move(way)] { makeAgain(slot, way); }).detach();
}

void Peers::makeAgain(unsigned slot, const Way& way) {
  // If nothing answers, several trials are made within the grace time.
  const auto part = static_cast<uint32_t>(options_.grace.count() / 2);
  const uint32_t within_ms = part == 0 ? kConnectMs : std::clamp(part, kLeastConnectMs, kConnectMs);
  auto rest = std::chrono::milliseconds(kFirstAgain);
  std::string why = "there was no time for it";
  for (;;) {
    std::this_thread::sleep_for(rest);
    {
      std::lock_guard lock(mutex_);
      // The thread that asked may have been told late of a link that had a follower by then. One
      // that is lost after this look finds that nobody makes another, and is asked for anew.
      const PeerPtr& peer = slots_.at(slot).peer;
      const bool there = peer != nullptr && peer->isUp();
      const bool late = std::chrono::steady_clock::now() >= making_again_.at(slot);
      if (there || late || ends_) {
        if (!there && !ends_)
          base::logWarn("the link to the worker of session %u can't be made again: %s", slot,
                        why.c_str());
        making_again_.erase(slot);
        made_again_.notify_all();
        return;
      }
    }
    try {
      const auto linked = connect(slot, way, within_ms);
      why = linked.ok() ? "it is lost again and again" : linked.error().message;
      if (linked.ok()) {
        rest = 0ms;
        continue;
      }
    } catch (const std::exception& error) {
      why = error.what();
    }
    rest = std::clamp<std::chrono::milliseconds>(2 * rest, kFirstAgain, kLastAgain);
  }
}

Result<PeerPtr> Peers::connect(unsigned slot, const Way& way, uint32_t within_ms) {
  if (!options_.allowed) return Error{"the gpunode makes no links to others (--straight off)"};
  transport::Options network;
  // Shared memory by itself where both are on one host, whatever clients have to use.
  if (way.tcp_only) {
    network.choice = transport::Choice::kTcp;
  } else if (options_.choice != transport::Choice::kShm) {
    network.choice = options_.choice;
  }
  network.tls = std::max(way.tls, options_.tls);
  network.rails = options_.rails;
  network.connect_ms = within_ms;
  network.connect_answer_ms = std::min(within_ms, kAnswerMs);
  // The other end may have lost the link without a word: that is noticed within the grace time, so
  // that there is time to make another. Copies have no other: they go by the client.
  if (pages_ != nullptr && options_.grace != 0ms) {
    const auto part = static_cast<uint32_t>(options_.grace.count() / kOfGrace);
    network.silent_ms = std::min(network.silent_ms, std::max(part, kLeastSilentMs));
    network.ping_ms = std::min(network.ping_ms, network.silent_ms / 4);
  }
  forward::setLanes(network);  // bulk, as a session's link
  network.limits.links = 2;
  network.keys =
      std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{way.key});
  auto endpoint = transport::makeEndpoint(network);
  if (!endpoint.ok()) return endpoint.error();
  auto peer = std::make_shared<Peer>(slot, pages_);
  auto queue = endpoint.value()->makeQueue();
  auto link =
      endpoint.value()->connect(way.address, {peer->staging().domain(), queue, "", way.route});
  if (!link.ok()) return link.error();
  // Before anybody hears that it is up.
  put(slot, peer, std::move(endpoint).value());
  peer->run(std::move(queue), std::move(link).value());
  return peer;
}

Result<transport::Accepted> Peers::accept(unsigned slot, transport::Endpoint& endpoint) {
  if (!options_.allowed || slot == options_.slot)
    return Error{"no link of this kind is taken here"};
  auto peer = std::make_shared<Peer>(slot, pages_);
  auto queue = endpoint.makeQueue();
  transport::Accepted accepted{peer->staging().domain(), queue};
  put(slot, peer, nullptr);
  peer->run(std::move(queue), nullptr);
  return accepted;
}

// Messages that an earlier link still has under way end with it.
void Peers::put(unsigned slot, const PeerPtr& peer, std::unique_ptr<transport::Endpoint> endpoint) {
  Slot old;
  {
    std::lock_guard lock(mutex_);
    peer->setNumber(next_link_++);  // in the order in which they replace each other
    old = std::exchange(slots_.at(slot), Slot{peer, std::move(endpoint)});
  }
  if (old.peer != nullptr) {
    old.peer->close("there is a new link");
    std::lock_guard lock(mutex_);
    replaced_.push_back(old.peer);
  }
  // An endpoint waits for the end of its links, which may not be done where this is called from.
  if (old.endpoint != nullptr)
    std::thread([endpoint = std::move(old.endpoint)]() mutable { endpoint.reset(); }).detach();
}

void Peers::count(status::LinksCounters& into) {
  std::vector<PeerPtr> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(replaced_);
    for (const Slot& slot : slots_)
      if (slot.peer != nullptr) all.push_back(slot.peer);
  }
  for (const PeerPtr& peer : all) peer->count(into.of(peer->slot() + 1));
}

PeerPtr Peers::at(unsigned slot) {
  std::lock_guard lock(mutex_);
  return slot < slots_.size() ? slots_[slot].peer : nullptr;
}

PeerPtr Peers::find(unsigned slot) {
  const PeerPtr peer = at(slot);
  return peer != nullptr && peer->waitUp(kComesUp) ? peer : nullptr;
}

PeerPtr Peers::upNow(unsigned slot) {
  PeerPtr peer = at(slot);
  return peer != nullptr && peer->isUp() ? peer : nullptr;
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
