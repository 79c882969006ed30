// The private driver tables of the simulated GPU.
#pragma once

#include "interpose/private_tables/private_tables.h"

namespace olpager::simgpu {

/// The process's tables; made by the first call, never destroyed (they are used from exit
/// handlers).
interpose::PrivateTables& privateTables();

}  // namespace olpager::simgpu
