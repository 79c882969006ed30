#include "interpose/private_tables/private_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "interpose/private_tables/compile_cache.h"
#include "interpose/private_tables/md2.h"

namespace olpager::interpose {
namespace {

std::atomic<PrivateTables*> g_tables{nullptr};

PrivateTables* tables() { return g_tables.load(std::memory_order_acquire); }

using Word = const void*;

template <typename F>
Word code(F* function) {
  return reinterpret_cast<Word>(function);
}

Word byteSize(size_t words) { return reinterpret_cast<Word>(words * sizeof(Word)); }

enum class Table { cudart, hooks, tls, checks, integrity, contexts, functions, topology };

const char* tableName(Table table) {
  switch (table) {
    case Table::cudart:
      return "6bd5fb6c";
    case Table::hooks:
      return "a094798c";
    case Table::tls:
      return "42d85a81";
    case Table::checks:
      return "263e8860";
    case Table::integrity:
      return "d4082055";
    case Table::contexts:
      return "21318c60";
    case Table::functions:
      return "6e163fbe";
    case Table::topology:
      return "1734dc26";
  }
  return "?";
}

// Stands in every slot whose function is not known: a named error instead of a jump to address 0.
template <Table table, int slot>
CUresult unsupported() {
  static std::atomic<bool> told{false};
  PrivateTables* self = tables();
  if (self != nullptr && !told.exchange(true))
    self->host().unsupportedCalled(tableName(table), slot);
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <Table table, size_t words>
struct Slots {
  std::array<Word, words> word;

  Slots() : Slots(std::make_index_sequence<words>()) {}
  Slots& set(size_t slot, Word function) {
    word[slot] = function;
    return *this;
  }

 private:
  template <size_t... i>
  explicit Slots(std::index_sequence<i...>)
      : word{(i == 0 ? byteSize(words) : code(&unsupported<table, static_cast<int>(i)>))...} {}
};

// --- CUDART_INTERFACE ----------------------------------------------------------------------------

CUresult primaryContext(CUcontext* context, CUdevice device) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return self->host().primaryContextHandle(device, context);
}

// --- TOOLS_RUNTIME_CALLBACK_HOOKS: all-zero flags, so that the runtime never calls a hook --------

constexpr size_t kApiFlags =
    1024;  // the runtime refuses fewer than its number of API functions (523 in 13.0)
constexpr size_t kEventFlags = 14;
uint32_t g_api_flags[kApiFlags];
uint32_t g_event_flags[16];

void apiFlags(uint32_t** flags, size_t* count) {
  *flags = g_api_flags;
  *count = kApiFlags;
}

void eventFlags(uint32_t** flags, size_t* count) {
  *flags = g_event_flags;
  *count = kEventFlags;
}

// --- TOOLS_TLS -----------------------------------------------------------------------------------

CUresult currentContext(CUcontext* context) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = self->host().currentContext();
  return CUDA_SUCCESS;
}

// --- CONTEXT_LOCAL_STORAGE -----------------------------------------------------------------------

// 0 and -1 both name the calling thread's current context.
CUcontext resolveContext(PrivateTables& self, CUcontext context) {
  if (context == nullptr || reinterpret_cast<intptr_t>(context) == -1)
    return self.host().currentContext();
  return context;
}

CUresult storagePut(CUcontext context, void* key, void* value,
                    ContextStorage::Destructor destructor) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  const CUcontext resolved = resolveContext(*self, context);
  if (resolved == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  self->storage().put(resolved, key, value, destructor);
  return CUDA_SUCCESS;
}

CUresult storageErase(CUcontext context, void* key) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  const CUcontext resolved = resolveContext(*self, context);
  if (resolved == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return self->storage().erase(resolved, key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storageGet(void** value, CUcontext context, void* key) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext resolved = resolveContext(*self, context);
  if (resolved == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return self->storage().get(resolved, key, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// --- CONTEXT_CHECKS ------------------------------------------------------------------------------

// The third argument stays as it is: callers read it only where the first result is not 0.
CUresult checkContext(CUcontext, uint32_t* result, const void**) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *result = 0;
  return CUDA_SUCCESS;
}

uint32_t checkFork() { return 0; }

// --- INTEGRITY_CHECK -----------------------------------------------------------------------------

CUresult integrityCheck(uint32_t version, uint64_t unix_seconds, uint64_t result[2]);

// --- contexts and streams by id ------------------------------------------------------------------

CUresult contextId(CUcontext context, uint64_t* id) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return self->host().contextId(context, id);
}

// The internal stream object is only handed back to streamKey; the stream itself serves, the
// default stream as 1.
CUresult streamObject(CUcontext, CUstream stream, void** object) {
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<intptr_t>(stream) == -1) return CUDA_ERROR_INVALID_HANDLE;
  *object = stream != nullptr ? static_cast<void*>(stream) : CU_STREAM_LEGACY;
  return CUDA_SUCCESS;
}

CUresult streamKey(CUcontext context, void* object, uint64_t* id) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return self->host().streamId(context, static_cast<CUstream>(object), id);
}

// --- functions of a module -----------------------------------------------------------------------

using FunctionCallback = void (*)(void* user, CUfunction function, void* module);

// Returns the number of functions, 0 for an error.
int forEachFunction(CUcontext, CUmodule module, FunctionCallback callback, void* user) {
  PrivateTables* self = tables();
  if (self == nullptr || callback == nullptr) return 0;
  std::vector<CUfunction> functions;
  if (self->host().moduleFunctions(module, &functions) != CUDA_SUCCESS) return 0;
  for (CUfunction function : functions) callback(user, function, module);
  return static_cast<int>(functions.size());
}

// --- the map of multiprocessors: callers take their default path when it is not supported, but nee

CUresult noTopology(uint8_t**, void**) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult releaseTopology(uint8_t*, void*) { return CUDA_SUCCESS; }

// --- the tables ----------------------------------------------------------------------------------

struct AllTables {
  Slots<Table::cudart, 13> cudart;
  Slots<Table::hooks, 7> hooks;
  Slots<Table::tls, 3> tls;
  std::array<Word, 4> storage{code(&storagePut), code(&storageErase), code(&storageGet),
                              nullptr};  // no size word
  Slots<Table::checks, 15> checks;
  Slots<Table::integrity, 3> integrity;
  Slots<Table::contexts, 93> contexts;
  Slots<Table::functions, 105> functions;
  Slots<Table::topology, 17> topology;

