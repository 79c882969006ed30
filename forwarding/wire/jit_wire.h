// Options of the driver's compiler and linker on the wire: how many, then for each its name and its
// value; of a log, whether the program wants one. The answer has each one's value as the driver
// left it and, for a log, its text. Both sides.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace olpager::forward {

inline constexpr uint32_t kMostJitOptions = 64;

inline bool isLog(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER;
}
inline bool isLogSize(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
         option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
}
/// Options whose value points to more than a log.
inline bool isDeep(CUjit_option option) {
  return option == CU_JIT_GLOBAL_SYMBOL_NAMES || option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES ||
         option == CU_JIT_REFERENCED_KERNEL_NAMES || option == CU_JIT_REFERENCED_VARIABLE_NAMES;
}
/// One that cuda.h has.
inline bool isJitOption(CUjit_option option) { return option >= 0 && option < CU_JIT_NUM_OPTIONS; }
/// Options whose value the driver returns.
inline bool isTold(CUjit_option option) {
  return isLogSize(option) || option == CU_JIT_WALL_TIME || option == CU_JIT_THREADS_PER_BLOCK;
}

}  // namespace olpager::forward
