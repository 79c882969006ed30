// The worker of another of the program's sessions, as far as links with it go: it takes a link over
// loopback, and says about copies what an input draws. Made at first need; of one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "forwarding/wire/peer_keys.h"
#include "forwarding/wire/straight.h"
#include "gpunode/worker/peers.h"
#include "tests/fuzz/rig/sampler.h"

namespace olpager::fuzz {

class OtherWorker {
 public:
  static constexpr unsigned kSlot = 1;  // the worker under test has 0

  /// Empty: it can't be had on this machine.
  std::string address() {
    start();
    return listener_ != nullptr ? listener_->address() : "";
  }
  static transport::Secret key() { return forward::peerKey(transport::Secret{1, 2, 3}, 0).secret; }

  /// Says something about a copy as `head` has it, and then that it is over, unless all that the
  /// end there waits for was said: nobody waits for ever.
  void say(Sampler& out, const forward::StraightHead& head, bool takes) {
    const gpunode::PeerPtr peer = peers_.find(0);
    if (peer == nullptr) return;
    const uint8_t first = out.input().byte();
    const bool whole = first >= 128 && head.bytes <= 16 * kPiece;  // all of it, as it was agreed to
    uint64_t offered = 0;
    for (unsigned i = 0; whole ? offered < head.bytes : i < first % 6u; ++i) {
      const uint64_t left = head.bytes - std::min(head.bytes, offered);
      gpunode::PeerMessage message{gpunode::PeerSays::kOffer, 0, head.copy,    offered,
                                   std::min(left, kPiece),    0, region(*peer)};
      if (message.bytes <= gpunode::kInlineBytes) message.says = gpunode::PeerSays::kBytes;
      if (!whole) distort(out, message);
      const bool carries =
          message.says == gpunode::PeerSays::kBytes && message.bytes <= gpunode::kInlineBytes;
      if (!peer->say(message, std::vector<std::byte>(carries ? message.bytes : 0))) return;
      offered += message.bytes;
    }
    if (!whole || !takes) (void)peer->say({gpunode::PeerSays::kOver, 0, head.copy, 0, 0, 0, {}});
  }

 private:
  static constexpr uint64_t kPiece = gpunode::Staging::kPieceBytes;

  static void distort(Sampler& out, gpunode::PeerMessage& message) {
    const uint8_t how = out.input().byte();
    if (how % 4 == 0) message.says = static_cast<gpunode::PeerSays>(1 + how / 4 % 4);
    if (how % 8 == 1) message.at = out.drawNumber();
    if (how % 8 == 2) message.bytes = out.drawNumber();
    if (how % 8 == 3) message.offset = out.drawNumber();
    if (how % 16 == 5) out.draw(&message, sizeof message);
    if (how % 16 == 6) message.says = static_cast<gpunode::PeerSays>(out.drawNumber());
  }

  void start() {
    if (tried_) return;
    tried_ = true;
    peers_.configure({kSlot, true, transport::Choice::kAuto, transport::Tls::kOff});
    transport::Options options;
    options.tls = transport::Tls::kOff;
    options.keys = std::make_shared<const transport::KeyRing>(
        std::vector{transport::NamedKey{forward::peerKeyName(0), key()}});
    auto endpoint = transport::makeEndpoint(options);
    if (!endpoint.ok()) return;
    endpoint_ = std::move(endpoint).value();
    auto listener = endpoint_->listen(
        "127.0.0.1:0", [this](const transport::PeerInfo&) -> Result<transport::Accepted> {
          return peers_.accept(0, *endpoint_);
        });
    if (listener.ok()) listener_ = std::move(listener).value();
  }

  // The key of memory that can be read, of one link.
  transport::RemoteKey region(gpunode::Peer& peer) {
    if (of_ != &peer) {
      of_ = &peer;
      region_.reset();
      auto made = transport::registerMemory(
          peer.staging().domain(), {memory_.data(), memory_.size(), -1, 0}, transport::kRemoteRead);
      if (made.ok()) region_ = std::move(made).value();
    }
    return region_ != nullptr ? region_->key() : transport::RemoteKey{};
  }

  bool tried_ = false;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kPiece);
  gpunode::Peers peers_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::unique_ptr<transport::Listener> listener_;
  const gpunode::Peer* of_ = nullptr;
  transport::RegionPtr region_;
};

}  // namespace olpager::fuzz
