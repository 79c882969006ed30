// Variables of modules and libraries. One in managed memory is exchanged as a block of pinned
// memory is: it stays where the driver has placed it, and the client gets memory at the same
// address.
#include <algorithm>
#include <utility>
#include <vector>

#include "gpunode/worker/services.h"
#include "gpunode/worker/staging.h"
#include "gpunode/worker/worker.h"

namespace olpager::gpunode {
namespace {

using forward::VariableKind;
using forward::VariableMemory;

// True if this process may use managed memory while kernels run: it compares that memory whenever
// launches are made.
bool reachedBesideKernels(Invocation& in) {
  for (int i = 0; i < in.worker().library().devices(); ++i) {
    CUdevice device = 0;
    int concurrent = 0;
    if (in.driver().cuDeviceGet(&device, i) != CUDA_SUCCESS ||
        in.driver().cuDeviceGetAttribute(&concurrent, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                                         device) != CUDA_SUCCESS ||
        concurrent == 0)
      return false;
  }
  return true;
}

// Variables are compared here behind kernels: in host memory, where GPUs use it in place, they need
// not go to and fro for that. The driver's answer changes nothing but the speed.
void stayHere(Invocation& in, CUdeviceptr address, size_t bytes) {
  const api::DriverTable& driver = in.driver();
  if (driver.cuMemAdvise == nullptr) return;
  (void)driver.cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU);
  for (int i = 0; i < in.worker().library().devices(); ++i) {
    CUdevice device = 0;
    if (driver.cuDeviceGet(&device, i) == CUDA_SUCCESS)
      (void)driver.cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
  }
}

using Pieces = std::vector<std::pair<CUdeviceptr, uint64_t>>;  // address and bytes

// By one call, where the driver has one: a call for each of hundreds takes milliseconds. The call
// waits for no other stream: all that was sent is complete (Executors::isFinished).
bool copyAtOnce(const api::DriverTable& driver, const Pieces& pieces, std::byte* into) {
  if (driver.cuMemcpyBatchAsync_v2 == nullptr) return false;
  std::vector<CUdeviceptr> to, from;
  std::vector<size_t> sizes;
  for (const auto& [address, bytes] : pieces) {
    if (bytes != 0) {
      to.push_back(reinterpret_cast<CUdeviceptr>(into));
      from.push_back(address);
      sizes.push_back(bytes);
    }
    into += bytes;
  }
  if (sizes.empty()) return false;
  CUmemcpyAttributes how{};
  how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  const CUresult result = driver.cuMemcpyBatchAsync_v2(
      to.data(), from.data(), sizes.data(), sizes.size(), &how, &first, 1, CU_STREAM_PER_THREAD);
  // Also where it failed: nothing writes there afterwards.
  const CUresult ended = driver.cuStreamSynchronize(CU_STREAM_PER_THREAD);
  return result == CUDA_SUCCESS && ended == CUDA_SUCCESS;
}

// Into pinned memory, when all that was sent is complete.
CUresult copyAll(const api::DriverTable& driver, const Pieces& pieces, std::byte* into) {
  for (const auto& [address, bytes] : pieces) {
    if (bytes != 0) {
      const CUresult result = driver.cuMemcpyDtoHAsync_v2(into, address, bytes, nullptr);
      if (result != CUDA_SUCCESS) return result;
    }
    into += bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult variable(Invocation& in) {
  const auto kind = in.value<VariableKind>();
  const auto number = in.value<uint64_t>();
  const char* const name = in.string();
  if (kind > VariableKind::kLibraryManaged) in.arguments().fail();
  const auto module = kind == VariableKind::kModule ? in.translated<CUmodule>(number) : nullptr;
  const auto library = kind != VariableKind::kModule ? in.translated<CUlibrary>(number) : nullptr;
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (kind == VariableKind::kModule) {
    result = driver.cuModuleGetGlobal_v2(&address, &bytes, module, name);
  } else if (const auto ask = kind == VariableKind::kLibrary ? driver.cuLibraryGetGlobal
                                                             : driver.cuLibraryGetManaged;
             ask != nullptr) {
    result = ask(&address, &bytes, library, name);
  }
  if (result != CUDA_SUCCESS) return result;
  unsigned managed = kind == VariableKind::kLibraryManaged ? 1 : 0;
  if (managed == 0 && bytes != 0 &&
      driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) !=
          CUDA_SUCCESS)
    managed = 0;
  auto memory = VariableMemory::kDevice;
  if (managed != 0) {
    memory = reachedBesideKernels(in) && in.worker().hostMemory().adopt(address, bytes)
                 ? VariableMemory::kManaged
                 : VariableMemory::kOutOfReach;
    if (memory == VariableMemory::kManaged) stayHere(in, address, bytes);
  }
  in.results().value(address);
  in.results().value(static_cast<uint64_t>(bytes));
  in.results().value(memory);
  return result;
}

CUresult managedBytes(Invocation& in) {
  constexpr uint64_t kMost = 4 << 20;
  const auto address = in.value<uint64_t>();
  const auto offset = in.value<uint64_t>();
  const auto bytes = in.value<uint64_t>();
  if (bytes > kMost) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  HostMemory& memory = in.worker().hostMemory();
  std::vector<std::byte> runs;
  if (!memory.isAdopted(address) || !memory.changes(address, offset, bytes, runs))
    return CUDA_ERROR_INVALID_VALUE;
  in.results().raw(runs.data(), runs.size());
  return CUDA_SUCCESS;
}

CUresult managedGone(Invocation& in) {
  const auto address = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  return in.worker().hostMemory().release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// By one wait for all: they are a few bytes each, and there may be hundreds.
CUresult variableBytes(Invocation& in) {
  const auto count = in.value<uint32_t>();
  Pieces asked;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count && in.ok() && bytes <= Staging::kPieceBytes; ++i) {
    const auto address = in.value<uint64_t>();
    const auto length = in.value<uint64_t>();
    asked.emplace_back(address, length);
    bytes += std::min(length, Staging::kPieceBytes + 1);
  }
  if (bytes > Staging::kPieceBytes) in.arguments().fail();
  if (!in.ok()) return in.refusal();
  const api::DriverTable& driver = in.driver();
  Staging& staging = in.worker().staging();
  Staging::Piece* const piece = staging.take(driver, in.head().context);
  if (piece == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool at_once = copyAtOnce(driver, asked, piece->bytes);
  CUresult result = at_once ? CUDA_SUCCESS : copyAll(driver, asked, piece->bytes);
  const CUresult ended = driver.cuStreamSynchronize(nullptr);
  if (result == CUDA_SUCCESS) result = ended;
  if (result == CUDA_SUCCESS) in.results().raw(piece->bytes, bytes);
  ended == CUDA_SUCCESS ? staging.give(piece) : staging.leave(piece);
  return result;
}

}  // namespace olpager::gpunode
