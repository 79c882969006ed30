// The level at which links that come up and go down are in the log. Thread-safety: any thread.
#pragma once

#include "base/log.h"

namespace olpager::transport {

/// kInfo until it is called. A daemon says by itself which sessions begin and end: for links it
/// asks for kDebug.
void setLinkLogLevel(base::LogLevel level) noexcept;
base::LogLevel linkLogLevel() noexcept;

}  // namespace olpager::transport
