// Identifies the process at the other end of a connection of this host: it stands for a key where
// there is none. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace olpager::transport {

/// The user of the process at the other end: of a Unix socket, or of TCP on loopback. Over TCP it
/// is known once the other end has taken the connection (accept()).
Result<uint32_t> peerUser(int fd);
/// Without a key, and over a Unix socket, both ends are one user's: "", or one line for a person.
/// `connected`: this end is the one that has.
std::string whyNotOneUser(int fd, bool connected);

}  // namespace olpager::transport
