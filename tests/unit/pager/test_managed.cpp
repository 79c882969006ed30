// Managed memory that one side only reads: no bytes go where they are already. By the counters of
// the device, and by what both sides see.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "coherence/cpu/userfaults.h"
#include "tests/unit/pager/rig.h"

using namespace olpager;
using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kWordsOfPage = kPageBytes / 8;

/// True if the system serves faults of everybody, and tells reads and writes apart.
bool servesReads() {
  const auto faults = cpu::openUserFaults();
  if (faults.ok() && faults.value()->reach() == cpu::UserFaults::Reach::kAll &&
      faults.value()->protects())
    return true;
  WARN("userfaultfd is not allowed here, or older than Linux 6.4");
  return false;
}

/// Managed memory as both sides have it.
struct Memory {
  Rig& rig;
  uint64_t pages;
  CUdeviceptr address = 0;

  Memory(Rig& of, uint64_t count) : rig(of), pages(count) {
    REQUIRE(rig.tryAllocate(bytes(), &address, AllocationKind::kManaged) == CUDA_SUCCESS);
  }
  ~Memory() { rig.free(address); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint64_t bytes() const { return pages * kPageBytes; }
  volatile uint64_t* words(uint64_t page = 0) const {
    return reinterpret_cast<volatile uint64_t*>(address) + page * kWordsOfPage;
  }
  /// A kernel adds this to each word that is looked at.
  void add(uint64_t value) const {
    rig.launch(CU_STREAM_LEGACY, "addTo", address, bytes() / 8 / kStep, kStep, value);
  }
  /// The CPU reads all words that kernels use. How many are not what fill(seed) wrote, plus
  /// `added`.
  uint64_t wrong(uint64_t seed, uint64_t added) const {
    uint64_t count = 0;
    for (uint64_t i = 0; i < bytes() / 8 / kStep; ++i)
      count += words()[i * kStep] != mix(seed + i) + added;
    return count;
  }
  /// The GPU writes all of it, and the CPU reads that.
  void fillAndRead(uint64_t seed) const {
    rig.fill(address, bytes(), seed);
    REQUIRE(wrong(seed, 0) == 0);
  }
};

/// The traffic over the bus since, in pages.
class Traffic {
 public:
  explicit Traffic(Rig& rig) : figures_(rig.figures()), in_(in()), out_(out()), kept_(kept()) {}
  uint64_t pagesIn() const { return (in() - in_) / kPageBytes; }
  uint64_t pagesOut() const { return (out() - out_) / kPageBytes; }
  uint64_t pagesKept() const { return (kept() - kept_) / kPageBytes; }

 private:
  uint64_t in() const { return valueOf(figures_.bytes_in); }
  uint64_t out() const { return valueOf(figures_.bytes_out); }
  uint64_t kept() const { return valueOf(figures_.kept_bytes); }
  DeviceCounters& figures_;
  uint64_t in_, out_, kept_;
};

/// As a prefetch to the device: nothing runs there.
void bring(Rig& rig, const Memory& memory) {
  Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
  access.onlyShow();
  access.addRange(memory.address, memory.bytes(), Mode::kRead);
  mustSucceed(access.acquire(), "acquire");
  access.submitted(CUDA_SUCCESS);
}

/// Mappings in a pool's range that are refused from now on.
std::atomic<int> g_refusals{0};

CUresult mapOrRefuse(CUdeviceptr at, size_t bytes, size_t offset,
                     CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (inTestRange(at) && g_refusals > 0) {
    --g_refusals;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return driver().api.cuMemMap(at, bytes, offset, handle, flags);
}

void useByChance(const RigOptions& options, uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr uint64_t kPages = 12, kThreads = 3;
  Rig rig(options);
  const Memory memory(rig, kPages);
  const CUdeviceptr other = rig.allocate(12 * kMiB);
  rig.fill(memory.address, memory.bytes(), seed);
  // The words of kernels, one of each page that a thread of the CPU's counts in.
  uint64_t added = 0;
  std::array<std::array<uint64_t, kPages>, kThreads> counted{};
  for (int round = 0; round < 60; ++round) {
    std::array<uint64_t, kThreads> seeds{};
    for (uint64_t& one : seeds) one = random();
    const bool launches = random() % 4 != 0;
    if (launches) {
      memory.add(1);
      ++added;
    }
    if (random() % 5 == 0) rig.fill(other, 12 * kMiB, seed + 1);
    if (random() % 5 == 0) bring(rig, memory);
    if (random() % 6 == 0) {
      rig.pool().wantOnCpu(memory.address, memory.bytes());
    }
    std::array<uint64_t, kThreads> mistakes{};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 own(seeds[t]);
        for (int step = 0; step < 8; ++step) {
          const uint64_t page = own() % kPages;
          volatile uint64_t* const words = memory.words(page);
          const uint64_t i = page * (kWordsOfPage / kStep) + own() % (kWordsOfPage / kStep);
          if (own() % 3 != 0) mistakes[t] += memory.words()[i * kStep] != mix(seed + i) + added;
          if (own() % 3 == 0) {
            words[1 + t] = ++counted[t][page];
          } else if (counted[t][page] != 0) {
            mistakes[t] += words[1 + t] != counted[t][page];
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const uint64_t mistake : mistakes) REQUIRE(mistake == 0);
  }
  rig.synchronize();
  CHECK(rig.holds(memory.address, memory.bytes(), seed, added));
  CHECK(memory.wrong(seed, added) == 0);
  for (uint64_t t = 0; t < kThreads; ++t)
    for (uint64_t page = 0; page < kPages; ++page)
      if (counted[t][page] != 0) CHECK(memory.words(page)[1 + t] == counted[t][page]);
}

}  // namespace

TEST_CASE("what the CPU only reads goes to it and does not come back", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 32 * kMiB});
  const Memory memory(rig, 8);
  memory.fillAndRead(5);
  constexpr uint64_t kRounds = 10;
  const Traffic traffic(rig);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    memory.add(3);
    REQUIRE(memory.wrong(5, 3 * round) == 0);
  }
  CHECK(traffic.pagesIn() == 0);
  CHECK(traffic.pagesKept() == kRounds * memory.pages);
  CHECK(traffic.pagesOut() == kRounds * memory.pages);
}

