// The driver's answers about an address, for each kind of memory and for places inside, at the end
// of and beyond it.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "record.h"

namespace conformance {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// One piece of memory to ask about.
struct Piece {
  std::string name;
  CUdeviceptr base = 0;
  size_t bytes = 0;
};

/// The place of `address`, in words that don't change from run to run.
std::string place(CUdeviceptr address, const Piece& piece, CUdeviceptr asked) {
  if (address == 0) return "null";
  if (address == asked && asked != piece.base) return "as asked";
  if (address >= piece.base && address <= piece.base + piece.bytes)
    return "base+" + std::to_string(address - piece.base);
  if (address < piece.base && piece.base - address < 64 * kMiB) return "below base";
  return "elsewhere";
}

const char* attributeName(int attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return "context";
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return "memory_type";
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return "device_pointer";
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return "host_pointer";
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return "p2p_tokens";
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return "sync_memops";
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return "buffer_id";
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return "is_managed";
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return "device_ordinal";
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return "ipc_capable";
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return "range_start";
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return "range_size";
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return "mapped";
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return "handle_types";
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return "rdma_capable";
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return "access_flags";
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return "mempool";
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return "mapping_size";
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return "mapping_base";
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return "block_id";
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return "decompress_capable";
    default:
      return "unknown";
  }
}

std::string answer(int attribute, const uint8_t* raw, const Piece& piece, CUdeviceptr asked,
                   const Base& base, CUmemoryPool pool) {
  uint64_t wide;
  uint32_t narrow;
  std::memcpy(&wide, raw, 8);
  std::memcpy(&narrow, raw, 4);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return wide == 0                                          ? "null"
             : wide == reinterpret_cast<uint64_t>(base.context) ? "current"
                                                                : "other";
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return place(wide, piece, asked);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return "some";
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return wide == 0 ? "zero" : "some";
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return std::to_string(wide);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return wide == 0 ? "null" : wide == reinterpret_cast<uint64_t>(pool) ? "its pool" : "other";
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return std::to_string(raw[0]);  // a bool or an int of 0 or 1
    default:
      return std::to_string(int32_t(narrow));
  }
}

/// Every question about one address.
void ask(const Piece& piece, const char* where, CUdeviceptr address, const Base& base,
         CUmemoryPool pool) {
  const std::string prefix = "pointers." + piece.name + "." + where + ".";
  for (int attribute = 1; attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++attribute) {
    alignas(8) uint8_t raw[64] = {};
    const CUresult rc = api.cuPointerGetAttribute(raw, CUpointer_attribute(attribute), address);
    record(prefix + attributeName(attribute),
           rc == CUDA_SUCCESS ? answer(attribute, raw, piece, address, base, pool) : text(rc));
  }
  // The form that never fails for an unknown address, with the attributes that
  // cudaPointerGetAttributes asks for.
  CUcontext context = nullptr;
  CUmemorytype type{};
  CUdeviceptr device_pointer = 0;
  void* host_pointer = nullptr;
  unsigned managed = 0;
  int ordinal = -5;
  CUpointer_attribute ids[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* answers[] = {&context, &type, &device_pointer, &host_pointer, &managed, &ordinal};
  const CUresult rc = api.cuPointerGetAttributes(6, ids, answers, address);
  record(prefix + "several", rc == CUDA_SUCCESS
                                 ? std::string(context == nullptr        ? "null"
                                               : context == base.context ? "current"
                                                                         : "other") +
                                       " type " + std::to_string(int(type)) + " device " +
                                       place(device_pointer, piece, address) + " host " +
                                       place(CUdeviceptr(host_pointer), piece, address) +
                                       " managed " + std::to_string(managed & 0xff) + " ordinal " +
                                       std::to_string(ordinal)
                                 : text(rc));
  CUdeviceptr range = 0;
  size_t bytes = 0;
  const CUresult ranged = api.cuMemGetAddressRange(&range, &bytes, address);
  record(prefix + "address_range",
         ranged == CUDA_SUCCESS ? place(range, piece, address) + " size " + std::to_string(bytes)
                                : text(ranged));
}

/// Questions that need the base only.
void askBase(const Piece& piece) {
  const std::string prefix = "pointers." + piece.name + ".";
  CUdeviceptr device_pointer = 0;
  record(prefix + "host_get_device_pointer",
         api.cuMemHostGetDevicePointer(&device_pointer, reinterpret_cast<void*>(piece.base), 0));
  unsigned flags = 0;
  const CUresult flagged = api.cuMemHostGetFlags(&flags, reinterpret_cast<void*>(piece.base));
  recordNumberOr(prefix + "host_get_flags", flagged, flags);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult retained =
      api.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(piece.base));
  record(prefix + "retain_handle", retained);
  if (retained == CUDA_SUCCESS) record(prefix + "retain_handle.release", api.cuMemRelease(handle));
  CUipcMemHandle ipc;
  record(prefix + "ipc_get_handle", api.cuIpcGetMemHandle(&ipc, piece.base));
  unsigned long long access = 0;
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  const CUresult accessed = api.cuMemGetAccess(&access, &location, piece.base);
  recordNumberOr(prefix + "get_access", accessed, int64_t(access));
}

