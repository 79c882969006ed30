// Values that the driver takes and gives by untyped pointers are as long as their attributes say.
// Each of them lies here at the very end of a page that nothing follows, behind bytes that have to
// stay as they are: too long an access ends the program, a shifted one shows.
#include <sys/mman.h>
#include <unistd.h>

#include "driver_program.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr unsigned char kBefore = 0xa5;

class PageEnd {
 public:
  PageEnd() : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    void* const mapped =
        mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "%s", "no memory");
    begin_ = static_cast<unsigned char*>(mapped);
    CHECK(mprotect(begin_ + page_, page_, PROT_NONE) == 0, "%s", "a page can't be protected");
  }
  ~PageEnd() { munmap(begin_, 2 * page_); }
  PageEnd(const PageEnd&) = delete;
  PageEnd& operator=(const PageEnd&) = delete;

  /// The last `bytes` of the page; all of it has a pattern.
  void* last(size_t bytes) {
    bytes_ = bytes;
    std::memset(begin_, kBefore, page_);
    return begin_ + page_ - bytes;
  }
  template <typename T>
  T* put(T value) {
    return static_cast<T*>(std::memcpy(last(sizeof value), &value, sizeof value));
  }
  template <typename T>
  T get() const {
    T value;
    std::memcpy(&value, begin_ + page_ - sizeof value, sizeof value);
    return value;
  }
  /// Says what has changed of what lies before the value.
  void check(const char* what, int attribute) const {
    for (size_t i = 0; i < page_ - bytes_; ++i)
      CHECK(begin_[i] == kBefore, "%s %d: a byte %zu before the value was written", what, attribute,
            page_ - bytes_ - i);
  }

 private:
  const size_t page_;
  unsigned char* begin_ = nullptr;
  size_t bytes_ = 0;
};

void pools(CUdevice device) {
  PageEnd end;
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  DRIVER_OK(cuMemPoolCreate(&pool, &properties));
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    for (const int value : {0, 1}) {
      DRIVER_OK(cuMemPoolSetAttribute(pool, attribute, end.put(value)));
      DRIVER_OK(cuMemPoolGetAttribute(pool, attribute, end.last(sizeof value)));
      end.check("pool attribute", attribute);
      CHECK(end.get<int>() == value, "pool attribute %d is %d, not %d", int(attribute),
            end.get<int>(), value);
    }
  }
  const cuuint64_t threshold = (cuuint64_t{5} << 32) + 7;
  DRIVER_OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, end.put(threshold)));
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH}) {
    DRIVER_OK(cuMemPoolGetAttribute(pool, attribute, end.last(sizeof threshold)));
    end.check("pool attribute", attribute);
    const cuuint64_t expected = attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? threshold : 0;
    CHECK(end.get<cuuint64_t>() == expected, "pool attribute %d is %llu", int(attribute),
          static_cast<unsigned long long>(end.get<cuuint64_t>()));
  }
  const auto none = static_cast<CUmemPool_attribute>(1000);
  CHECK(cuMemPoolGetAttribute(pool, none, end.last(0)) == CUDA_ERROR_INVALID_VALUE, "%s",
        "a pool has attribute 1000");
  CHECK(cuMemPoolSetAttribute(pool, none, end.last(0)) == CUDA_ERROR_INVALID_VALUE, "%s",
        "attribute 1000 was set");
  end.check("pool attribute", 1000);
  DRIVER_OK(cuMemPoolDestroy(pool));
}

void graphMemory(CUdevice device) {
  PageEnd end;
  for (const auto attribute :
       {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH}) {
    DRIVER_OK(cuDeviceGetGraphMemAttribute(device, attribute, end.last(sizeof(cuuint64_t))));
    end.check("graph memory attribute", attribute);
    CHECK(end.get<cuuint64_t>() == 0, "graph memory attribute %d is not 0", int(attribute));
  }
  for (const auto attribute :
       {CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH})
    DRIVER_OK(cuDeviceSetGraphMemAttribute(device, attribute, end.put(cuuint64_t{0})));
  const auto none = static_cast<CUgraphMem_attribute>(1000);
  CHECK(cuDeviceGetGraphMemAttribute(device, none, end.last(0)) == CUDA_ERROR_INVALID_VALUE, "%s",
        "a device has attribute 1000 of graph memory");
  CHECK(cuDeviceSetGraphMemAttribute(device, none, end.last(0)) == CUDA_ERROR_INVALID_VALUE, "%s",
        "attribute 1000 of graph memory was set");
}

size_t bytesOf(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return sizeof(int);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS);
    default:
      return sizeof(uint64_t);
  }
}

