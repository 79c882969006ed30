// Cells that name each other, in every kind of memory that a kernel can read: device memory of
// whole pages and of slabs, pinned memory of all kinds, managed memory small and large, a module's
// variables, a second mapping of a handle. Pointers are written by kernels, by copies of all sorts
// and by the CPU, moved and taken away, in a random order; between that everything else is used, so
// that cells leave VRAM. Walks along the chains have to find what the CPU's own books say. A kernel
// is given only the first cell of a chain: the rest is for the pager to find. Cells name others of
// their own group, so that no launch leads to all of them; the variables' group, which every kernel
// leads to, is the first.
#include "common.h"

struct Cell {
  uint64_t tag;
  Cell* next;
  uint64_t walked;
};

__device__ Cell g_cells[4];
__device__ Cell* g_first;

__global__ void setNext(Cell* cell, Cell* next) { cell->next = next; }
/// The pointer goes from one cell to another, and the first forgets it.
__global__ void moveNext(Cell* to, Cell* from) {
  to->next = from->next;
  from->next = nullptr;
}
__global__ void walk(Cell* cell, unsigned hops, uint64_t* out) {
  uint64_t sum = 0;
  for (unsigned i = 0; cell != nullptr && i <= hops; ++i, cell = cell->next) {
    sum = sum * 31 + cell->tag;
    ++cell->walked;
  }
  *out = sum;
}
__global__ void walkFromVariable(unsigned hops, uint64_t* out) {
  uint64_t sum = 0;
  Cell* cell = g_first;
  for (unsigned i = 0; cell != nullptr && i <= hops; ++i, cell = cell->next)
    sum = sum * 31 + cell->tag;
  *out = sum;
}
__global__ void use(uint64_t* page, unsigned words) { page[threadIdx.x + words]++; }
__global__ void wait(long long ticks) {
  const long long began = clock64();
  while (clock64() - began < ticks) {
  }
}

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kLarge = size_t{20} << 20;  // managed memory that nobody looks through
constexpr unsigned kWalks = 64;              // between two looks at what they found

enum Kind {
  kDevice,
  kSmall,
  kDefault,
  kMapped,
  kMallocHost,
  kRegistered,
  kManaged,
  kLargeManaged,
  kVariable,
  kTwice,
  kKinds
};

struct Entry {
  Cell* cell;  // as kernels call it
  Cell* here;  // as the CPU does: of registered memory that may be another address
  Kind kind;
  uint64_t tag;
  size_t group;
  int next = -1;  // as the CPU's books say
};

bool cpuWrites(Kind kind) { return kind >= kDefault && kind <= kLargeManaged; }

class Web {
 public:
  Web(const apps::Options& options) : random_(options.seed), large_(options.seed % 3 == 0) {
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    RUNTIME_OK(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    RUNTIME_OK(cudaMalloc(&out_, kWalks * sizeof(uint64_t)));
    RUNTIME_OK(cudaMallocHost(&staging_, sizeof(Cell*) * kStaged));
    pages_ = options.bytes / kPage;
    groups_.resize(pages_ / 3 + 1);
    for (size_t i = 0; i < pages_; ++i) add(kDevice, i % groups_.size());
    for (int kind = kSmall; kind < kKinds; ++kind)
      for (int i = 0; i < 3; ++i)
        if (kind != kLargeManaged || (large_ && i == 0))
          add(Kind(kind), kind == kVariable ? 0 : size_t(random_.below(groups_.size())));
    RUNTIME_OK(cudaDeviceSynchronize());
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const size_t a = pick(), b = pickIn(cells_[a].group);
      switch (random_.below(10)) {
        case 0:
        case 1:
          setNext<<<1, 1, 0, stream_>>>(cells_[a].cell, cells_[b].cell);
          cells_[a].next = int(b);
          break;
        case 2:
          byCpu(a);
          break;
        case 3:
        case 4:
          byCopy(a, b);
          break;
        case 5:
          if (a == b) break;
          moveNext<<<1, 1, 0, stream_>>>(cells_[a].cell, cells_[b].cell);
          cells_[a].next = cells_[b].next;
          cells_[b].next = -1;
          break;
        case 6:
          press(random_.below(2) == 0 ? stream_ : other_);
          break;
        default:
          look(a);
      }
      RUNTIME_OK(cudaGetLastError());
      if (random_.below(16) == 0) settle();
      if (random_.below(32) == 0) renew(random_.below(pages_));
    }
    settle();
  }