  AllTables() {
    cudart.set(2, code(&primaryContext)).set(10, nullptr);
    hooks.set(2, code(&apiFlags)).set(6, code(&eventFlags));
    tls.set(2, code(&currentContext));
    checks.set(2, code(&checkContext)).set(3, code(&checkFork));
    integrity.set(1, code(&integrityCheck));
    contexts.set(4, code(&contextId)).set(39, code(&streamKey)).set(51, code(&streamObject));
    functions.set(7, code(&forEachFunction));
    topology.set(4, code(&noTopology)).set(13, code(&releaseTopology));
  }
};

// Never destroyed: the runtime calls its tables from exit handlers, in any order.
AllTables& allTables() {
  static AllTables* const all = new AllTables;
  return *all;
}

struct Entry {
  uint8_t uuid[16];
  const void* (*table)();
};

const Entry kEntries[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     [] { return static_cast<const void*>(allTables().cudart.word.data()); }},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     [] { return static_cast<const void*>(allTables().hooks.word.data()); }},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     [] { return static_cast<const void*>(allTables().tls.word.data()); }},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     [] { return static_cast<const void*>(allTables().storage.data()); }},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     [] { return static_cast<const void*>(allTables().checks.word.data()); }},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     [] { return static_cast<const void*>(allTables().integrity.word.data()); }},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     [] { return static_cast<const void*>(allTables().contexts.word.data()); }},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     [] { return static_cast<const void*>(allTables().functions.word.data()); }},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
      0xca},
     [] { return static_cast<const void*>(allTables().topology.word.data()); }},
    {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3,
      0x28},
     compileCacheTable},
};

CUresult integrityCheck(uint32_t version, uint64_t unix_seconds, uint64_t result[2]) {
  PrivateTables* self = tables();
  if (self == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (version % 10 < 2) {
    result[0] = version % 10 == 0 ? 0x3341181C03CB675Cu : 0x1841181C03CB675Cu;
    result[1] = 0x8ED383AA1F4CD1E8u;
    return CUDA_SUCCESS;
  }
  IntegrityHeader header{};
  header.driver_version = static_cast<uint32_t>(self->host().driverVersion());
  header.check_version = version;
  header.process_id = static_cast<uint32_t>(getpid());
  header.thread_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pthread_self()));
  header.cudart_table = reinterpret_cast<uintptr_t>(allTables().cudart.word.data());
  header.integrity_table = reinterpret_cast<uintptr_t>(allTables().integrity.word.data());
  header.check_function = reinterpret_cast<uintptr_t>(allTables().integrity.word[1]);
  header.unix_seconds = unix_seconds;
  const auto digest = integrityDigest(header, self->host().devices());
  std::memcpy(result, digest.data(), digest.size());
  return CUDA_SUCCESS;
}

}  // namespace

PrivateTables::PrivateTables(PrivateTableHost& host) : host_(host) {
  g_tables.store(this, std::memory_order_release);
}

PrivateTables::~PrivateTables() { g_tables.store(nullptr, std::memory_order_release); }

CUresult PrivateTables::find(const CUuuid* uuid, const void** table) {
  if (uuid == nullptr || table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const Entry& entry : kEntries) {
    if (std::memcmp(entry.uuid, uuid->bytes, sizeof(entry.uuid)) == 0) {
      *table = entry.table();
      return CUDA_SUCCESS;
    }
  }
  *table = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

bool isProfilers(const CUuuid& uuid) {
  constexpr uint8_t kFirst[16] = {0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                  0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b};
  return std::memcmp(kFirst, uuid.bytes, sizeof kFirst) == 0;
}

std::array<uint8_t, 16> integrityDigest(std::span<const uint8_t> message) {
  // The key that the runtime verifies with; it is the same in every CUDA since 11.6.
  constexpr std::array<uint8_t, 16> kKey = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                            0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
  return hmacMd2(kKey, message);
}

std::array<uint8_t, 16> integrityDigest(const IntegrityHeader& header,
                                        std::span<const DeviceIdentity> devices) {
  std::vector<uint8_t> message(sizeof(header) + devices.size() * 28);
  uint8_t* out = message.data();
  const auto append = [&out](const void* bytes, size_t size) {
    std::memcpy(out, bytes, size);
    out += size;
  };
  append(&header, sizeof(header));
  for (const DeviceIdentity& device : devices) {
    append(device.uuid.data(), device.uuid.size());
    append(&device.pci_domain, sizeof(device.pci_domain));
    append(&device.pci_bus, sizeof(device.pci_bus));
    append(&device.pci_device, sizeof(device.pci_device));
  }
  return integrityDigest(message);
}

}  // namespace olpager::interpose
