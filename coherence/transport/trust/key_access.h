// Whose key files are used, and where they are looked for. Pure functions.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace olpager::transport {

/// Where a key is looked for, in this order, for messages.
inline constexpr const char* kProgramKeyPlaces =
    "--key, OL_KEY, key in ~/.config/olpager/olpager.toml or /etc/olpager/olpager.toml, "
    "$CREDENTIALS_DIRECTORY/olpager.key";
inline constexpr const char* kDaemonKeyPlaces =
    "--key, key in /etc/olpager/olmemserver.toml or olgpunode.toml (--config), "
    "$CREDENTIALS_DIRECTORY/olmemserver.key "
    "or olgpunode.key";

/// Whether a key file of this mode and owner may be used by the user `self`. It has to be that
/// user's or root's, and nobody else may read or change it; but of root's file the group may read
/// it: so are Kubernetes' secrets and systemd's credentials. `path` is for the Error.
Status checkKeyAccess(mode_t mode, uid_t owner, uid_t self, const std::string& path);

}  // namespace olpager::transport
