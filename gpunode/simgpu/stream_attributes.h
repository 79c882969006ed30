// Attributes of a stream, as cuStreamSetAttribute sets them. Nothing here runs otherwise for it: it
// is kept, told back, and goes with the kernels that the stream captures. Thread-safety: any
// thread. Lock: mutex_, a leaf.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>
#include <vector>

namespace olpager::simgpu {

class StreamAttributes {
 public:
  explicit StreamAttributes(int priority);
  /// CUDA_ERROR_INVALID_VALUE: streams have none of this kind.
  CUresult get(CUstreamAttrID id, CUstreamAttrValue* value) const;
  CUresult set(CUstreamAttrID id, const CUstreamAttrValue& value);
  void copyFrom(const StreamAttributes& other);
  int priority() const;
  /// The attributes that were set and that kernels have too.
  std::vector<CUlaunchAttribute> ofKernels() const;

 private:
  struct Attribute {
    CUstreamAttrValue value{};
    bool set = false;  // by the program
  };
  mutable std::mutex mutex_;
  std::map<CUstreamAttrID, Attribute> all_;
};

}  // namespace olpager::simgpu
