// The remote tier over an endpoint of the caller's making: for tests, which put faults into it.
#pragma once

#include <functional>
#include <memory>

#include "coherence/transport/transport.h"
#include "pager/remote/remote_tier.h"

namespace olpager::pager {

using EndpointMaker =
    std::function<Result<std::unique_ptr<transport::Endpoint>>(const transport::Options&)>;

/// As RemoteTier::connect().
Result<std::unique_ptr<RemoteTier>> connectRemoteTier(const RemoteOptions& options,
                                                      const EndpointMaker& make);

}  // namespace olpager::pager
