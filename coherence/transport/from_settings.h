// Reads a program's settings for its connections to daemons (transport, tls, key).
//
// Thread-safety: pure but for the key file, which it reads.
#pragma once

#include <string_view>

#include "base/result.h"
#include "base/settings.h"
#include "coherence/transport/options.h"

namespace olpager::transport {

/// To the daemon at `address`: the gpunode that olrun has started has a key of its own. All else as
/// the defaults. The Error is one line that names the key file.
Result<Options> optionsFrom(const base::Settings& settings, std::string_view address = {});

/// Ok if this machine has the hardware that a link to `address` with `options.choice` needs: a
/// card, where only RDMA will do. Nobody is asked but the system, and names are looked up. The
/// Error says what to do.
Status checkChoice(const Options& options, const std::string& address);

}  // namespace olpager::transport