void pointers(CUdeviceptr address, const char* what) {
  PageEnd end, other;
  for (int i = CU_POINTER_ATTRIBUTE_CONTEXT; i <= CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID; ++i) {
    const auto attribute = static_cast<CUpointer_attribute>(i);
    const size_t bytes = bytesOf(attribute);
    const CUresult alone = cuPointerGetAttribute(end.last(bytes), attribute, address);
    end.check(what, i);
    CUpointer_attribute both[] = {attribute, CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
    unsigned type = 99;
    void* data[] = {other.last(bytes), &type};
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) std::memset(data[0], 0, bytes);
    DRIVER_OK(cuPointerGetAttributes(2, both, data, address));
    other.check(what, i);
    CHECK(type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_HOST,
          "%s: its memory is of type %u", what, type);
    // Tokens are made anew.
    if (alone != CUDA_SUCCESS || attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;
    const bool same = bytes == sizeof(int) ? end.get<int>() == other.get<int>()
                                           : end.get<uint64_t>() == other.get<uint64_t>();
    CHECK(same, "%s %d: alone and with another it is not the same", what, i);
  }
  const auto none = static_cast<CUpointer_attribute>(1000);
  CHECK(cuPointerGetAttribute(end.last(0), none, address) == CUDA_ERROR_INVALID_VALUE,
        "%s has attribute 1000", what);
}

void ranges() {
  CUdeviceptr managed = 0;
  if (cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) return;
  pointers(managed, "managed memory");
  PageEnd end, other;
  for (const auto attribute :
       {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
        CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION}) {
    DRIVER_OK(cuMemRangeGetAttribute(end.last(sizeof(int)), sizeof(int), attribute, managed, kMiB));
    end.check("range attribute", attribute);
  }
  constexpr size_t kDevices = 3;
  DRIVER_OK(cuMemRangeGetAttribute(end.last(kDevices * sizeof(int)), kDevices * sizeof(int),
                                   CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, kMiB));
  end.check("range attribute", CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
  CUmem_range_attribute both[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                  CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};
  void* data[] = {end.last(sizeof(int)), other.last(kDevices * sizeof(int))};
  size_t sizes[] = {sizeof(int), kDevices * sizeof(int)};
  DRIVER_OK(cuMemRangeGetAttributes(data, sizes, both, 2, managed, kMiB));
  end.check("range attributes", both[0]);
  other.check("range attributes", both[1]);
  DRIVER_OK(cuMemFree(managed));
}

// Logs are as long as the option beside them says, and their sizes are told in the options' values.
void logs() {
  const char* const image =
      ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  PageEnd info, error;
  constexpr size_t kRoom = 24;
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  for (const bool good : {true, false}) {
    void* values[] = {info.last(kRoom), reinterpret_cast<void*>(kRoom), error.last(kRoom),
                      reinterpret_cast<void*>(kRoom)};
    CUmodule module = nullptr;
    const CUresult result =
        cuModuleLoadDataEx(&module, good ? image : image + 5, 4, options, values);
    CHECK((result == CUDA_SUCCESS) == good, "a module that is %s: CUresult %d",
          good ? "good" : "none", int(result));
    info.check("log", 0);
    error.check("log", 1);
    if (good) DRIVER_OK(cuModuleUnload(module));
  }
}

void attributeUnions() {
  PageEnd end;
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  auto* value = static_cast<CUstreamAttrValue*>(end.last(sizeof(CUstreamAttrValue)));
  DRIVER_OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, value));
  end.check("stream attribute", CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY);
  DRIVER_OK(cuStreamDestroy(stream));
  auto* uuid = static_cast<CUuuid*>(end.last(sizeof(CUuuid)));
  DRIVER_OK(cuDeviceGetUuid(uuid, 0));
  end.check("UUID", 0);
  // A text is written as far as its end, whatever the room.
  constexpr size_t kRoom = 300;
  auto* name = static_cast<char*>(end.last(kRoom));
  DRIVER_OK(cuDeviceGetName(name, kRoom, 0));
  end.check("name", 0);
  CHECK(std::memchr(name, 0, kRoom) != nullptr, "%s", "a name has no end");
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const CUdevice device = apps::usePrimaryContext();
  graphMemory(device);
  pools(device);
  // Memory in all tiers.
  const apps::Bump bump(4);
  std::vector<CUdeviceptr> buffers(options.bytes / (2 * kMiB));
  for (auto& buffer : buffers) {
    DRIVER_OK(cuMemAlloc(&buffer, 2 * kMiB));
    bump(buffer, 2 * kMiB / 4, 1);
  }
  for (const CUdeviceptr buffer : {buffers.front(), buffers.back()})
    pointers(buffer, "device memory");
  PageEnd end;
  DRIVER_OK(cuPointerSetAttribute(end.put(1u), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffers.front()));
  for (const CUdeviceptr buffer : buffers) DRIVER_OK(cuMemFree(buffer));
  CUdeviceptr ordered = 0;
  DRIVER_OK(cuMemAllocAsync(&ordered, kMiB, nullptr));
  pointers(ordered, "stream-ordered memory");
  DRIVER_OK(cuMemFreeAsync(ordered, nullptr));
  void* pinned = nullptr;
  DRIVER_OK(cuMemHostAlloc(&pinned, kMiB, 0));
  pointers(reinterpret_cast<CUdeviceptr>(pinned), "pinned memory");
  DRIVER_OK(cuMemFreeHost(pinned));
  ranges();
  logs();
  attributeUnions();
  return apps::ok("values at the ends of pages");
}
