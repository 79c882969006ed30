#include "coherence/transport/shm/shm_connect.h"

#include <poll.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "coherence/transport/core/peer_user.h"
#include "coherence/transport/shm/shm_link.h"

namespace olpager::transport {
namespace {

// The acceptor's first and only bytes before the link is up; with the memfd, the connector's bell,
// the acceptor's bell.
struct Offer {
  uint32_t format = wire::kFormat;
  uint32_t message_bytes = 0;  // that the rings are made for
};

Status waitAndGet(int fd, void* into, size_t length, const Patience& patience) {
  for (size_t done = 0; done < length;) {
    const ssize_t got = recv(fd, static_cast<char*>(into) + done, length - done, MSG_DONTWAIT);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return Error{"the Unix socket was closed"};
    } else if (!waitFor(fd, POLLIN, patience.until())) {
      return Error{"no answer in time on the Unix socket"};
    }
  }
  return {};
}

// Rings are made for the longer of what both take.
uint32_t agreedMessage(const LinkSetup& setup) {
  return std::max(setup.options.limits.message_bytes, setup.peer_hello.message_bytes);
}

}  // namespace

Result<base::UniqueFd> openShmSocket(const wire::Hello& peer, const Patience& patience) {
  auto address = unixAddress(peer.unix_path);
  if (!address.ok()) return address.error();
  auto socket = connectSocket(address.value(), patience);
  if (!socket.ok()) return socket.error();
  const auto user = peerUser(socket.value().get());
  if (!user.ok() || user.value() != geteuid()) return Error{"the Unix socket is another user's"};
  return socket;
}

Result<std::shared_ptr<LinkCore>> connectShm(EndpointCore& endpoint, LinkSetup setup,
                                             base::UniqueFd socket, const LinkSecrets& secrets,
                                             const Patience& patience) {
  struct {
    wire::Preamble preamble;
    wire::Ticket ticket;
  } opening;
  static_assert(sizeof opening == sizeof(wire::Preamble) + sizeof(wire::Ticket));
  opening.preamble.kind = wire::Preamble::Kind::kLane;
  opening.preamble.oldest = setup.options.versions.oldest;
  opening.preamble.newest = setup.options.versions.newest;
  opening.ticket = makeTicket(secrets, setup.id, 0);
  if (!sendWithFds(socket.get(), &opening, sizeof opening, nullptr, 0))
    return Error{"the Unix socket takes nothing"};
  wire::TicketReply reply;
  if (auto status = waitAndGet(socket.get(), &reply, sizeof reply, patience); !status.ok())
    return status.error();
  if (!sameSecret(reply.mac, answerTicket(secrets, opening.ticket).mac)) {
    return Error{"the Unix socket was answered by somebody else"};
  }
  Offer offer;
  base::UniqueFd fds[3];
  ssize_t got = -EAGAIN;
  while (got == -EAGAIN) {
    if (!waitFor(socket.get(), POLLIN, patience.until())) return Error{"no shared memory in time"};
    got = receiveWithFds(socket.get(), &offer, sizeof offer, fds, 3);
  }
  if (got != sizeof offer || offer.format != wire::kFormat ||
      offer.message_bytes != agreedMessage(setup)) {
    return Error{"the peer's offer of shared memory is not of this format"};
  }
  auto channel =
      Channel::open(std::move(fds[0]), std::move(fds[1]), std::move(fds[2]), offer.message_bytes);
  if (!channel.ok()) return channel.error();
  setup.peer.kind = LinkKind::kShm;
  setup.peer.address = base::format("unix:{}", setup.peer_hello.unix_path);
  setup.peer.why = describeLink(setup.peer, 0);
  auto link = std::make_shared<ShmLink>(std::move(setup), std::move(socket),
                                        std::move(channel.value()), endpoint.reactors());
  link->start(false);
  return std::shared_ptr<LinkCore>(link);
}

Result<std::shared_ptr<LinkCore>> acceptShm(EndpointCore& endpoint, LinkSetup setup,
                                            Stream socket) {
  Offer offer;
  offer.message_bytes = agreedMessage(setup);
  auto channel = Channel::make(offer.message_bytes);
  if (!channel.ok()) return channel.error();
  const int fds[] = {channel.value()->memoryFd(), channel.value()->peerBell(),
                     channel.value()->ownBell()};
  if (!sendWithFds(socket.fd(), &offer, sizeof offer, fds, 3))
    return Error{"the peer does not take the shared memory"};
  auto link = std::make_shared<ShmLink>(std::move(setup), socket.takeFd(),
                                        std::move(channel.value()), endpoint.reactors());
  link->start(true);
  return std::shared_ptr<LinkCore>(link);
}

}  // namespace olpager::transport
