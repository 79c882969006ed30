// The program's own virtual memory management: segments that grow, two mappings of one handle,
// sleep (unmap and release everything, map again at the same addresses), and remapping of what was
// saved.
#include <algorithm>

#include "driver_program.h"

namespace {

struct Segment {
  CUmemGenericAllocationHandle handle = 0;
};

CUmemAllocationProp deviceProperties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

void allow(CUdeviceptr address, size_t bytes) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER_OK(cuMemSetAccess(address, bytes, &access, 1));
}

void stamp(CUdeviceptr address, size_t bytes, uint32_t seed) {
  std::vector<uint32_t> words(bytes / 4);
  for (uint32_t i = 0; i < words.size(); ++i) words[i] = apps::word(i, seed);
  DRIVER_OK(cuMemcpyHtoD(address, words.data(), bytes));
}

void check(CUdeviceptr address, size_t bytes, uint32_t seed, const char* what) {
  std::vector<uint32_t> words(bytes / 4);
  DRIVER_OK(cuMemcpyDtoH(words.data(), address, bytes));
  for (uint32_t i = 0; i < words.size(); ++i) {
    const uint32_t expected = apps::word(i, seed);
    CHECK(words[i] == expected, "%s: word %u is %#x, expected %#x", what, i, words[i], expected);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump bump(4);
  const CUmemAllocationProp prop = deviceProperties();
  size_t g = 0;
  DRIVER_OK(cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  const size_t segments = options.bytes / g < 4 ? 4 : options.bytes / g;
  CUdeviceptr base;
  DRIVER_OK(cuMemAddressReserve(&base, 2 * segments * g, 0, 0, 0));
  std::vector<Segment> made(segments);
  // An expandable segment: it grows at its end.
  for (size_t s = 0; s < segments; ++s) {
    DRIVER_OK(cuMemCreate(&made[s].handle, g, &prop, 0));
    DRIVER_OK(cuMemMap(base + s * g, g, 0, made[s].handle, 0));
    allow(base + s * g, g);
    stamp(base + s * g, g, seed + uint32_t(s));
  }
  for (size_t s = 0; s < segments; ++s) check(base + s * g, g, seed + uint32_t(s), "segment");
  // Kernels on all of them in turn, in pieces that cross from one segment into the next; what they
  // add they take away.
  for (const uint32_t value : {5u, 7u, 0u - 12u}) {
    for (size_t at = 0; at < segments * g; at += g + g / 2) {
      const size_t bytes = std::min(g + g / 2, segments * g - at);
      bump(base + at, uint32_t(bytes / 4), value);
    }
  }
  DRIVER_OK(cuCtxSynchronize());
  for (size_t s = 0; s < segments; ++s)
    check(base + s * g, g, seed + uint32_t(s), "segment after kernels");
  // One copy and one memset across many segments.
  DRIVER_OK(cuMemcpyDtoD(base + g / 2, base + 2 * g, g));
  check(base + g / 2, g, seed + 2, "copy across segments");
  DRIVER_OK(cuMemsetD32(base + g / 2, 0x01020304, g / 4));
  std::vector<uint32_t> set(g / 4);
  DRIVER_OK(cuMemcpyDtoH(set.data(), base + g / 2, g));
  for (uint32_t word : set) CHECK(word == 0x01020304, "memset across segments left %#x", word);
  stamp(base, g, seed);
  stamp(base + g, g, seed + 1);
  // A second mapping of the same memory.
  const CUdeviceptr alias = base + segments * g;
  DRIVER_OK(cuMemMap(alias, g, 0, made[1].handle, 0));
  allow(alias, g);
  check(alias, g, seed + 1, "alias");
  stamp(alias, g, seed + 1000);
  check(base + g, g, seed + 1000, "original after a write through its alias");
  DRIVER_OK(cuMemUnmap(alias, g));
  check(base + g, g, seed + 1000, "original after its alias is gone");
  stamp(base + g, g, seed + 1);
  // The middle goes and comes back with the same handle.
  DRIVER_OK(cuCtxSynchronize());
  DRIVER_OK(cuMemUnmap(base + 2 * g, g));
  DRIVER_OK(cuMemMap(base + segments * g, g, 0, made[2].handle, 0));
  allow(base + segments * g, g);
  check(base + segments * g, g, seed + 2, "segment moved to another address");
  DRIVER_OK(cuMemUnmap(base + segments * g, g));
  DRIVER_OK(cuMemMap(base + 2 * g, g, 0, made[2].handle, 0));
  allow(base + 2 * g, g);
  check(base + 2 * g, g, seed + 2, "segment back at its address");
  // Sleep: everything is saved, unmapped and released; then it wakes at the same addresses.
  for (int night = 0; night < 2; ++night) {
    std::vector<std::vector<uint32_t>> saved(segments, std::vector<uint32_t>(g / 4));
    for (size_t s = 0; s < segments; ++s) DRIVER_OK(cuMemcpyDtoH(saved[s].data(), base + s * g, g));
    for (size_t s = 0; s < segments; ++s) {
      DRIVER_OK(cuMemRelease(made[s].handle));  // released first: it lives until it is unmapped
      DRIVER_OK(cuMemUnmap(base + s * g, g));
    }
    for (size_t s = 0; s < segments; ++s) {
      DRIVER_OK(cuMemCreate(&made[s].handle, g, &prop, 0));
      DRIVER_OK(cuMemMap(base + s * g, g, 0, made[s].handle, 0));
    }
    allow(base, segments * g);
    for (size_t s = 0; s < segments; ++s) DRIVER_OK(cuMemcpyHtoD(base + s * g, saved[s].data(), g));
    for (size_t s = 0; s < segments; ++s)
      check(base + s * g, g, seed + uint32_t(s), "segment after sleep");
  }
  CUmemGenericAllocationHandle retained = 0;
  DRIVER_OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(base + g + 4096)));
  CHECK(retained == made[1].handle,
        "the handle of an address is not the one that was mapped there");
  DRIVER_OK(cuMemRelease(retained));
  DRIVER_OK(cuMemUnmap(base, segments * g));
  for (Segment& segment : made) DRIVER_OK(cuMemRelease(segment.handle));
  DRIVER_OK(cuMemAddressFree(base, 2 * segments * g));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("vmm with %zu segments of %zu KiB", segments, g >> 10);
}
