// Reads the driver's variables in the program's environment. Thread-safety: any thread.
#pragma once

#include "forwarding/wire/driver_environment.h"

namespace olpager::forward {

/// The program's variables as they are now. Values that the driver would not take are left out,
/// with a line. `own_gpunode`: it is there for this program, and was started with its order of
/// devices.
DriverEnvironment driverEnvironment(bool own_gpunode);

/// True if the program's launches wait for their kernels: CUDA_LAUNCH_BLOCKING as it was when the
/// first session was opened.
bool launchesBlock();
/// Looks at it, for that.
void readLaunchBlocking();

}  // namespace olpager::forward
