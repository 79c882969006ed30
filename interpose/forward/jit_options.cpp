#include "interpose/forward/jit_options.h"

#include <algorithm>
#include <cstring>

#include "forwarding/wire/jit_wire.h"

namespace olpager::forward {

CUresult JitOptions::read(unsigned count, const CUjit_option* options, void** values) {
  if (count == 0) return CUDA_SUCCESS;
  if (options == nullptr || values == nullptr || count > kMostJitOptions)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (!isJitOption(options[i])) return CUDA_ERROR_INVALID_VALUE;
    if (isDeep(options[i]))
      return refused("an option of the compiler with names of symbols", false);
  }
  names_.assign(options, options + count);
  given_.assign(values, values + count);
  values_ = values;
  return CUDA_SUCCESS;
}

void JitOptions::put(Call& call) const {
  call.value(static_cast<uint32_t>(names_.size()));
  for (size_t i = 0; i < names_.size(); ++i) {
    call.value(static_cast<int32_t>(names_[i]));
    call.value(isLog(names_[i]) ? uint64_t{given_[i] != nullptr}
                                : reinterpret_cast<uint64_t>(given_[i]));
  }
}

void JitOptions::take(Reader& reply) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto value = reply.value<uint64_t>();
    const auto text = reply.text();
    if (!reply.ok()) return;
    if (isTold(names_[i])) values_[i] = reinterpret_cast<void*>(value);
    if (!isLog(names_[i])) continue;
    // The size is given by the option for it, which may stand anywhere.
    const auto size_option = names_[i] == CU_JIT_INFO_LOG_BUFFER
                                 ? CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES
                                 : CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    uint64_t room = 0;
    for (size_t j = 0; j < names_.size(); ++j) {
      if (names_[j] == size_option) room = reinterpret_cast<uint64_t>(given_[j]) & UINT32_MAX;
    }
    auto* const into = static_cast<char*>(given_[i]);
    if (into == nullptr || room == 0) continue;
    const size_t bytes = std::min<size_t>(text.size(), room - 1);
    std::memcpy(into, text.data(), bytes);
    into[bytes] = '\0';
  }
}

}  // namespace olpager::forward
