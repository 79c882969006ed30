// The program's CPU as an agent of the directory, with real faults: userfaultfd, threads that touch
// memory, and a pager that plays the GPU (fake_gpu.h).
#include "pager/managed/cpu_agent.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/catch.h"
#include "tests/unit/managed/fake_gpu.h"

using namespace olpager;
using namespace olpager::directory;
using namespace olpager::pager;

namespace {

constexpr AgentId kGpu = 0, kCpu = 1;

std::unique_ptr<UserFaults> faults(UserFaults::Reach at_most = UserFaults::Reach::kAll) {
  Result<std::unique_ptr<UserFaults>> opened = openUserFaults(at_most);
  if (!opened.ok()) {
    std::printf("skipped: %s\n", opened.error().message.c_str());
    std::exit(77);
  }
  return std::move(opened).value();
}

/// Addresses, as the pool reserves them.
class Reserve {
 public:
  explicit Reserve(uint32_t pages) : bytes_((pages + 1) * space::kPageBytes) {
    start_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(start_ != MAP_FAILED);
  }
  ~Reserve() { munmap(start_, bytes_); }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  uint64_t address() const {
    const auto start = reinterpret_cast<uint64_t>(start_);
    return (start + space::kPageBytes - 1) & ~(space::kPageBytes - 1);
  }

 private:
  size_t bytes_;
  void* start_;
};

/// One GPU, the CPU, and a region of both, from extent 0 on.
struct Rig {
  Reserve reserve;
  Exchange exchange{kCpu};
  std::unique_ptr<Frames> frames;
  std::unique_ptr<FakeGpu> gpu;
  std::unique_ptr<CpuAgent> cpu;

  explicit Rig(uint32_t pages, UserFaults::Reach reach = UserFaults::Reach::kAll) : reserve(pages) {
    exchange.allocate(0, pages);
    frames = make(pages);
    gpu = std::make_unique<FakeGpu>(exchange, kGpu);
    gpu->add(0, *frames);
    Result<std::unique_ptr<CpuAgent>> started = CpuAgent::start(exchange, kCpu, faults(reach));
    REQUIRE(started.ok());
    cpu = std::move(started).value();
    REQUIRE(cpu->add(0, *frames).ok());
  }
  std::unique_ptr<Frames> make(uint32_t pages) const {
    Result<std::unique_ptr<Frames>> made = Frames::make(reserve.address(), pages);
    REQUIRE(made.ok());
    return std::move(made).value();
  }
  volatile uint64_t* page(uint32_t index) const {
    return reinterpret_cast<volatile uint64_t*>(frames->view(index));
  }
  void check() const {
    CHECK(gpu->mistakes == 0);
    CHECK(cpu->counters().violations == 0);
  }
};

}  // namespace

TEST_CASE("a page that nobody has touched is zeros, to either", "[managed]") {
  Rig rig(2);
  CHECK(rig.page(0)[17] == 0);
  rig.gpu->run(1, [](uint64_t* memory) { CHECK(memory[17] == 0); });
  CHECK(rig.page(1)[17] == 0);
  CHECK(rig.cpu->counters().faults == 2);
  rig.check();
}

TEST_CASE("GPU and CPU use a page in turns", "[managed]") {
  Rig rig(2);
  constexpr uint64_t kTurns = 300;
  volatile uint64_t* const page = rig.page(1);
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    for (size_t word = 0; word < FakeGpu::kWords; word += 511) page[word] = turn + word;
    uint32_t wrong = 0;
    rig.gpu->run(1, [&](uint64_t* memory) {
      for (size_t word = 0; word < FakeGpu::kWords; word += 511) {
        if (memory[word] != turn + word) ++wrong;
        memory[word] = turn * 3 + word;
      }
    });
    for (size_t word = 0; word < FakeGpu::kWords; word += 511) {
      if (page[word] != turn * 3 + word) ++wrong;
    }
    REQUIRE(wrong == 0);
  }
  CHECK(rig.cpu->counters().given == kTurns);
  // What the CPU has costs nothing more.
  const uint64_t before = rig.cpu->counters().faults;
  for (size_t word = 0; word < FakeGpu::kWords; ++word) page[word] = word;
  CHECK(rig.cpu->counters().faults == before);
  rig.check();
}
