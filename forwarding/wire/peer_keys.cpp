#include "forwarding/wire/peer_keys.h"

#include <charconv>
#include <utility>

#include "forwarding/wire/session_protocol.h"

namespace olpager::forward {
namespace {
constexpr std::string_view kPrefix = "peer-", kPages = "pages";

transport::NamedKey derived(const transport::Secret& session, std::string name) {
  transport::NamedKey key{std::move(name), {}};
  const std::string_view named = key.name;
  key.secret =
      transport::mac(session, {reinterpret_cast<const uint8_t*>(named.data()), named.size()});
  return key;
}
}  // namespace

std::string peerKeyName(unsigned slot) { return std::string(kPrefix) + std::to_string(slot); }

transport::NamedKey peerKey(const transport::Secret& session, unsigned slot) {
  return derived(session, peerKeyName(slot));
}

transport::NamedKey pagesKey(const transport::Secret& session) {
  return derived(session, std::string(kPages));
}

bool isPagesKey(std::string_view key_name) { return key_name == kPages; }

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