TEST_CASE("what the CPU writes goes to the GPU, and no page beside it", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 32 * kMiB});
  const Memory memory(rig, 8);
  memory.fillAndRead(6);
  memory.add(1);
  REQUIRE(memory.wrong(6, 1) == 0);
  const Traffic traffic(rig);
  // The page has been read before.
  memory.words(3)[0] = mix(6 + 3 * kWordsOfPage / kStep) + 1;
  memory.words(3)[7] = 77;
  memory.add(1);
  CHECK(memory.wrong(6, 2) == 0);
  CHECK(memory.words(3)[7] == 77);
  CHECK(traffic.pagesIn() == 1);
  CHECK(traffic.pagesKept() == 7);
  // Written at once, by a thread for which nothing is asked ahead.
  memory.add(1);
  std::thread([&] { memory.words(5)[9] = 99; }).join();
  CHECK(memory.wrong(6, 3) == 0);
  memory.add(1);
  CHECK(memory.wrong(6, 4) == 0);
  CHECK(memory.words(5)[9] == 99);
  CHECK(traffic.pagesIn() == 2);
}

TEST_CASE("what the GPU has not written does not go to the CPU again", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 32 * kMiB});
  const Memory memory(rig, 8);
  memory.fillAndRead(7);
  const Traffic traffic(rig);
  bring(rig, memory);
  REQUIRE(memory.wrong(7, 0) == 0);
  // A copy reads it.
  CHECK(rig.holds(memory.address, memory.bytes(), 7));
  REQUIRE(memory.wrong(7, 0) == 0);
  CHECK(traffic.pagesIn() == 0);
  CHECK(traffic.pagesOut() == 0);
  // A copy writes a word of one page. The word is taken to be in any page of the memory.
  const uint64_t value = mix(7) + 5;
  mustSucceed(rig.copyIn(CU_STREAM_LEGACY, memory.address, &value, sizeof(value), false), "copyIn");
  rig.synchronize();
  CHECK(memory.words()[0] == value);
  CHECK(traffic.pagesOut() >= 1);
  CHECK(traffic.pagesIn() == 0);
}

TEST_CASE("what a pin's user writes goes to the CPU", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 32 * kMiB});
  const Memory memory(rig, 4);
  memory.fillAndRead(8);
  mustSucceed(rig.pool().pin(memory.address), "pin");
  // As a kernel that has the memory as a surface: no launch names it.
  CUdeviceptr at = memory.address;
  uint64_t count = memory.bytes() / 8 / kStep, step = kStep, value = 4;
  std::array<void*, 4> parameters = {&at, &count, &step, &value};
  mustSucceed(driver().api.cuLaunchKernel(rig.kernel("addTo"), 1, 1, 1, 32, 1, 1, 0,
                                          CU_STREAM_LEGACY, parameters.data(), nullptr),
              "addTo");
  rig.synchronize();
  mustSucceed(rig.pool().unpin(memory.address), "unpin");
  CHECK(memory.wrong(8, 4) == 0);
}

