#include "memserver/tier/connect.h"

#include <set>

#include "memserver/tier/tier.h"

namespace olpager::memserver {

Result<std::unique_ptr<pager::LowerTier>> connectTier(const TierOptions& options,
                                                      const EndpointMaker& make) {
  if (options.memservers.empty()) return Error{"remote memory: no memserver is named"};
  if (options.replicas < 1 || options.replicas > 2)
    return Error{"remote memory: replicas can be 1 or 2"};
  const std::set<std::string> different(options.memservers.begin(), options.memservers.end());
  if (different.size() != options.memservers.size()) {
    return Error{
        "remote memory: a memserver is named twice; two replicas have to be on different ones"};
  }
  auto tier = std::make_unique<MemserverTier>(options);
  if (const Status opened = tier->open(make); !opened.ok()) return opened.error();
  return std::unique_ptr<pager::LowerTier>(std::move(tier));
}

Result<std::unique_ptr<pager::LowerTier>> connectTier(const TierOptions& options) {
  return connectTier(options, transport::makeEndpoint);
}

}  // namespace olpager::memserver
