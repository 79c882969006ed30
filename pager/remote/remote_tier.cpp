#include "pager/remote/remote_tier.h"

#include <cstddef>
#include <set>

#include "pager/remote/tier.h"

namespace olpager::pager {

RemoteHash hashOf(const void* memory, uint64_t bytes) {
  std::vector<RemoteHash> pages(bytes / kernels::kHashPageBytes);
  for (size_t page = 0; page < pages.size(); ++page) {
    pages[page] =
        kernels::hashPage(static_cast<const std::byte*>(memory) + page * kernels::kHashPageBytes);
  }
  return kernels::combineHashes(pages.data(), pages.size());
}

Result<std::unique_ptr<RemoteTier>> connectRemoteTier(const RemoteOptions& options,
                                                      const EndpointMaker& make) {
  if (options.memservers.empty()) return Error{"remote memory: no memserver is named"};
  if (options.replicas < 1 || options.replicas > 2)
    return Error{"remote memory: replicas can be 1 or 2"};
  const std::set<std::string> different(options.memservers.begin(), options.memservers.end());
  if (different.size() != options.memservers.size()) {
    return Error{
        "remote memory: a memserver is named twice; two replicas have to be on different ones"};
  }
  auto tier = std::make_unique<Tier>(options);
  if (const Status opened = tier->open(make); !opened.ok()) return opened.error();
  return std::unique_ptr<RemoteTier>(std::move(tier));
}

Result<std::unique_ptr<RemoteTier>> RemoteTier::connect(const RemoteOptions& options) {
  return connectRemoteTier(options, transport::makeEndpoint);
}

}  // namespace olpager::pager
