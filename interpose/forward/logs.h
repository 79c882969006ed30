// What the drivers at the workers log, for who has registered a function for it
// (cuLogsRegisterCallback). Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace olpager::forward {

/// By who receives: a line of a worker's driver, of a CUlogLevel.
void driverLogged(uint32_t level, std::string_view line);

}  // namespace olpager::forward
