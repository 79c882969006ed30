// Mappings of the driver's own handles (exportable, imported, multicast or compressed memory) at
// addresses of the range that the program reserved. The mappings are the driver's for good: always
// mapped, never moved. Thread-safety: any thread. Lock: ForeignMaps::mutex; none while there is no
// such mapping.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace olpager::local {

/// True while there is any. One load.
bool anyForeignMap();
/// True when `address` lies in such a mapping. One load while there is none.
bool foreignMapped(CUdeviceptr address);

void foreignMap(CUdeviceptr address, uint64_t bytes);
/// The mappings that [address, + bytes) overlaps: first address and bytes of each.
std::vector<std::pair<CUdeviceptr, uint64_t>> foreignMapsAt(CUdeviceptr address, uint64_t bytes);
/// True when [address, + bytes) was such a mapping, which it is no longer.
bool foreignUnmap(CUdeviceptr address, uint64_t bytes);

}  // namespace olpager::local
