#include "gpunode/simgpu/modules/jit_options.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace olpager::simgpu {

CUresult JitOptions::read(unsigned count, CUjit_option* options, void** values) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const auto size = static_cast<size_t>(reinterpret_cast<uintptr_t>(values[i]) & 0xffffffffu);
    switch (options[i]) {
      case CU_JIT_ERROR_LOG_BUFFER:
        error_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        error_.room = size;
        error_.size_value = &values[i];
        break;
      case CU_JIT_INFO_LOG_BUFFER:
        info_.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        info_.room = size;
        info_.size_value = &values[i];
        break;
      case CU_JIT_WALL_TIME:
        wall_time_ = &values[i];
        break;
      default:
        if (static_cast<unsigned>(options[i]) >= static_cast<unsigned>(CU_JIT_NUM_OPTIONS)) {
          return CUDA_ERROR_INVALID_VALUE;
        }
    }
  }
  for (Log* log : {&error_, &info_}) {
    if (log->buffer != nullptr && log->room != 0) log->buffer[0] = '\0';
  }
  return CUDA_SUCCESS;
}

void JitOptions::Log::append(const std::string& line) {
  if (buffer == nullptr || used + 1 >= room) return;
  const std::string text = line + "\n";
  const size_t bytes = std::min(text.size(), room - 1 - used);
  std::memcpy(buffer + used, text.data(), bytes);
  used += bytes;
  buffer[used] = '\0';
}

void JitOptions::error(const std::string& line) { error_.append(line); }
void JitOptions::info(const std::string& line) { info_.append(line); }

void JitOptions::finish(float milliseconds) {
  for (Log* log : {&error_, &info_}) {
    if (log->size_value != nullptr) *log->size_value = reinterpret_cast<void*>(log->used);
  }
  if (wall_time_ != nullptr) {
    // The value's first four bytes are a float, as the driver writes them.
    uintptr_t bits = 0;
    std::memcpy(&bits, &milliseconds, sizeof(milliseconds));
    *wall_time_ = reinterpret_cast<void*>(bits);
  }
}

}  // namespace olpager::simgpu
