// Whose key files are used, and where they are looked for. Pure functions.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace olpager::transport {

/// Where programs and daemons look for a key, for messages.
inline constexpr const char* kKeyPlaces =
    "--key, OL_KEY (programs), key in the settings files, in $CREDENTIALS_DIRECTORY olpager.key (programs), "
    "olmemserver.key or olgpunode.key";

/// Whether a key file of this mode and owner may be used by the user `self`. It has to be that user's or root's, and nobody else may read
/// or change it; but of root's file the group may read it: so are Kubernetes' secrets and systemd's credentials. `path` is for the Error.
Status checkKeyAccess(mode_t mode, uid_t owner, uid_t self, const std::string& path);

}  // namespace olpager::transport
