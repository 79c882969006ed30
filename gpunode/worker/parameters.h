// A kernel's parameters on their way to the driver, out of the block in which they came: by
// pointers into it where the program gave pointers, as natively. The driver does not treat both
// ways the same (a node of a graph whose parameters came as a block can't be made cooperative).
// Thread-safety: of the calling thread.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "gpunode/worker/handles.h"

namespace olpager::gpunode {

class Invocation;

/// The places of a kernel's parameters, asked of the driver and noted; null: it does not tell them.
const ParameterPlaces* placesNow(Invocation& in, uint64_t number, CUfunction function);

class Parameters {
 public:
  /// `places` null: the block is given as such (`extra`). So it is where it is shorter than the
  /// places say.
  Parameters(std::span<const std::byte> sent, const ParameterPlaces* places) : bytes_(sent.size()) {
    std::byte* const block = sent.size() <= sizeof small_ ? small_ : roomFor(sent.size());
    if (!sent.empty()) std::memcpy(block, sent.data(), sent.size());
    extra_[1] = block;
    if (places == nullptr || places->empty()) return;
    for (const auto& [offset, bytes] : *places) {
      if (bytes > bytes_ || offset > bytes_ - bytes) return;
    }
    if (places->size() > kFew) many_.resize(places->size());
    void** const pointers = many_.empty() ? few_ : many_.data();
    for (size_t i = 0; i < places->size(); ++i) pointers[i] = block + (*places)[i].offset;
    pointers_ = pointers;
  }
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  /// For the driver: one of them, or none where there are no parameters.
  void** pointers() { return pointers_; }
  void** extra() { return pointers_ == nullptr && bytes_ != 0 ? extra_ : nullptr; }

 private:
  // Room for the parameters of most kernels; more is allocated.
  static constexpr size_t kFew = 64;

  std::byte* roomFor(size_t bytes) {
    large_.resize(bytes);
    return large_.data();
  }

  size_t bytes_;
  void** pointers_ = nullptr;
  void* extra_[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, nullptr, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes_,
                     CU_LAUNCH_PARAM_END};
  void* few_[kFew];
  alignas(16) std::byte small_[1024];
  std::vector<void*> many_;
  std::vector<std::byte> large_;
};

}  // namespace olpager::gpunode
