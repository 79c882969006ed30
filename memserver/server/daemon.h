// The daemon: memory touched at start, sessions served, pressure watched, an orderly end.
//
// States: starting (memory is made) -> lending -> ending (nothing new is lent, everything is
// recalled, sessions move their pages elsewhere) -> ended: when nothing is lent any more, the time
// is over, or a second signal comes.
#pragma once

#include "memserver/server/options.h"

namespace olpager::memserver {

/// Runs until SIGTERM or SIGINT (which the caller has blocked in all threads). The exit status: 0;
/// 1 when it failed or sessions lost pages with it; 2 for options that can't be, said in one line
/// on standard error.
int runDaemon(const DaemonOptions& options);

/// NUMA node of the network card with this address of ours, -1: not known.
int numaNodeOf(const std::string& listen);

}  // namespace olpager::memserver