  ~Web() {
    cudaDeviceSynchronize();
    for (void* memory : registered_) {
      cudaHostUnregister(memory);
      std::free(memory);
    }
  }

 private:
  static constexpr size_t kStaged = 512;

  void add(Kind kind, size_t group) {
    Entry entry{nullptr, nullptr, kind, random_.next(), group};
    Cell*& cell = entry.cell;
    switch (kind) {
      case kDevice:
        RUNTIME_OK(cudaMalloc(&cell, kPage));
        break;
      case kSmall:
        RUNTIME_OK(cudaMalloc(&cell, 512));
        break;
      case kDefault:
        RUNTIME_OK(cudaHostAlloc(&cell, 4096, cudaHostAllocDefault));
        break;
      case kMapped:
        RUNTIME_OK(cudaHostAlloc(&cell, 65536, cudaHostAllocMapped));
        break;
      case kMallocHost:
        RUNTIME_OK(cudaMallocHost(&cell, sizeof(Cell)));
        break;
      case kRegistered: {
        void* memory = std::aligned_alloc(4096, 8192);
        RUNTIME_OK(cudaHostRegister(memory, 8192, cudaHostRegisterDefault));
        registered_.push_back(memory);
        cell = entry.here = static_cast<Cell*>(memory) + 10;
        int by_host_pointer = 0;
        RUNTIME_OK(cudaDeviceGetAttribute(&by_host_pointer,
                                          cudaDevAttrCanUseHostPointerForRegisteredMem, 0));
        if (by_host_pointer == 0) RUNTIME_OK(cudaHostGetDevicePointer(&cell, entry.here, 0));
        break;
      }
      case kManaged:
        RUNTIME_OK(cudaMallocManaged(&cell, sizeof(Cell)));
        break;
      case kLargeManaged:
        RUNTIME_OK(cudaMallocManaged(&cell, kLarge));
        cell += (kLarge - 4096) / sizeof(Cell);
        break;
      case kVariable: {
        void* base = nullptr;
        RUNTIME_OK(cudaGetSymbolAddress(&base, g_cells));
        cell = static_cast<Cell*>(base) + variables_++;
        break;
      }
      default:
        cell = mappedTwice();
    }
    if (entry.here == nullptr) entry.here = cell;
    const Cell fresh{entry.tag, nullptr, 0};
    RUNTIME_OK(cudaMemcpy(cell, &fresh, sizeof(fresh), cudaMemcpyDefault));
    groups_[group].push_back(cells_.size());
    cells_.push_back(entry);
  }

