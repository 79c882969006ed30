// An endpoint's inside: reactors, the registry of its links, and code shared by connecting and
// accepting.
//
// Locks: mutex_ (the registry), a leaf.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "coherence/transport/core/address.h"
#include "coherence/transport/core/link_core.h"
#include "coherence/transport/tcp/stream.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::transport {

/// The secrets from which tickets are made: from the TLS session, or (loopback, no key) from the
/// acceptor's Hello.
struct LinkSecrets {
  Secret ticket{};
  Secret lane{};  // the pre-shared key of the lanes' own TLS
  ~LinkSecrets() {
    forget(ticket);
    forget(lane);
  }
};

class EndpointCore final : public Endpoint {
 public:
  /// `rails`: the options', as addresses.
  explicit EndpointCore(Options options, std::vector<SocketAddress> rails = {});
  ~EndpointCore() override;

  QueuePtr makeQueue() override;
  Result<LinkPtr> connect(const std::string& address, const ConnectOptions& options) override;
  Result<std::unique_ptr<Listener>> listen(const std::string& address, AcceptFn accept,
                                           RoutesPtr routes) override;
  Result<std::unique_ptr<Listener>> listenBehind(base::UniqueFd socket, AcceptFn accept) override;

  const Options& options() const { return options_; }
  const std::vector<SocketAddress>& rails() const { return rails_; }
  const std::vector<Reactor*>& reactors() const { return reactor_list_; }
  const std::string& bootId() const { return boot_id_; }
  const std::string& node() const { return node_; }

  /// Counts a link that is on its way; false when there are too many or the endpoint is going.
  bool reserveLink();
  void releaseLink();
  /// A reserved link has been made.
  void addLink(const std::shared_ptr<LinkCore>& link);
  /// The state shared by all links whose peers used this key.
  Unread::OfKeyPtr unreadOf(const std::string& key_name);
  /// The link of this id, if there still is one.
  std::shared_ptr<LinkCore> findLink(const LinkId& id);

  /// The Hello that this end sends, without what only one of the ends fills in; with what the
  /// setting allows.
  wire::Hello hello() const;

 private:
  void sweep();  // forgets links that are down; under mutex_

  const Options options_;
  const std::vector<SocketAddress> rails_;
  const std::string boot_id_;
  const std::string node_;
  std::vector<std::unique_ptr<Reactor>> reactors_;
  std::vector<Reactor*> reactor_list_;
  std::mutex mutex_;
  std::map<LinkId, std::weak_ptr<LinkCore>> links_;
  std::map<std::string, Unread::OfKeyPtr> unread_;  // by the key's name
  uint32_t reserved_ = 0;
  bool going_ = false;
};

/// Checks a peer's Hello; "" or why it is refused. Texts in it end within their fields afterwards.
/// The newest version that both ends speak, if there is one. `newest` below `oldest`: the peer
/// speaks `oldest` alone.
std::optional<uint8_t> agreedVersion(const Versions& own, uint8_t oldest, uint8_t newest);
/// "version 5", "versions 5 to 7".
std::string versionsText(uint8_t oldest, uint8_t newest);
std::string checkHello(wire::Hello& hello);
Tls effectiveTls(const wire::Hello& hello, const Options& options);
/// From the control connection's TLS, or from `hello` (the acceptor's) where there is none.
Result<LinkSecrets> deriveSecrets(const Stream& control, const wire::Hello& acceptor);
wire::Ticket makeTicket(const LinkSecrets& secrets, const LinkId& id, uint32_t index,
                        uint32_t rails = 0);
bool checkTicket(const LinkSecrets& secrets, const wire::Ticket& ticket);
wire::TicketReply answerTicket(const LinkSecrets& secrets, const wire::Ticket& ticket);
/// The identity under which a lane's TLS asks for its key.
std::string laneIdentity(const wire::Ticket& ticket);
LinkId linkIdOf(const uint8_t (&bytes)[16]);
/// From 32 hexadecimal digits; zeros for anything else.
LinkId parseLinkId(const std::string& text);
/// One line for the log and PeerInfo::why.
std::string describeLink(const PeerInfo& peer, uint32_t lanes, size_t rails = 1);

}  // namespace olpager::transport
