// Memory of one device that another one is given access to, each way: by its pool (to what was
// allocated before, and to what is allocated after), by mappings in stripes over both devices, and
// by a handle that is mapped for the other device alone. Kernels of the device that has access read
// and write it, copies run over all of it, while other memory presses it out of VRAM on both.
#include "common.h"

#include <cuda.h>

namespace {

constexpr int kDevices = 2;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = 4 * kMiB;  // of a piece; granularities divide it

void use(int device) { RUNTIME_OK(cudaSetDevice(device)); }

void synchronizeAll() {
  for (int device = 0; device < kDevices; ++device) {
    use(device);
    RUNTIME_OK(cudaDeviceSynchronize());
  }
}

/// Uses all of the room on both devices now and then.
class BothPressed {
 public:
  explicit BothPressed(size_t bytes) {
    for (int device = 0; device < kDevices; ++device) {
      use(device);
      each_[device] = new apps::Pressure(bytes);
    }
  }
  BothPressed(const BothPressed&) = delete;
  BothPressed& operator=(const BothPressed&) = delete;
  ~BothPressed() {
    for (int device = 0; device < kDevices; ++device) {
      use(device);
      delete each_[device];
    }
  }
  void apply() {
    for (int device = 0; device < kDevices; ++device) {
      use(device);
      each_[device]->apply();
    }
    synchronizeAll();
  }
  void check() {
    for (int device = 0; device < kDevices; ++device) {
      use(device);
      each_[device]->check();
    }
  }

