// The table: open addressing, keyed by kernel and context; a layout is good while its generation is
// the present one. Writers hold a mutex. Each slot is read by its version: odd while it is written,
// another one afterwards; a reader that finds it changed finds nothing, and asks the writers. So a
// table in which entries of earlier generations take too much is cleared in place. One that is too
// small is replaced by a larger one, and stays for readers that are still in it (sizes double: all
// old ones together are smaller than the present one).
#include "interpose/local/param_layout.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "interpose/local/captures.h"
#include "interpose/local/locks.h"
#include "interpose/local/modules.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

struct Slot {
  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> function{0};
  std::atomic<uint64_t> context{0};
  std::atomic<const ParamLayout*> layout{nullptr};
  std::atomic<uint64_t> generation{0};
};

struct Entry {
  uint64_t function = 0;
  uint64_t context = 0;
  const ParamLayout* layout = nullptr;
  uint64_t generation = 0;
};

struct Table {
  explicit Table(size_t size) : mask(size - 1), slots(new Slot[size]) {}
  size_t mask;
  size_t used = 0;  // under the mutex
  std::unique_ptr<Slot[]> slots;
};

constexpr size_t kFirstSlots = 1024;

// Hash and equality of what is pointed to.
struct SameLayout {
  size_t operator()(const ParamLayout* layout) const {
    size_t all =
        std::hash<std::string>()(layout->name) ^ (size_t{layout->count} << 32 | layout->bytes);
    for (const auto& param : layout->params)
      all = all * 0x9e3779b97f4a7c15u + (size_t{param.index} << 32 | param.bytes);
    return all;
  }
  bool operator()(const ParamLayout* a, const ParamLayout* b) const { return *a == *b; }
};

std::atomic<const Table*> g_table{nullptr};
std::atomic<uint64_t> g_generation{1};

struct ParamLayouts {
  base::RankedMutex mutex{kParamLayoutsMutex};
  Table* table = nullptr;
  std::unordered_set<const ParamLayout*, SameLayout, SameLayout> interned;
};

// Never destroyed: launches happen in destructors of the program too.
ParamLayouts& writers() {
  static auto* instance = new ParamLayouts;
  return *instance;
}

size_t hash(uint64_t function, uint64_t context) {
  uint64_t x = function ^ (context * 0x9e3779b97f4a7c15ull);
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return static_cast<size_t>(x ^ (x >> 32));
}

// By a writer: the slot of the key, or the free one where it belongs. A table is never full.
Slot& seek(const Table& table, uint64_t function, uint64_t context) {
  for (size_t i = hash(function, context);; ++i) {
    Slot& slot = table.slots[i & table.mask];
    const uint64_t key = slot.function.load(std::memory_order_relaxed);
    if (key == 0 || (key == function && slot.context.load(std::memory_order_relaxed) == context))
      return slot;
  }
}

// Nothing of the entry is seen before the version is odd, and all of it before it is even again.
void write(Slot& slot, const Entry& entry) {
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  slot.context.store(entry.context, std::memory_order_release);
  slot.layout.store(entry.layout, std::memory_order_release);
  slot.generation.store(entry.generation, std::memory_order_release);
  slot.function.store(entry.function, std::memory_order_release);
  slot.version.store(version + 2, std::memory_order_release);
}

// False: it is being written.
bool read(const Slot& slot, Entry& entry) {
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  entry.function = slot.function.load(std::memory_order_acquire);
  entry.context = slot.context.load(std::memory_order_acquire);
  entry.layout = slot.layout.load(std::memory_order_acquire);
  entry.generation = slot.generation.load(std::memory_order_acquire);
  return (version & 1) == 0 && slot.version.load(std::memory_order_relaxed) == version;
}

void insert(Table& table, const Entry& entry) {
  Slot& slot = seek(table, entry.function, entry.context);
  if (slot.function.load(std::memory_order_relaxed) == 0) ++table.used;
  write(slot, entry);
}

// Entries of earlier generations go: their kernels are gone, or will be asked again.
void makeRoom(ParamLayouts& state, uint64_t generation) {
  std::vector<Entry> live;
  Table* table = state.table;
  for (size_t i = 0; table != nullptr && i <= table->mask; ++i) {
    Entry entry;
    if (read(table->slots[i], entry) && entry.function != 0 && entry.generation == generation)
      live.push_back(entry);
  }
  size_t slots = table != nullptr ? table->mask + 1 : kFirstSlots;
  while (live.size() * 4 >= slots) slots *= 2;
  if (table != nullptr && slots == table->mask + 1) {
    for (size_t i = 0; i <= table->mask; ++i) write(table->slots[i], {});
    table->used = 0;
  } else {
    table = new Table(slots);
  }
  for (const Entry& entry : live) insert(*table, entry);
  state.table = table;
  g_table.store(table, std::memory_order_release);
}

