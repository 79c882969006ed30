// Asks a running daemon for its status: olmemserver --state. Asked over the ordinary connection.
#pragma once

#include <string>

#include "base/result.h"
#include "coherence/status/status.h"
#include "memserver/server/options.h"

namespace olpager::memserver {

/// Asks the daemon at `address` (with the key of `options`). All rows.
Result<status::Status> askState(const DaemonOptions& options, const std::string& address);
std::string stateText(const status::Status& state);
std::string stateJson(const status::Status& state);
/// The address to ask a daemon that listens so: a wildcard is this host.
std::string askAddress(const std::string& listen);

}  // namespace olpager::memserver
