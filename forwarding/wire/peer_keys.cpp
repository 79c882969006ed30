#include "forwarding/wire/peer_keys.h"

#include <charconv>

#include "forwarding/wire/session_protocol.h"

namespace olpager::forward {
namespace {
constexpr std::string_view kPrefix = "peer-";
}  // namespace

std::string peerKeyName(unsigned slot) { return std::string(kPrefix) + std::to_string(slot); }

transport::NamedKey peerKey(const transport::Secret& session, unsigned slot) {
  transport::NamedKey key{peerKeyName(slot), {}};
  const std::string_view name = key.name;
  key.secret =
      transport::mac(session, {reinterpret_cast<const uint8_t*>(name.data()), name.size()});
  return key;
}

std::optional<unsigned> peerSlot(std::string_view key_name) {
  if (!key_name.starts_with(kPrefix)) return {};
  key_name.remove_prefix(kPrefix.size());
  unsigned slot = 0;
  const auto [end, error] =
      std::from_chars(key_name.data(), key_name.data() + key_name.size(), slot);
  if (error != std::errc() || end != key_name.data() + key_name.size() || slot >= kMostSlots)
    return {};
  return slot;
}

}  // namespace olpager::forward