TEST_CASE("VRAM that holds what the CPU reads is anybody's", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 16 * kMiB});
  const Memory memory(rig, 8);
  memory.fillAndRead(9);
  const uint64_t evictions =
      valueOf(rig.figures().evictions_clean) + valueOf(rig.figures().evictions_written);
  {
    // All of VRAM, half of it as large pieces.
    const CUdeviceptr pages = rig.allocate(8 * kMiB - kPageBytes), large = rig.allocate(8 * kMiB);
    rig.fill(pages, 8 * kMiB - kPageBytes, 10);
    rig.fill(large, 8 * kMiB, 11);
    rig.synchronize();
    CHECK(valueOf(rig.figures().evictions_clean) + valueOf(rig.figures().evictions_written) ==
          evictions);
    CHECK(rig.pool().residency(pages).vram == 8 * kMiB - kPageBytes);
    CHECK(rig.pool().residency(large).vram == 8 * kMiB);
    rig.free(pages);
    rig.free(large);
  }
  const Traffic traffic(rig);
  memory.add(2);
  CHECK(memory.wrong(9, 2) == 0);
  CHECK(traffic.pagesIn() + traffic.pagesKept() == memory.pages);
  CHECK(traffic.pagesIn() >= memory.pages - 1);  // one was not needed
}

TEST_CASE("VRAM that holds what the CPU reads goes to the driver", "[pager][managed]") {
  if (!servesReads()) return;
  Rig rig({.vram = 16 * kMiB});
  const Memory memory(rig, 8);
  memory.fillAndRead(12);
  CHECK(rig.pool().relieve(0, 12 * kMiB) >= 12 * kMiB);
  CHECK(memory.wrong(12, 0) == 0);
  rig.pool().regain(0, 12 * kMiB);
  memory.add(2);
  CHECK(memory.wrong(12, 2) == 0);
}

TEST_CASE("both sides read and write pages by chance", "[pager][managed]") {
  if (!servesReads()) return;
  useByChance({.vram = 24 * kMiB}, seedOr(20));
}

TEST_CASE("both sides read and write more pages than VRAM has, by chance",
          "[pager][managed][numa]") {
  if (!servesReads()) return;
  useByChance({.vram = 16 * kMiB}, seedOr(21));
}

TEST_CASE("both sides read and write memory that moves by pieces, by chance",
          "[pager][managed][numa]") {
  if (!servesReads()) return;
  useByChance({.vram = 16 * kMiB, .reach = Reach::kLearned}, seedOr(22));
}

TEST_CASE("what the GPU wrote in host memory goes to the CPU", "[pager][managed][numa]") {
  if (!servesReads()) return;
  Rig rig({.vram = 16 * kMiB});
  const Memory memory(rig, 6);
  rig.fill(memory.address, memory.bytes(), 13);
  REQUIRE(memory.wrong(13, 0) == 0);
  const CUdeviceptr other = rig.allocate(12 * kMiB);
  mustSucceed(rig.pool().pin(other), "pin");
  memory.add(1);
  rig.synchronize();
  REQUIRE(rig.pool().residency(memory.address).in_place > 0);
  mustSucceed(rig.pool().unpin(other), "unpin");
  rig.free(other);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10 * kPatience);
  while (rig.pool().residency(memory.address).vram < memory.bytes() &&
         std::chrono::steady_clock::now() < until)
    bring(rig, memory);
  CHECK(rig.pool().residency(memory.address).vram == memory.bytes());
  CHECK(memory.wrong(13, 1) == 0);
}

TEST_CASE("what VRAM has still is used in host memory while the driver maps nothing",
          "[pager][managed][numa]") {
  if (!servesReads()) return;
  Rig rig({.vram = 64 * kMiB, .waits = {.in_place_ns = 10'000'000}, .alter = [](DriverApi& api) {
             api.cuMemMap = mapOrRefuse;
           }});
  const Memory first(rig, 1), memory(rig, 24);
  for (const Memory* each : {&first, &memory}) {
    rig.fill(each->address, each->bytes(), 14);
    REQUIRE(each->wrong(14, 0) == 0);
  }
  for (uint64_t round = 1; round <= 4; ++round) {
    // After that the pager tries nothing for a while.
    if (round % 2 == 1) g_refusals = 3;
    first.add(1);
    memory.add(1);
    rig.synchronize();
    REQUIRE(first.wrong(14, round) == 0);
    REQUIRE(memory.wrong(14, round) == 0);
    g_refusals = 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  CHECK(valueOf(rig.figures().in_place_bytes.peak) > 0);
}
