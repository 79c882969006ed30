// The keys by which the workers of one program's sessions know each other. Each is of one worker
// that listens and one that connects, and follows from the key of the listening one's session: so
// the client, who has that, gives the connecting one what it needs and nothing else. Thread-safety:
// any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coherence/transport/trust/keys.h"

namespace olpager::forward {

std::string peerKeyName(unsigned slot);
/// For the worker in `slot` to connect to the worker whose session has this key.
transport::NamedKey peerKey(const transport::Secret& session, unsigned slot);
/// The slot that the name of such a key says; nothing: it is another key's name.
std::optional<unsigned> peerSlot(std::string_view key_name);
/// For the session's own client, whose link so becomes the one of pages (pages_wire.h), beside that
/// of calls.
transport::NamedKey pagesKey(const transport::Secret& session);
bool isPagesKey(std::string_view key_name);

}  // namespace olpager::forward
