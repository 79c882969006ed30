// The table: open addressing over slots {key, layout, generation}, keyed by kernel and context. A slot is claimed once
// and for ever for its key; its layout is good while its generation is the present one. Writers hold a mutex; a full
// table is replaced by a larger one, and the old one stays for readers that are still in it (sizes double, so all old
// ones together are smaller than the present one).
#include "interpose/local/param_layout.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "interpose/local/captures.h"
#include "interpose/local/modules.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

struct Slot {
  std::atomic<uint64_t> function{0};
  std::atomic<uint64_t> context{0};
  std::atomic<const ParamLayout*> layout{nullptr};
  std::atomic<uint64_t> generation{0};
};

struct Table {
  explicit Table(size_t size) : mask(size - 1), slots(new Slot[size]) {}
  size_t mask;
  size_t used = 0;  // under the mutex
  std::unique_ptr<Slot[]> slots;
};

constexpr size_t kFirstSlots = 1024;
// Layouts of the kernels there are differ in few ways; beyond this many a change of layout is kept without a search.
constexpr size_t kInternedLimit = 4096;

std::atomic<const Table*> g_table{nullptr};
std::atomic<uint64_t> g_generation{1};

struct ParamLayouts {
  std::mutex mutex;
  Table* table = nullptr;
  std::vector<const ParamLayout*> interned;
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

// The slot of the key, or the free one where it belongs. A table is never full.
Slot* seek(const Table& table, uint64_t function, uint64_t context) {
  for (size_t i = hash(function, context);; ++i) {
    Slot& slot = table.slots[i & table.mask];
    const uint64_t key = slot.function.load(std::memory_order_acquire);
    if (key == 0) return &slot;
    if (key == function && slot.context.load(std::memory_order_relaxed) == context) return &slot;
  }
}

void fill(Slot& slot, uint64_t function, uint64_t context, const ParamLayout* layout, uint64_t generation) {
  slot.context.store(context, std::memory_order_relaxed);
  slot.layout.store(layout, std::memory_order_relaxed);
  slot.generation.store(generation, std::memory_order_release);
  slot.function.store(function, std::memory_order_release);
}

// Entries of earlier generations are left behind: their kernels are gone, or will be asked again.
Table* enlarged(const Table* old, uint64_t generation) {
  size_t live = 0;
  for (size_t i = 0; old != nullptr && i <= old->mask; ++i) {
    live += old->slots[i].generation.load(std::memory_order_relaxed) == generation ? 1 : 0;
  }
  size_t slots = old != nullptr ? old->mask + 1 : kFirstSlots;
  while (live * 4 >= slots) slots *= 2;
  auto* table = new Table(slots);
  for (size_t i = 0; old != nullptr && i <= old->mask; ++i) {
    const Slot& from = old->slots[i];
    if (from.generation.load(std::memory_order_relaxed) != generation) continue;
    const uint64_t function = from.function.load(std::memory_order_relaxed);
    const uint64_t context = from.context.load(std::memory_order_relaxed);
    fill(*seek(*table, function, context), function, context, from.layout.load(std::memory_order_relaxed), generation);
    ++table->used;
  }
  return table;
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
    layout.bytes = static_cast<uint32_t>(offset + bytes);
    if (bytes >= sizeof(uint64_t)) {
      layout.params.push_back({static_cast<uint32_t>(index), static_cast<uint32_t>(bytes)});
    }
  }
}

std::string nameOf(CUfunction function) {
  const char* name = nullptr;
  if (driver().cuFuncGetName != nullptr && driver().cuFuncGetName(&name, function) == CUDA_SUCCESS && name != nullptr)
    return name;
  const auto kernel = reinterpret_cast<CUkernel>(function);
  if (driver().cuKernelGetName != nullptr && driver().cuKernelGetName(&name, kernel) == CUDA_SUCCESS && name != nullptr)
    return name;
  return {};
}

}  // namespace

bool ParamLayout::operator==(const ParamLayout& other) const {
  return count == other.count && bytes == other.bytes && params == other.params && name == other.name;
}

const ParamLayout* findParamLayout(CUfunction function, CUcontext context) {
  const Table* table = g_table.load(std::memory_order_acquire);
  if (table == nullptr) return nullptr;
  const Slot* slot = seek(*table, reinterpret_cast<uint64_t>(function), reinterpret_cast<uint64_t>(context));
  // Free when it was found, it may have become another kernel's since: a thread that publishes that one fills the first free slot.
  if (slot->function.load(std::memory_order_acquire) != reinterpret_cast<uint64_t>(function) ||
      slot->context.load(std::memory_order_relaxed) != reinterpret_cast<uint64_t>(context))
    return nullptr;
  if (slot->generation.load(std::memory_order_acquire) != g_generation.load(std::memory_order_relaxed)) return nullptr;
  return slot->layout.load(std::memory_order_relaxed);
}

const ParamLayout* loadParamLayout(CUfunction function, CUcontext context) {
  if (function == nullptr) return nullptr;
  // Read before the query: a module that is unloaded meanwhile makes this answer an old one.
  const uint64_t generation = g_generation.load(std::memory_order_acquire);
  ParamLayout layout;
  {
    // Lets the query load the kernel's code while a stream of this thread captures: it is no work of the stream.
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
    if (pager::Pool* running = pool(); running != nullptr && running->asksNames()) layout.name = nameOf(function);
  }

  ParamLayouts& state = writers();
  std::lock_guard lock(state.mutex);
  const ParamLayout* kept = nullptr;
  for (const ParamLayout* candidate : state.interned) {
    if (*candidate == layout) {
      kept = candidate;
      break;
    }
  }
  if (kept == nullptr) {
    kept = new ParamLayout(std::move(layout));
    if (state.interned.size() < kInternedLimit) state.interned.push_back(kept);
  }
  if (state.table == nullptr || (state.table->used + 1) * 2 > state.table->mask + 1) {
    state.table = enlarged(state.table, generation);
    g_table.store(state.table, std::memory_order_release);
  }
  const auto key = reinterpret_cast<uint64_t>(function);
  const auto key_context = reinterpret_cast<uint64_t>(context);
  Slot* slot = seek(*state.table, key, key_context);
  if (slot->function.load(std::memory_order_relaxed) == 0) ++state.table->used;
  fill(*slot, key, key_context, kept, generation);
  return kept;
}

void invalidateParamLayouts() { g_generation.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace olpager::local
