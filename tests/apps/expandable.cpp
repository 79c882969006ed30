// Virtual memory as PyTorch's expandable segments use it: one reservation far larger than VRAM,
// handles of 2 and 20 MiB that could be exported, mapped one after another so that blocks run
// across them, kernels over all of it, parts unmapped, released and mapped anew. Ends with what
// such memory does not always offer: exporting it, or being written when it is read only.
#include <unistd.h>

#include <algorithm>

#include "driver_program.h"

namespace {

constexpr size_t kStride = 4096;  // the kernel touches a word of each 4 KiB
constexpr size_t kMiB = size_t{1} << 20;

CUmemAllocationProp properties(CUdevice device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int rdma = 0;
  if (cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                           device) == CUDA_SUCCESS &&
      rdma != 0)
    prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

/// A range of which a prefix of segments is mapped, segment by segment.
class Segments {
 public:
  Segments(CUdevice device, size_t segment, size_t reserved)
      : prop_(properties(device)), segment_(segment), reserved_(reserved) {
    DRIVER_OK(cuMemAddressReserve(&base_, reserved_, 0, 0, 0));
    handles_.resize(reserved_ / segment_);
  }
  CUdeviceptr base() const { return base_; }
  size_t segment() const { return segment_; }
  CUdeviceptr at(size_t index) const { return base_ + index * segment_; }
  CUmemGenericAllocationHandle handle(size_t index) const { return handles_[index]; }

  void map(size_t first, size_t last) {
    for (size_t s = first; s < last; ++s) {
      DRIVER_OK(cuMemCreate(&handles_[s], segment_, &prop_, 0));
      DRIVER_OK(cuMemMap(at(s), segment_, 0, handles_[s], 0));
    }
    CUmemAccessDesc access{};
    access.location = prop_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (size_t s = first; s < last; ++s) DRIVER_OK(cuMemSetAccess(at(s), segment_, &access, 1));
  }
  void unmap(size_t first, size_t last) {
    DRIVER_OK(cuCtxSynchronize());
    for (size_t s = first; s < last; ++s) {
      DRIVER_OK(cuMemUnmap(at(s), segment_));
      DRIVER_OK(cuMemRelease(handles_[s]));
    }
  }
  void free() const { DRIVER_OK(cuMemAddressFree(base_, reserved_)); }