CUmemAllocationProp properties(CUmemLocationType type) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = type;
  return prop;
}

/// Memory mapped by hand; 0 and a recorded error when the driver refuses.
Piece mapped(const char* name, const CUmemAllocationProp& prop, size_t bytes, bool access) {
  Piece piece{name, 0, bytes};
  CUmemGenericAllocationHandle handle;
  const CUresult created = api.cuMemCreate(&handle, bytes, &prop, 0);
  record(std::string("pointers.") + name + ".create", created);
  if (created != CUDA_SUCCESS) return piece;
  need(api.cuMemAddressReserve(&piece.base, bytes, 0, 0, 0), "cuMemAddressReserve");
  need(api.cuMemMap(piece.base, bytes, 0, handle, 0), "cuMemMap");
  if (access) {
    CUmemAccessDesc descriptor{};
    descriptor.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    descriptor.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    record(std::string("pointers.") + name + ".set_access",
           api.cuMemSetAccess(piece.base, bytes, &descriptor, 1));
  }
  return piece;
}

}  // namespace

void sectionPointers() {
  const Base base;
  CUmemoryPool pool = nullptr;
  record("pointers.default_pool", api.cuDeviceGetDefaultMemPool(&pool, base.device));

  std::vector<Piece> pieces;
  const auto add = [&](const char* name, CUresult rc, CUdeviceptr address, size_t bytes) {
    record(std::string("pointers.") + name + ".allocate", rc);
    if (rc == CUDA_SUCCESS) pieces.push_back({name, address, bytes});
  };
  CUdeviceptr p = 0;
  CUresult rc = api.cuMemAlloc(&p, 1000);
  add("device_1000", rc, p, 1000);
  rc = api.cuMemAlloc(&p, 3 * kMiB);
  add("device_3m", rc, p, 3 * kMiB);
  rc = api.cuMemAlloc(&p, 32 * kMiB);
  add("device_32m", rc, p, 32 * kMiB);
  size_t pitch = 0;
  rc = api.cuMemAllocPitch(&p, &pitch, 1000, 5000, 4);
  add("pitched", rc, p, pitch * 5000);
  recordNumberOr("pointers.pitched.pitch", rc, int64_t(pitch));
  rc = api.cuMemAllocAsync(&p, 100000, nullptr);
  add("stream_ordered", rc, p, 100000);
  api.cuCtxSynchronize();
  void* host = nullptr;
  rc = api.cuMemHostAlloc(&host, 4 * kMiB, 0);
  add("host_alloc", rc, CUdeviceptr(host), 4 * kMiB);
  rc = api.cuMemHostAlloc(&host, 65536, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  add("host_alloc_mapped", rc, CUdeviceptr(host), 65536);
  rc = api.cuMemHostAlloc(&host, 65536, CU_MEMHOSTALLOC_WRITECOMBINED);
  add("host_alloc_combined", rc, CUdeviceptr(host), 65536);
  void* pages = mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(pages, 1, 4 * kMiB);
  rc = api.cuMemHostRegister(pages, 4 * kMiB,
                             CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  add("registered", rc, CUdeviceptr(pages), 4 * kMiB);
  rc = api.cuMemAllocManaged(&p, 3 * kMiB, CU_MEM_ATTACH_GLOBAL);
  add("managed", rc, p, 3 * kMiB);

  size_t granularity = 0;
  const CUmemAllocationProp device = properties(CU_MEM_LOCATION_TYPE_DEVICE);
  need(api.cuMemGetAllocationGranularity(&granularity, &device, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
       "granularity");
  recordNumber("pointers.granularity", int64_t(granularity));
  CUmemAllocationProp exportable = device;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUmemAllocationProp numa = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA);
  for (Piece& piece : std::vector<Piece>{mapped("vmm_device", device, 4 * granularity, true),
                                         mapped("vmm_device_no_access", device, granularity, false),
                                         mapped("vmm_exportable", exportable, granularity, true),
                                         mapped("vmm_host_numa", numa, 2 * granularity, true)}) {
    if (piece.base != 0) pieces.push_back(piece);
  }
  Piece reserved{"reserved", 0, 4 * granularity};
  need(api.cuMemAddressReserve(&reserved.base, reserved.bytes, 0, 0, 0), "cuMemAddressReserve");
  pieces.push_back(reserved);
  const Kernels kernels;
  CUdeviceptr global = 0;
  size_t global_bytes = 0;
  need(api.cuModuleGetGlobal(&global, &global_bytes, kernels.module, "table"), "cuModuleGetGlobal");
  pieces.push_back({"module_global", global, global_bytes});
  void* plain = nullptr;
  if (posix_memalign(&plain, 4096, kMiB) != 0) std::exit(3);
  pieces.push_back({"malloc", CUdeviceptr(plain), kMiB});

  for (const Piece& piece : pieces) {
    ask(piece, "base", piece.base, base, pool);
    ask(piece, "interior", piece.base + piece.bytes / 2 + 4, base, pool);
    ask(piece, "last", piece.base + piece.bytes - 1, base, pool);
    askBase(piece);
  }
  ask({"null", 0, 0}, "base", 0, base, pool);
  ask({"garbage", 0x1234, 0}, "base", 0x1234, base, pool);
  ask({"noncanonical", 0x8000000000000000ull, 0}, "base", 0x8000000000000000ull, base, pool);

  // Freed memory is unknown again.
  CUdeviceptr freed = 0;
  need(api.cuMemAlloc(&freed, 32 * kMiB), "cuMemAlloc");
  need(api.cuMemFree(freed), "cuMemFree");
  ask({"freed", freed, 32 * kMiB}, "base", freed, base, pool);

  // Odd arguments.
  uint64_t value = 0;
  record("pointers.errors.null_data",
         api.cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pieces[0].base));
  record("pointers.errors.attribute_0",
         api.cuPointerGetAttribute(&value, CUpointer_attribute(0), pieces[0].base));
  record("pointers.errors.attribute_99",
         api.cuPointerGetAttribute(&value, CUpointer_attribute(99), pieces[0].base));
  CUpointer_attribute bad[] = {CUpointer_attribute(99)};
  void* answers[] = {&value};
  record("pointers.errors.several_attribute_99",
         api.cuPointerGetAttributes(1, bad, answers, pieces[0].base));
  record("pointers.errors.several_none",
         api.cuPointerGetAttributes(0, bad, answers, pieces[0].base));
  record("pointers.errors.range_null_outputs",
         api.cuMemGetAddressRange(nullptr, nullptr, pieces[0].base));
  CUdeviceptr start = 0;
  record("pointers.errors.range_base_only",
         api.cuMemGetAddressRange(&start, nullptr, pieces[0].base));
  size_t bytes = 0;
  record("pointers.errors.range_size_only",
         api.cuMemGetAddressRange(nullptr, &bytes, pieces[0].base));

  // SYNC_MEMOPS can be set, and is read back.
  unsigned one = 1, got = 9;
  for (const Piece& piece : pieces) {
    const std::string prefix = "pointers." + piece.name + ".set_sync_memops";
    const CUresult set =
        api.cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, piece.base);
    record(prefix, set);
    if (set != CUDA_SUCCESS) continue;
    const CUresult read =
        api.cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, piece.base);
    recordNumberOr(prefix + ".read_back", read, int64_t(got & 1));
  }
  record("pointers.errors.set_context",
         api.cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_CONTEXT, pieces[0].base));
  // Ids of two allocations differ; of two places in one they are equal.
  uint64_t first = 0, second = 0, inside = 0;
  api.cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, pieces[1].base);
  api.cuPointerGetAttribute(&inside, CU_POINTER_ATTRIBUTE_BUFFER_ID, pieces[1].base + 4096);
  api.cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, pieces[2].base);
  recordBool("pointers.buffer_id.same_inside", first == inside);
  recordBool("pointers.buffer_id.differs", first != second);
  // Without a current context.
  need(api.cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
  ask({"device_3m_no_context", pieces[1].base, pieces[1].bytes}, "base", pieces[1].base, base,
      pool);
}

}  // namespace conformance
