#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

using namespace simgpu_test;

namespace {

/// True if the CPU can read a byte there, asked of the kernel.
bool cpuCanRead(CUdeviceptr address) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool can = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return can;
}

}  // namespace

TEST_CASE("16 TiB are reserved at an address of choice at once", "[vmm]") {
#if defined(__SANITIZE_THREAD__)
  return;  // that range is the sanitizer's
#endif
  OK(CU(cuInit)(0));
  constexpr CUdeviceptr kBase = 0x210000000000ull;
  constexpr size_t kSize = size_t{16} << 40;
  CUdeviceptr p = 0;
  OK(CU(cuMemAddressReserve)(&p, kSize, 0, kBase, 0));
  CHECK(p == kBase);
  CHECK_FALSE(cpuCanRead(p));
  CHECK(CU(cuMemAddressFree)(p, kPage) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemAddressFree)(p, kSize));
  OK(CU(cuMemAddressReserve)(&p, 4 * kPage, 64 << 20, 0, 0));
  CHECK(p % (64 << 20) == 0);
  OK(CU(cuMemAddressFree)(p, 4 * kPage));
  CHECK(CU(cuMemAddressReserve)(&p, 4096, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("device chunks are mapped, aliased, and live until unmapped and released", "[vmm]") {
  const Primary primary;
  const size_t before = freeBytes();
  const auto prop = chunkOf(CU_MEM_LOCATION_TYPE_DEVICE);
  const auto access = accessFor(CU_MEM_LOCATION_TYPE_DEVICE);
  CUmemGenericAllocationHandle handle = 0;
  OK(CU(cuMemCreate)(&handle, 2 * kPage, &prop, 0));
  CHECK(freeBytes() == before - 2 * kPage);
  CUdeviceptr a = 0, b = 0;
  OK(CU(cuMemAddressReserve)(&a, 8 * kPage, 0, 0, 0));
  OK(CU(cuMemAddressReserve)(&b, 2 * kPage, 0, 0, 0));
  OK(CU(cuMemMap)(a + kPage, 2 * kPage, 0, handle, 0));
  CHECK(CU(cuMemMap)(a + 2 * kPage, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuMemMap)(a + 4 * kPage, kPage, kPage, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(CU(cuMemsetD8)(a + kPage, 1, 16) == CUDA_ERROR_INVALID_VALUE);  // no access yet
  OK(CU(cuMemSetAccess)(a + kPage, 2 * kPage, &access, 1));
  OK(CU(cuMemMap)(b, 2 * kPage, 0, handle, 0));
  OK(CU(cuMemSetAccess)(b, 2 * kPage, &access, 1));
  OK(CU(cuMemsetD32)(a + kPage, 0xfeedface, kPage / 2));
  uint32_t word = 0;
  OK(CU(cuMemcpyDtoH)(&word, b + 2 * kPage - 4, 4));
  CHECK(word == 0xfeedface);
  CHECK_FALSE(cpuCanRead(a + kPage));
  OK(CU(cuMemRelease)(handle));
  CHECK(CU(cuMemRelease)(handle) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemUnmap)(a + kPage, 2 * kPage));
  OK(CU(cuMemcpyDtoH)(&word, b, 4));
  CHECK(word == 0xfeedface);
  CHECK(freeBytes() == before - 2 * kPage);
  CUmemGenericAllocationHandle retained = 0;
  OK(CU(cuMemRetainAllocationHandle)(&retained, reinterpret_cast<void*>(b + 5)));
  OK(CU(cuMemUnmap)(b, 2 * kPage));
  CHECK(freeBytes() == before - 2 * kPage);
  OK(CU(cuMemRelease)(retained));
  CHECK(freeBytes() == before);
  OK(CU(cuMemAddressFree)(a, 8 * kPage));
  OK(CU(cuMemAddressFree)(b, 2 * kPage));
}

TEST_CASE("host chunks are read and written in place by both sides", "[vmm]") {
  const Primary primary;
  const size_t before = freeBytes();
  for (const auto type : {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
                          CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}) {
    const auto prop = chunkOf(type);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult made = CU(cuMemCreate)(&handle, 4 * kPage, &prop, 0);
    const char* numa = std::getenv("OL_SIM_HOST_NUMA");
    if (type != CU_MEM_LOCATION_TYPE_HOST && numa != nullptr && std::string(numa) == "0") {
      CHECK(made == CUDA_ERROR_NOT_SUPPORTED);
      continue;
    }
    OK(made);
    CHECK(freeBytes() == before);
    CUdeviceptr p = 0;
    OK(CU(cuMemAddressReserve)(&p, 4 * kPage, 0, 0, 0));
    OK(CU(cuMemMap)(p, 4 * kPage, 0, handle, 0));
    CUmemAccessDesc both[] = {accessFor(CU_MEM_LOCATION_TYPE_DEVICE),
                              accessFor(CU_MEM_LOCATION_TYPE_HOST)};
    OK(CU(cuMemSetAccess)(p, 4 * kPage, both, 2));
    auto* words = reinterpret_cast<uint32_t*>(p);
    words[0] = 77;
    OK(CU(cuMemcpyDtoD)(p + 3 * kPage, p, 4));
    OK(CU(cuCtxSynchronize)());
    CHECK(words[3 * kPage / 4] == 77);
    const auto read_only = accessFor(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    OK(CU(cuMemSetAccess)(p, 4 * kPage, &read_only, 1));
    CHECK(CU(cuMemsetD8)(p, 1, 16) == CUDA_ERROR_INVALID_VALUE);
    unsigned long long flags = 0;
    OK(CU(cuMemGetAccess)(&flags, &read_only.location, p));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
    OK(CU(cuMemUnmap)(p, 4 * kPage));
    CHECK_FALSE(cpuCanRead(p));
    OK(CU(cuMemRelease)(handle));
    OK(CU(cuMemAddressFree)(p, 4 * kPage));
  }
}

TEST_CASE("a chunk goes through a file descriptor", "[vmm]") {
  const Primary primary;
  const size_t before = freeBytes();
  auto prop = chunkOf(CU_MEM_LOCATION_TYPE_DEVICE);
  const auto access = accessFor(CU_MEM_LOCATION_TYPE_DEVICE);
  CUmemGenericAllocationHandle plain = 0, handle = 0, imported = 0;
  int fd = -1;
  OK(CU(cuMemCreate)(&plain, kPage, &prop, 0));
  CHECK(CU(cuMemExportToShareableHandle)(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuMemRelease)(plain));
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  OK(CU(cuMemCreate)(&handle, kPage, &prop, 0));
  CHECK(freeBytes() == before - kPage);
  OK(CU(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  OK(CU(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void*>(intptr_t(fd)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr p = 0;
  OK(CU(cuMemAddressReserve)(&p, 2 * kPage, 0, 0, 0));
  OK(CU(cuMemMap)(p, kPage, 0, handle, 0));
  OK(CU(cuMemMap)(p + kPage, kPage, 0, imported, 0));
  OK(CU(cuMemSetAccess)(p, 2 * kPage, &access, 1));
  OK(CU(cuMemsetD8)(p, 0x5c, kPage));
  uint8_t byte = 0;
  OK(CU(cuMemcpyDtoH)(&byte, p + 2 * kPage - 1, 1));
  CHECK(byte == 0x5c);
  OK(CU(cuMemUnmap)(p, 2 * kPage));
  OK(CU(cuMemRelease)(handle));
  OK(CU(cuMemRelease)(imported));
  CHECK(freeBytes() == before);
  OK(CU(cuMemAddressFree)(p, 2 * kPage));
  CHECK(CU(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void*>(intptr_t(0)),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
        CUDA_SUCCESS);
}