 private:
  CUmemAllocationProp prop_;
  size_t segment_, reserved_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
};

void fill(CUdeviceptr address, size_t bytes, uint32_t value) {
  DRIVER_OK(cuMemsetD32(address, value, bytes / 4));
}

void bump(const apps::Bump& kernel, CUdeviceptr address, size_t bytes, uint32_t value) {
  kernel(address, uint32_t(bytes / kStride), value);
}

void check(CUdeviceptr address, size_t bytes, uint32_t value, uint32_t bumped, const char* what) {
  std::vector<uint32_t> words(bytes / 4);
  DRIVER_OK(cuMemcpyDtoH(words.data(), address, bytes));
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t expected = value + (i % (kStride / 4) == 0 ? bumped : 0);
    CHECK(words[i] == expected, "%s: word %zu is %#x, expected %#x", what, i, words[i], expected);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump kernel(kStride);
  // The small pool's segments hold a quarter, the large pool's the rest.
  Segments small(device, 2 * kMiB, size_t{1} << 34);
  Segments large(device, 20 * kMiB, 20 * kMiB * 1024);
  const size_t smalls = std::max<size_t>(options.bytes / 4 / small.segment(), 4);
  const size_t larges = std::max<size_t>(options.bytes * 3 / 4 / large.segment(), 2);
  const uint32_t seed = uint32_t(options.seed) * 1000;
  for (size_t s = 0; s < smalls; ++s) {
    small.map(s, s + 1);
    fill(small.at(s), small.segment(), seed + uint32_t(s));
  }
  for (size_t s = 0; s < larges; ++s) {
    large.map(s, s + 1);
    fill(large.at(s), large.segment(), seed + 500 + uint32_t(s));
  }
  // Blocks in turn, some across the ends of segments; a block of a few KiB beside one of many MiB.
  uint32_t rounds = 0;
  for (; rounds < 3; ++rounds) {
    const size_t all = smalls * small.segment();
    for (size_t at = 0; at < all; at += 3 * kMiB)
      bump(kernel, small.base() + at, std::min(3 * kMiB, all - at), 1);
    for (size_t s = 0; s < larges; ++s) bump(kernel, large.at(s), large.segment(), 1);
  }
  for (size_t s = 0; s < smalls; ++s)
    check(small.at(s), small.segment(), seed + uint32_t(s), rounds, "small segment");
  for (size_t s = 0; s < larges; ++s)
    check(large.at(s), large.segment(), seed + 500 + uint32_t(s), rounds, "large segment");
  // Under pressure of memory the allocator unmaps what it does not use, in the middle too, and maps
  // it again later.
  small.unmap(1, smalls - 1);
  check(small.at(smalls - 1), small.segment(), seed + uint32_t(smalls - 1), rounds,
        "segment beside what was unmapped");
  bump(kernel, small.at(0), small.segment(), 1);
  large.unmap(larges - 1, larges);
  small.map(1, smalls - 1);
  for (size_t s = 1; s + 1 < smalls; ++s)
    fill(small.at(s), small.segment(), seed + 100 + uint32_t(s));
  large.map(larges - 1, larges);
  fill(large.at(larges - 1), large.segment(), seed + 77);
  bump(kernel, small.base(), smalls * small.segment(), 2);
  bump(kernel, large.base(), larges * large.segment(), 2);
  check(small.at(0), small.segment(), seed, rounds + 3, "first segment");
  for (size_t s = 1; s + 1 < smalls; ++s)
    check(small.at(s), small.segment(), seed + 100 + uint32_t(s), 2, "remapped segment");
  check(small.at(smalls - 1), small.segment(), seed + uint32_t(smalls - 1), rounds + 2,
        "last segment");
  check(large.at(larges - 1), large.segment(), seed + 77, 2, "remapped large segment");
  for (size_t s = 0; s + 1 < larges; ++s)
    check(large.at(s), large.segment(), seed + 500 + uint32_t(s), rounds + 2,
          "large segment at the end");
  // Read only, and back; taken away and given again: the contents stay.
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  for (const CUmemAccess_flags flags :
       {CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_NONE,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE}) {
    access.flags = flags;
    DRIVER_OK(cuMemSetAccess(large.at(0), large.segment(), &access, 1));
    unsigned long long now = 99;
    DRIVER_OK(cuMemGetAccess(&now, &access.location, large.at(0)));
    CHECK(now == static_cast<unsigned long long>(flags), "access is %llu after setting %d", now,
          int(flags));
    const CUresult written = cuMemsetD32(large.at(0) + 4, seed + 500, 1);
    const bool writable = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(written == (writable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE),
          "a memset with access %d: CUresult %d", int(flags), int(written));
    uint32_t word = 0;
    const CUresult read = cuMemcpyDtoH(&word, large.at(0) + 8, 4);
    const bool readable = flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CHECK(read == (readable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE),
          "a copy with access %d: CUresult %d", int(flags), int(read));
    CHECK(!readable || word == seed + 500, "the contents went with access %d: %#x", int(flags),
          word);
  }
  check(large.at(0), large.segment(), seed + 500, rounds + 2, "segment after its access changed");
  // The driver's memory can be exported; memory that the pager moves is refused, and nothing else
  // happens.
  int descriptor = -1;
  const CUresult exported = cuMemExportToShareableHandle(
      &descriptor, small.handle(0), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  CHECK(exported == CUDA_SUCCESS || exported == CUDA_ERROR_NOT_SUPPORTED,
        "cuMemExportToShareableHandle: CUresult %d", int(exported));
  if (exported == CUDA_SUCCESS) close(descriptor);
  small.unmap(0, smalls);
  large.unmap(0, larges);
  small.free();
  large.free();
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("expandable segments: %zu of %zu MiB, %zu of %zu MiB; export: %s", smalls,
                  small.segment() / kMiB, larges, large.segment() / kMiB,
                  exported == CUDA_SUCCESS ? "done" : "refused");
}
