// How a pair on one host comes to its shared memory: the connector opens a Unix socket with the
// link's ticket, the acceptor sends the memfd of the rings and the bells over it.
#pragma once

#include "coherence/transport/core/endpoint.h"

namespace olpager::transport {

/// The Unix socket that the acceptor's greeting names. An error where it is not to be had from
/// here: another file system, another user's.
Result<base::UniqueFd> openShmSocket(const wire::Hello& peer, const Patience& patience);
/// `socket`: openShmSocket()'s.
Result<std::shared_ptr<LinkCore>> connectShm(EndpointCore& endpoint, LinkSetup setup,
                                             base::UniqueFd socket, const LinkSecrets& secrets,
                                             const Patience& patience);
/// `socket`: the Unix connection whose ticket was good.
Result<std::shared_ptr<LinkCore>> acceptShm(EndpointCore& endpoint, LinkSetup setup, Stream socket);

}  // namespace olpager::transport