// One parameter; the driver answers CUDA_ERROR_INVALID_VALUE behind the last.
using ParamQuery = CUresult (*)(void* handle, size_t index, size_t* offset, size_t* bytes);

CUresult queryFunction(void* handle, size_t index, size_t* offset, size_t* bytes) {
  return driver().cuFuncGetParamInfo(static_cast<CUfunction>(handle), index, offset, bytes);
}
CUresult queryKernel(void* handle, size_t index, size_t* offset, size_t* bytes) {
  return driver().cuKernelGetParamInfo(static_cast<CUkernel>(handle), index, offset, bytes);
}

bool queryAll(ParamQuery query, void* handle, ParamLayout& layout) {
  for (size_t index = 0;; ++index) {
    size_t offset = 0;
    size_t bytes = 0;
    const CUresult result = query(handle, index, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE) return true;
    if (result != CUDA_SUCCESS) return false;
    layout.count = static_cast<uint32_t>(index + 1);
    layout.sizes.push_back(static_cast<uint32_t>(bytes));
    layout.bytes = static_cast<uint32_t>(offset + bytes);
    if (bytes >= sizeof(uint64_t)) {
      layout.params.push_back({static_cast<uint32_t>(index), static_cast<uint32_t>(bytes)});
    }
  }
}

std::string nameOf(CUfunction function) {
  const char* name = nullptr;
  if (driver().cuFuncGetName != nullptr &&
      driver().cuFuncGetName(&name, function) == CUDA_SUCCESS && name != nullptr)
    return name;
  const auto kernel = reinterpret_cast<CUkernel>(function);
  if (driver().cuKernelGetName != nullptr &&
      driver().cuKernelGetName(&name, kernel) == CUDA_SUCCESS && name != nullptr)
    return name;
  return {};
}

}  // namespace

bool ParamLayout::operator==(const ParamLayout& other) const {
  return count == other.count && bytes == other.bytes && params == other.params &&
         sizes == other.sizes && name == other.name;
}

const ParamLayout* findParamLayout(CUfunction function, CUcontext context) {
  const Table* table = g_table.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  const auto key = reinterpret_cast<uint64_t>(function),
             key_context = reinterpret_cast<uint64_t>(context);
  const size_t first = hash(key, key_context);
  for (size_t i = first; i - first <= table->mask; ++i) {
    Entry entry;
    if (!read(table->slots[i & table->mask], entry) || entry.function == 0) return nullptr;
    if (entry.function != key || entry.context != key_context) continue;
    return entry.generation == g_generation.load(std::memory_order_relaxed) ? entry.layout
                                                                            : nullptr;
  }
  return nullptr;
}

const ParamLayout* loadParamLayout(CUfunction function, CUcontext context) {
  if (function == nullptr) return nullptr;
  // Read before the query: a module that is unloaded meanwhile makes this answer an old one.
  const uint64_t generation = g_generation.load(std::memory_order_acquire);
  ParamLayout layout;
  {
    // Lets the query load the kernel's code while a stream of this thread captures: it is no work
    // of the stream.
    RelaxedCapture relaxed;
    const bool is_function = queryAll(queryFunction, function, layout);
    // A driver may call a CUkernel a function without parameters.
    if (!is_function || layout.count == 0) {
      ParamLayout of_kernel;
      const bool is_kernel = queryAll(queryKernel, function, of_kernel);
      if (!is_function && !is_kernel) return nullptr;
      if (is_kernel) layout = of_kernel;
    }
    registerModuleOf(function, context);
    if (pager::Pool* running = pool(); running != nullptr && running->asksNames())
      layout.name = nameOf(function);
  }

  ParamLayouts& state = writers();
  std::lock_guard lock(state.mutex);
  const auto known = state.interned.find(&layout);
  const ParamLayout* const kept =
      known != state.interned.end()
          ? *known
          : *state.interned.insert(new ParamLayout(std::move(layout))).first;
  if (state.table == nullptr || (state.table->used + 1) * 2 > state.table->mask + 1)
    makeRoom(state, generation);
  insert(*state.table, {reinterpret_cast<uint64_t>(function), reinterpret_cast<uint64_t>(context),
                        kept, generation});
  return kept;
}

void invalidateParamLayouts() { g_generation.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace olpager::local
