// Memservers as the pager's lower tier.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/transport/options.h"
#include "coherence/transport/transport.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::memserver {

struct TierOptions {
  std::vector<std::string> memservers;  // "host:port" or "unix:/path"
  unsigned replicas = 1;                // 1 or 2
  transport::Options transport;         // keys, TLS, lanes
  std::string label;                    // what memservers show of this session
  uint32_t stall_ms = 0;  // silence after which a memserver counts as stalled; 0: a second
};

/// Makes the endpoint over which a tier talks. Tests make one that has faults.
using EndpointMaker =
    std::function<Result<std::unique_ptr<transport::Endpoint>>(const transport::Options&)>;

/// Connects to all memservers. Blocks until each one has answered; one that can't be reached for
/// two seconds is an Error that names it. With two replicas of each page such a memserver counts as
/// a lost one, as long as another one is there.
///
/// The tier has two threads of its own, beside those of its Clients. A
/// memserver whose connection is lost delays a transfer by as long as that takes to notice
/// (milliseconds where its process was killed); one that is stopped delays a receive by about
/// kLateMs (tier.h) where another replica can be read, and a send by the second after which it
/// counts as stalled.
Result<std::unique_ptr<pager::LowerTier>> connectTier(const TierOptions& options);
/// The same over an endpoint of the caller's making.
Result<std::unique_ptr<pager::LowerTier>> connectTier(const TierOptions& options,
                                                      const EndpointMaker& make);

}  // namespace olpager::memserver
