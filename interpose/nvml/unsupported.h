// For functions without an answer. Thread-safety: any thread.
#pragma once

namespace olpager::nvml {

/// NVML_ERROR_NOT_SUPPORTED, or NVML_ERROR_UNINITIALIZED before nvmlInit. The name goes to the log
/// once (debug).
int unsupported(const char* name);

}  // namespace olpager::nvml