 private:
  apps::Pressure* each_[kDevices] = {};
};

void addOn(int device, void* memory, size_t bytes, uint32_t value) {
  use(device);
  apps::add(memory, bytes, value);
  RUNTIME_OK(cudaDeviceSynchronize());
}

/// Both devices add to the memory in turns, pressed out in between.
void inTurns(void* memory, size_t bytes, int owner, uint32_t seed, BothPressed& pressed,
             const char* what) {
  use(owner);
  apps::fill(memory, bytes, seed);
  RUNTIME_OK(cudaDeviceSynchronize());
  uint32_t value = 0;
  for (uint32_t round = 1; round <= 2; ++round) {
    for (int device = kDevices - 1; device >= 0; --device) {
      pressed.apply();
      addOn(device, memory, bytes, round * 10 + uint32_t(device));
      value += round * 10 + uint32_t(device);
    }
  }
  pressed.apply();
  for (int device = 0; device < kDevices; ++device) {
    use(device);
    apps::verify(memory, bytes, seed, value, what);
  }
}

cudaMemAccessFlags accessOf(cudaMemPool_t pool, int device) {
  cudaMemLocation location{};
  location.type = cudaMemLocationTypeDevice;
  location.id = device;
  cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
  RUNTIME_OK(cudaMemPoolGetAccess(&flags, pool, &location));
  return flags;
}

/// `pool` of `owner` gives the other device access.
void throughPool(cudaMemPool_t pool, int owner, uint32_t seed, BothPressed& pressed,
                 const char* what) {
  const int other = 1 - owner;
  cudaMemAccessDesc given{};
  given.location.type = cudaMemLocationTypeDevice;
  given.location.id = other;
  given.flags = cudaMemAccessFlagsProtReadWrite;
  use(owner);
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  void *before = nullptr, *after = nullptr;
  RUNTIME_OK(cudaMallocFromPoolAsync(&before, kBytes, pool, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(accessOf(pool, other) == cudaMemAccessFlagsProtNone,
        "%s: device %d has access from the start", what, other);
  RUNTIME_OK(cudaMemPoolSetAccess(pool, &given, 1));
  CHECK(accessOf(pool, other) == cudaMemAccessFlagsProtReadWrite, "%s: device %d has no access",
        what, other);
  RUNTIME_OK(cudaMallocFromPoolAsync(&after, kBytes, pool, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  inTurns(before, kBytes, owner, seed, pressed, what);
  inTurns(after, kBytes, owner, seed + 1, pressed, what);
  use(owner);
  RUNTIME_OK(cudaFreeAsync(before, stream));
  RUNTIME_OK(cudaFreeAsync(after, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  RUNTIME_OK(cudaStreamDestroy(stream));
}

void pools(uint32_t seed, BothPressed& pressed) {
  cudaMemPool_t current;
  RUNTIME_OK(cudaDeviceGetDefaultMemPool(&current, 0));
  throughPool(current, 0, seed, pressed, "device 0's default pool");
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 1;
  cudaMemPool_t own;
  RUNTIME_OK(cudaMemPoolCreate(&own, &properties));
  throughPool(own, 1, seed + 10, pressed, "a pool of device 1");
  RUNTIME_OK(cudaMemPoolDestroy(own));
}

CUmemGenericAllocationHandle create(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemGenericAllocationHandle handle = 0;
  DRIVER_OK(cuMemCreate(&handle, kBytes, &properties, 0));
  return handle;
}

CUmemAccessDesc access(int device, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

void expectAccess(CUdeviceptr address, int device, CUmemAccess_flags expected, const char* what) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = 99;
  DRIVER_OK(cuMemGetAccess(&flags, &location, address));
  CHECK(flags == static_cast<unsigned long long>(expected), "%s: device %d has access %llu, not %d",
        what, device, flags, int(expected));
}

void unmapAll(CUdeviceptr address, size_t bytes) {
  synchronizeAll();
  DRIVER_OK(cuMemUnmap(address, bytes));
  DRIVER_OK(cuMemAddressFree(address, bytes));
}

/// Pieces of both devices in one range: first for device 0 alone, then for both.
void stripes(uint32_t seed, BothPressed& pressed) {
  constexpr size_t kAll = 4 * kBytes;
  CUdeviceptr address = 0;
  DRIVER_OK(cuMemAddressReserve(&address, kAll, 0, 0, 0));
  for (size_t piece = 0; piece < kAll / kBytes; ++piece) {
    const CUmemGenericAllocationHandle handle = create(int(piece % kDevices));
    DRIVER_OK(cuMemMap(address + piece * kBytes, kBytes, 0, handle, 0));
    DRIVER_OK(cuMemRelease(handle));
  }
  const CUmemAccessDesc first = access(0), both[] = {access(0), access(1)};
  DRIVER_OK(cuMemSetAccess(address, kAll, &first, 1));
  const auto memory = reinterpret_cast<void*>(address);
  expectAccess(address + kBytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "device 1's stripe");
  expectAccess(address + kBytes, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE, "device 1's stripe");
  use(0);
  std::vector<uint32_t> words(kAll / 4);
  for (uint32_t i = 0; i < words.size(); ++i) words[i] = apps::word(i / 4, seed) + i % 4;
  RUNTIME_OK(cudaMemcpy(memory, words.data(), kAll, cudaMemcpyHostToDevice));
  pressed.apply();
  addOn(0, memory, kAll, 7);
  pressed.apply();
  use(0);
  apps::verify(memory, kAll, seed, 7, "stripes for device 0");
  DRIVER_OK(cuMemSetAccess(address, kAll, both, 2));
  inTurns(memory, kAll, 1, seed + 1, pressed, "stripes for both");
  // One stripe of the middle goes, and another one comes.
  synchronizeAll();
  DRIVER_OK(cuMemUnmap(address + kBytes, kBytes));
  const CUmemGenericAllocationHandle again = create(1);
  DRIVER_OK(cuMemMap(address + kBytes, kBytes, 0, again, 0));
  DRIVER_OK(cuMemRelease(again));
  DRIVER_OK(cuMemSetAccess(address + kBytes, kBytes, both, 2));
  inTurns(memory, kAll, 0, seed + 2, pressed, "stripes, one of them new");
  unmapAll(address, kAll);
}

/// A handle of device 1 that device 0 alone may use, then both, then device 1 alone.
void forTheOther(uint32_t seed, BothPressed& pressed) {
  const CUmemGenericAllocationHandle handle = create(1);
  CUdeviceptr address = 0;
  DRIVER_OK(cuMemAddressReserve(&address, kBytes, 0, 0, 0));
  DRIVER_OK(cuMemMap(address, kBytes, 0, handle, 0));
  const auto memory = reinterpret_cast<void*>(address);
  const CUmemAccessDesc other = access(0),
                        reads[] = {access(0, CU_MEM_ACCESS_FLAGS_PROT_READ), access(1)};
  DRIVER_OK(cuMemSetAccess(address, kBytes, &other, 1));
  expectAccess(address, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "device 1's handle");
  expectAccess(address, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE, "device 1's handle");
  use(0);
  apps::fill(memory, kBytes, seed);
  pressed.apply();
  addOn(0, memory, kBytes, 3);
  pressed.apply();
  use(0);
  apps::verify(memory, kBytes, seed, 3, "device 1's handle, for device 0");
  DRIVER_OK(cuMemSetAccess(address, kBytes, reads, 2));
  expectAccess(address, 0, CU_MEM_ACCESS_FLAGS_PROT_READ, "device 1's handle");
  expectAccess(address, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "device 1's handle");
  addOn(1, memory, kBytes, 4);
  pressed.apply();
  use(0);
  apps::verify(memory, kBytes, seed, 7, "device 1's handle, read by device 0");
  const CUmemAccessDesc none = access(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  DRIVER_OK(cuMemSetAccess(address, kBytes, &none, 1));
  expectAccess(address, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE, "device 1's handle");
  addOn(1, memory, kBytes, 5);
  use(1);
  apps::verify(memory, kBytes, seed, 12, "device 1's handle, for itself");
  // A second mapping, in a range of device 0's memory.
  CUdeviceptr range = 0;
  DRIVER_OK(cuMemAddressReserve(&range, 2 * kBytes, 0, 0, 0));
  const CUmemGenericAllocationHandle beside = create(0);
  DRIVER_OK(cuMemMap(range, kBytes, 0, beside, 0));
  DRIVER_OK(cuMemMap(range + kBytes, kBytes, 0, handle, 0));
  DRIVER_OK(cuMemSetAccess(range, 2 * kBytes, &other, 1));
  addOn(0, reinterpret_cast<void*>(range + kBytes), kBytes, 6);
  pressed.apply();
  use(1);
  apps::verify(memory, kBytes, seed, 18, "device 1's handle, mapped twice");
  DRIVER_OK(cuMemRelease(handle));
  DRIVER_OK(cuMemRelease(beside));
  unmapAll(address, kBytes);  // the second mapping has it on
  addOn(0, reinterpret_cast<void*>(range + kBytes), kBytes, 1);
  use(0);
  apps::verify(reinterpret_cast<void*>(range + kBytes), kBytes, seed, 19,
               "device 1's handle, after its first mapping");
  unmapAll(range, 2 * kBytes);
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::needTwoDevices();
  for (int device = 0; device < kDevices; ++device) {
    int can = 0;
    RUNTIME_OK(cudaDeviceCanAccessPeer(&can, device, 1 - device));
    if (can == 0) apps::skip("no access between the devices");
    use(device);
    RUNTIME_OK(cudaFree(nullptr));
  }
  const auto seed = uint32_t(options.seed);
  {
    BothPressed pressed(options.bytes);
    stripes(seed + 100, pressed);
    forTheOther(seed + 200, pressed);
    pools(seed, pressed);
    pressed.check();
  }
  return apps::ok("memory of each of two devices, used by the other");
}
