// Finding and checking key files. Pure functions.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace olpager::transport {

/// The places where a key is looked for, in this order, for messages.
inline constexpr const char* kProgramKeyPlaces =
    "--key, OL_KEY, key in ~/.config/olpager/olpager.toml or /etc/olpager/olpager.toml, "
    "$CREDENTIALS_DIRECTORY/olpager.key";
inline constexpr const char* kDaemonKeyPlaces =
    "--key, key in /etc/olpager/olmemserver.toml or olgpunode.toml (--config), "
    "$CREDENTIALS_DIRECTORY/olmemserver.key "
    "or olgpunode.key";

/// Ok if the user `self` may use a key file of this mode and owner. The owner has to be that user
/// or root, and nobody else may read or change the file; root's file may be readable for the group:
/// so are Kubernetes' secrets and systemd's credentials. `path` is for the Error.
Status checkKeyAccess(mode_t mode, uid_t owner, uid_t self, const std::string& path);

}  // namespace olpager::transport
