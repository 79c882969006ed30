#include "gpunode/worker/block_ranges.h"

#include "interpose/api/range_extractors.h"

namespace olpager::gpunode {
namespace {

class Blocks final : public api::extract::RangeSink {
 public:
  explicit Blocks(HostMemory& memory) : memory_(memory) {}
  void add(uint64_t address, uint64_t bytes, api::extract::Use) override {
    ok_ = ok_ && memory_.has(address, bytes);
  }
  void addFrom(uint64_t) override { ok_ = false; }
  uint64_t arrayElementBytes(CUarray) override { return 1; }
  bool ok() const { return ok_; }

 private:
  HostMemory& memory_;
  bool ok_ = true;
};

}  // namespace

bool inBlocks(HostMemory& memory, const CUDA_MEMCPY3D& box) {
  Blocks sink(memory);
  // Each host side by itself, as if the other were an array.
  CUDA_MEMCPY3D one = box;
  if (box.srcMemoryType == CU_MEMORYTYPE_HOST) {
    one.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    api::extract::copy3d(sink, &one);
  }
  one = box;
  if (box.dstMemoryType == CU_MEMORYTYPE_HOST) {
    one.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    api::extract::copy3d(sink, &one);
  }
  return sink.ok();
}

}  // namespace olpager::gpunode
