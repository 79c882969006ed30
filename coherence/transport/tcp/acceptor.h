// The accepting side of handshakes, for TCP and Unix sockets alike. Everything runs on the
// endpoint's first reactor without blocking, one Handshake for each connection that has not become
// part of a link yet:
//
//   kPreamble -> kTls -> kHello -> kLanes (waits for its lanes, and for the link it replaces to be
//   down) -> a link kPreamble -> kTicket -> kLaneTls -> a lane of a connection in kLanes kPreamble,
//   with a route -> kRouted (until he takes it) -> who is behind this address, whose acceptor goes
//   on with it from kPreamble
//
// A connection that breaks a rule, or is not through in time, is closed with a line in the log (a
// few a second; the rest is counted in the next line). Nothing of a peer is believed before it has
// been checked.
#pragma once

#include "coherence/transport/transport.h"

namespace olpager::transport {

class EndpointCore;
Result<std::unique_ptr<Listener>> makeAcceptor(EndpointCore& endpoint, const std::string& address,
                                               AcceptFn accept, RoutesPtr routes);
/// Accepts the connections that come over `socket`.
Result<std::unique_ptr<Listener>> makeAcceptorBehind(EndpointCore& endpoint, base::UniqueFd socket,
                                                     AcceptFn accept);

}  // namespace olpager::transport