  /// The second of two mappings.
  static Cell* mappedTwice() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUmemGenericAllocationHandle handle = 0;
    DRIVER_OK(cuMemCreate(&handle, kPage, &properties, 0));
    CUdeviceptr at[2] = {};
    for (CUdeviceptr& place : at) {
      DRIVER_OK(cuMemAddressReserve(&place, kPage, 0, 0, 0));
      DRIVER_OK(cuMemMap(place, kPage, 0, handle, 0));
      DRIVER_OK(cuMemSetAccess(place, kPage, &access, 1));
    }
    return reinterpret_cast<Cell*>(at[1]);
  }

  size_t pick() { return random_.below(cells_.size()); }
  size_t pickIn(size_t group) { return groups_[group][random_.below(groups_[group].size())]; }

  /// The CPU writes a pointer where it can, while no kernel runs that could see it half.
  void byCpu(size_t target) {
    size_t from = pickIn(cells_[target].group);
    for (int i = 0; i < 20 && !cpuWrites(cells_[from].kind); ++i)
      from = pickIn(cells_[target].group);
    if (!cpuWrites(cells_[from].kind)) return;
    settle();
    cells_[from].here->next = cells_[target].cell;
    cells_[from].next = int(target);
  }

  void byCopy(size_t a, size_t b) {
    Cell** const place = &cells_[a].cell->next;
    switch (random_.below(4)) {
      case 0: {  // from pageable memory
        Cell* value = cells_[b].cell;
        RUNTIME_OK(cudaMemcpyAsync(place, &value, sizeof(value), cudaMemcpyDefault, stream_));
        RUNTIME_OK(cudaStreamSynchronize(
            stream_));  // of a copy to pinned memory the driver reads the source later
        break;
      }
      case 1: {  // from pinned memory, read when the stream gets there
        if (random_.below(2) == 0) wait<<<1, 1, 0, stream_>>>(100000);
        Cell** const staged = staging_ + staged_++ % kStaged;
        if (staged_ % kStaged == 0) settle();
        *staged = cells_[b].cell;
        RUNTIME_OK(cudaMemcpyAsync(place, staged, sizeof(Cell*), cudaMemcpyDefault, stream_));
        break;
      }
      case 2:  // what another cell names
        RUNTIME_OK(cudaMemcpyAsync(place, &cells_[b].cell->next, sizeof(Cell*), cudaMemcpyDefault,
                                   stream_));
        cells_[a].next = cells_[b].next;
        return;
      default:  // a whole cell, that names what it named
        RUNTIME_OK(cudaMemsetAsync(place, 0, sizeof(Cell*), stream_));
        cells_[a].next = -1;
        return;
    }
    cells_[a].next = int(b);
  }

  /// Uses some pages in a random order: others leave VRAM.
  void press(cudaStream_t stream) {
    for (int i = 0; i < 3; ++i) {
      const size_t cell = random_.below(pages_);
      // Each stream has words of its own: nothing orders the two.
      use<<<1, 32, 0, stream>>>(reinterpret_cast<uint64_t*>(cells_[cell].cell),
                                stream == other_ ? 128 : 64);
    }
  }

  /// Another page takes a cell's place; nobody of its group names anybody then.
  void renew(size_t index) {
    for (const size_t member : groups_[cells_[index].group]) {
      RUNTIME_OK(cudaMemsetAsync(&cells_[member].cell->next, 0, sizeof(Cell*), stream_));
      cells_[member].next = -1;
    }
    settle();
    RUNTIME_OK(cudaStreamSynchronize(other_));
    RUNTIME_OK(cudaFree(cells_[index].cell));
    RUNTIME_OK(cudaMalloc(&cells_[index].cell, kPage));
    const Cell fresh{cells_[index].tag, nullptr, 0};
    RUNTIME_OK(cudaMemcpy(cells_[index].cell, &fresh, sizeof(fresh), cudaMemcpyHostToDevice));
  }

  void look(size_t from) {
    const auto hops = unsigned(1 + random_.below(6));
    int at = int(from);
    if (cells_[from].group == 0 && random_.below(2) == 0) {
      RUNTIME_OK(cudaMemcpyToSymbolAsync(g_first, &cells_[from].cell, sizeof(Cell*), 0,
                                         cudaMemcpyHostToDevice, stream_));
      walkFromVariable<<<1, 1, 0, stream_>>>(hops, out_ + expected_.size());
    } else {
      walk<<<1, 1, 0, stream_>>>(cells_[from].cell, hops, out_ + expected_.size());
    }
    uint64_t sum = 0;
    for (unsigned i = 0; at >= 0 && i <= hops; ++i, at = cells_[size_t(at)].next)
      sum = sum * 31 + cells_[size_t(at)].tag;
    expected_.push_back(sum);
    if (expected_.size() == kWalks) settle();
  }

  /// All is done; the walks found what they should have.
  void settle() {
    RUNTIME_OK(cudaStreamSynchronize(stream_));
    if (expected_.empty()) return;
    std::vector<uint64_t> got(expected_.size());
    RUNTIME_OK(cudaMemcpy(got.data(), out_, got.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == expected_[i], "walk %zu of %zu: %llx instead of %llx", walks_ + i,
            walks_ + got.size(), static_cast<unsigned long long>(got[i]),
            static_cast<unsigned long long>(expected_[i]));
    walks_ += got.size();
    expected_.clear();
  }

  apps::Random random_;
  bool large_;
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  uint64_t* out_ = nullptr;
  Cell** staging_ = nullptr;
  size_t staged_ = 0;
  std::vector<Entry> cells_;
  std::vector<std::vector<size_t>> groups_;
  size_t pages_ = 0;  // cells from the first on, of a page each
  int variables_ = 0;
  std::vector<void*> registered_;
  std::vector<uint64_t> expected_;
  size_t walks_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
  Web web(options);
  constexpr int kSteps = 800;
  web.run(kSteps);
  return apps::ok("%d steps", kSteps);
}
