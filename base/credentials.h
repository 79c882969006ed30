// The folder of the secrets that systemd gives a unit (LoadCredential=): only the unit's user can
// read it.
#pragma once

#include <string>
#include <string_view>

namespace olpager::base {

/// The key of a program that is given none. The daemons' have their names.
inline constexpr std::string_view kProgramCredential = "olpager.key";

/// The path of the file `name` in `folder` (the value of CREDENTIALS_DIRECTORY; relative or "":
/// there is none). "": there is no such file.
std::string credentialFile(std::string_view folder, std::string_view name);

/// In this process's own folder.
std::string ownCredentialFile(std::string_view name);

}  // namespace olpager::base
