// The connecting side of a handshake: waits, with a deadline, on the caller's thread.
//
//   preamble -> [TLS] -> Hello -> Hello back -> each lane: preamble, ticket -> reply -> [TLS] ->
//   Ready on the first connection
#pragma once

#include "coherence/transport/transport.h"

namespace olpager::transport {

class EndpointCore;
Result<LinkPtr> connectLink(EndpointCore& endpoint, const std::string& address,
                            const ConnectOptions& options);

}  // namespace olpager::transport
