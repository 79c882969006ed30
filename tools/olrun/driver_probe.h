// Tries a CUDA driver library in a child process: a library that can't be loaded, or ends the
// process that loads it, must not take olrun with it. Thread-safety: call with one thread only (it
// forks).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace olpager::tools {

struct DriverFacts {
  std::string path;  // as the loader found it
  int version = 0;   // cuDriverGetVersion, 13000 for 13.0; 0 unknown
  // The rest only when asked to start the driver.
  int devices = -1;           // -1: not asked
  std::string start_problem;  // why cuInit or the first context failed; "" when it did not
  std::string host_problem;   // why memory of kind HOST_NUMA can't be made; "" when it can
  // Only when asked how large devices are. The one with the least memory; 0 bytes: the driver does
  // not tell.
  uint64_t least_vram = 0;
  int least_device = 0;
};

/// The probe beyond the driver's version.
enum class Probe : uint8_t {
  kLoad,   // nothing
  kVram,   // cuInit, and how much memory devices have
  kStart,  // cuInit, how many devices there are, HOST_NUMA memory on the first
};

/// `driver`: an absolute path, or "libcuda.so.1" for the loader's own search. `own_library`: our
/// own libcuda work-alike, never taken for the driver.
Result<DriverFacts> probeDriver(const std::string& driver, Probe probe,
                                const std::string& own_library);

}  // namespace olpager::tools
