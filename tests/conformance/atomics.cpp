// Atomics of each kind in device memory, in pinned memory, and in host memory mapped in place.
#include <cstring>

#include "record.h"

namespace conformance {

void sectionAtomics() {
  const Base base;
  const Kernels kernels;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  constexpr size_t kBytes = size_t{2} << 20;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr device = 0, in_place = 0;
  need(api.cuMemAlloc(&device, kBytes), "cuMemAlloc");
  const CUresult created = api.cuMemCreate(&handle, kBytes, &prop, 0);
  record("atomics.create_host_numa", created);
  void* pinned = nullptr;
  need(api.cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
  std::vector<std::pair<std::string, CUdeviceptr>> places = {{"device", device},
                                                             {"pinned", CUdeviceptr(pinned)}};
  if (created == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    need(api.cuMemAddressReserve(&in_place, kBytes, 0, 0, 0), "cuMemAddressReserve");
    need(api.cuMemMap(in_place, kBytes, 0, handle, 0), "cuMemMap");
    need(api.cuMemSetAccess(in_place, kBytes, &access, 1), "cuMemSetAccess");
    places.emplace_back("host_numa", in_place);
  }
  for (auto& [name, address] : places) {
    uint32_t words[32] = {};
    words[0] = 100, words[1] = 50, words[2] = 3, words[3] = 4, words[4] = 11;
    const float single = 2.5f;
    std::memcpy(&words[5], &single, 4);
    const uint64_t wide = 5, one = 1;
    std::memcpy(&words[6], &wide, 8);
    const double twice = 1.25;
    std::memcpy(&words[8], &twice, 8);
    words[10] = 3, words[11] = 7, words[12] = 5;
    std::memcpy(&words[14], &one, 8);
    words[16] = 20;
    need(api.cuMemcpy(address, CUdeviceptr(words), sizeof words), "cuMemcpy");
    need(launchOne(kernels.atomics, {&address}), "atomics");
    record("atomics." + name + ".synchronize", api.cuCtxSynchronize());
    need(api.cuMemcpy(CUdeviceptr(words), address, sizeof words), "cuMemcpy");
    std::string text;
    for (int i = 0; i < 17; ++i) {
      if (i != 0) text += ' ';
      text += std::to_string(words[i]);
    }
    record("atomics." + name + ".words", text);
  }
}

}  // namespace conformance
