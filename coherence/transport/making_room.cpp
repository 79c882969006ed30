#include "coherence/transport/making_room.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "coherence/transport/core/address.h"

namespace olpager::transport {

uint64_t sourceOf(const PeerInfo& peer) {
  std::string host = peer.address.substr(0, peer.address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const auto address = isUnix(peer.address) ? unixAddress("all") : numericAddress(host);
  return address.ok() ? address.value().source() : 0;
}

MakesRoom whoMakesRoom(const std::vector<Holder>& holders) {
  std::vector<uint64_t> sources;
  std::map<std::string, size_t> of_key;
  std::map<std::pair<std::string, uint64_t>, size_t> of_address;
  for (const Holder& each : holders) {
    sources.push_back(sourceOf(*each.peer));
    ++of_key[each.peer->key_name];
    ++of_address[{each.peer->key_name, sources.back()}];
  }
  MakesRoom found;
  for (size_t i = 0; i < holders.size(); ++i) {
    const std::string& key = holders[i].peer->key_name;
    const MakesRoom here{i, of_key[key], of_address[{key, sources[i]}]};
    const auto rank = [&](const MakesRoom& each) {
      return std::tuple(each.of_key, each.of_address, -holders[each.which].since_ms);
    };
    if (i == 0 || rank(here) > rank(found)) found = here;
  }
  return found;
}

}  // namespace olpager::transport
