// The program's CPU as an agent of the directory, with real faults: userfaultfd, threads that touch
// memory, and a pager that plays the GPU (fake_gpu.h).
#include "pager/managed/cpu_agent.h"

#include <fcntl.h>
#include <immintrin.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/catch.h"
#include "tests/unit/managed/fake_gpu.h"

using namespace olpager;
using namespace olpager::directory;
using namespace olpager::pager;

namespace {

constexpr AgentId kGpu = 0, kCpu = 1;

std::unique_ptr<UserFaults> faults(UserFaults::Reach at_most = UserFaults::Reach::kAll) {
  Result<std::unique_ptr<UserFaults>> opened = cpu::openUserFaults(at_most);
  if (!opened.ok()) {
    std::printf("skipped: %s\n", opened.error().message.c_str());
    std::exit(77);
  }
  return std::move(opened).value();
}

/// Stands for a kernel that can't publish for reading.
class WithoutProtection final : public UserFaults {
 public:
  explicit WithoutProtection(std::unique_ptr<UserFaults> inner) : inner_(std::move(inner)) {}
  Reach reach() const override { return inner_->reach(); }
  const std::string& why() const override { return inner_->why(); }
  int descriptor() const override { return inner_->descriptor(); }
  size_t read(std::span<UserFault> to) override { return inner_->read(to); }
  Status enlist(uint64_t address, uint64_t bytes) override {
    return inner_->enlist(address, bytes);
  }
  void dismiss(uint64_t address, uint64_t bytes) override { inner_->dismiss(address, bytes); }
  bool protects() const override { return false; }
  bool publish(uint64_t address, uint64_t bytes, uint64_t base_page, bool writable) override {
    if (!writable) ++mistakes;
    return inner_->publish(address, bytes, base_page, true);
  }
  void allowWrites(uint64_t, uint64_t) override { ++mistakes; }
  void wake(uint64_t address, uint64_t bytes) override { inner_->wake(address, bytes); }

  static inline std::atomic<uint32_t> mistakes{0};

 private:
  std::unique_ptr<UserFaults> inner_;
};

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
  Exchange exchange;
  std::unique_ptr<Frames> frames;
  std::unique_ptr<FakeGpu> gpu;
  std::unique_ptr<CpuAgent> cpu;
  bool serves_calls = false;

  explicit Rig(uint32_t pages, UserFaults::Reach reach = UserFaults::Reach::kAll)
      : Rig(pages, faults(reach)) {}
  Rig(uint32_t pages, std::unique_ptr<UserFaults> opened,
      Frames::Memory memory = Frames::Memory::kAll)
      : reserve(pages) {
    exchange.allocate(0, pages);
    frames = make(pages, memory);
    gpu = std::make_unique<FakeGpu>(exchange, kGpu);
    gpu->add(0, *frames);
    serves_calls = opened->reach() == UserFaults::Reach::kAll;
    Result<std::unique_ptr<CpuAgent>> started = CpuAgent::start(exchange, kCpu, std::move(opened));
    REQUIRE(started.ok());
    cpu = std::move(started).value();
    REQUIRE(cpu->add(0, *frames).ok());
  }
  std::unique_ptr<Frames> make(uint32_t pages, Frames::Memory memory = Frames::Memory::kAll) const {
    Result<std::unique_ptr<Frames>> made = Frames::make(reserve.address(), pages, true, memory);
    REQUIRE(made.ok());
    if (memory == Frames::Memory::kByPage) REQUIRE(made.value()->fill(0, pages));
    return std::move(made).value();
  }
  volatile uint64_t* page(uint32_t index) const {
    return reinterpret_cast<volatile uint64_t*>(frames->view(index));
  }
  /// Waits for so many freed extents.
  void awaitReleased(size_t count) {
    size_t released = 0;
    for (int i = 0; i < 5000 && released < count; ++i) {
      for (const Action& action : exchange.news()) released += action.kind == ActionKind::kReleased;
      if (released < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    REQUIRE(released == count);
  }
  void check() const {
    CHECK(gpu->mistakes == 0);
    CHECK(cpu->counters().violations == 0);
  }
};

/// Threads that play launches which take pages, each with a moment in between.
class Storm {
 public:
  /// Each launch takes one of these sets; a thread takes them in turns.
  Storm(FakeGpu& gpu, std::vector<std::vector<ExtentId>> sets, uint32_t threads)
      : gpu_(gpu), sets_(std::move(sets)) {
    for (uint32_t t = 0; t < threads; ++t) {
      threads_.emplace_back([this, t] {
        for (size_t turn = t; !ended_; ++turn) launch(sets_[turn % sets_.size()]);
      });
    }
  }
  /// Each takes one or two of the pages, at random, and counts that in the page's first word.
  Storm(FakeGpu& gpu, uint32_t pages, uint32_t threads, uint32_t seed) : gpu_(gpu), counts_(pages) {
    for (uint32_t t = 0; t < threads; ++t) {
      threads_.emplace_back([this, pages, t, seed] {
        std::mt19937 random(seed * 31 + t);
        while (!ended_) {
          const ExtentId a = random() % pages, b = random() % pages;
          launch(a == b ? std::vector{a} : std::vector{a, b});
        }
      });
    }
  }
  ~Storm() { end(); }
  void end() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint64_t takes() const { return takes_; }
  uint64_t takesOf(uint32_t page) const { return counts_[page]; }

 private:
  void launch(const std::vector<ExtentId>& extents) {
    gpu_.run(extents, [&](ExtentId extent, uint64_t* memory) {
      if (extent >= counts_.size()) return;
      // Two launches may use a page at the same time.
      std::atomic_ref(memory[0]).fetch_add(1);
      ++counts_[extent];
    });
    ++takes_;
    // As long as a short kernel; and the pager's own thread gets its mutex.
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  FakeGpu& gpu_;
  std::vector<std::vector<ExtentId>> sets_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<uint64_t> takes_{0};
  std::atomic<bool> ended_{false};
  std::vector<std::thread> threads_;
};

struct __attribute__((packed)) Unaligned {
  uint64_t word;
};

uint32_t seedOf(const char* what) {
  const char* const given = std::getenv("OL_TEST_SEED");
  const uint32_t seed = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 0))
                                         : std::random_device{}();
  std::printf("%s: OL_TEST_SEED=%u\n", what, seed);
  return seed;
}

__attribute__((target("avx2"))) std::array<uint64_t, 4> gatherAtOnce(
    const std::array<uint64_t, 4>& addresses) {
  const __m256i from = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(addresses.data()));
  const __m256i got = _mm256_i64gather_epi64(static_cast<const long long*>(nullptr), from, 1);
  std::array<uint64_t, 4> words;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words.data()), got);
  return words;
}

/// A word of each of these pages, by one instruction where the processor has it.
std::array<uint64_t, 4> gather(const Rig& rig, const std::array<uint32_t, 4>& pages, size_t word) {
  std::array<uint64_t, 4> addresses{}, words{};
  for (size_t i = 0; i < pages.size(); ++i)
    addresses[i] = reinterpret_cast<uint64_t>(rig.page(pages[i]) + word);
  if (__builtin_cpu_supports("avx2")) return gatherAtOnce(addresses);
  for (size_t i = 0; i < pages.size(); ++i)
    words[i] = *reinterpret_cast<volatile uint64_t*>(addresses[i]);
  return words;
}

thread_local sigjmp_buf t_back;

/// ThreadSanitizer takes a mapping for a write. The fault orders the two.
__attribute__((noinline, no_sanitize("thread"))) void touch(uint64_t address) {
  (void)*reinterpret_cast<volatile uint64_t*>(address);
}

/// The signal that a read there ends in; 0: none.
int signalOf(uint64_t address) {
  struct sigaction action {};
  action.sa_handler = [](int signal) { siglongjmp(t_back, signal); };
  for (const int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
  const int signal = sigsetjmp(t_back, 1);
  if (signal == 0) touch(address);
  for (const int s : {SIGSEGV, SIGBUS}) std::signal(s, SIG_DFL);
  return signal;
}

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
  constexpr uint64_t kTurns = 100;
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
  // Pages that the CPU has cost nothing more.
  const uint64_t before = rig.cpu->counters().faults;
  page[0] = 0;  // it has read the page alone
  const uint64_t writes = rig.cpu->counters().write_faults;
  for (size_t word = 0; word < FakeGpu::kWords; ++word) page[word] = word;
  CHECK(rig.cpu->counters().faults == before);
  CHECK(rig.cpu->counters().write_faults == writes);
  rig.check();
}

TEST_CASE("whoever takes a page knows whether the CPU may have written it", "[managed]") {
  Rig rig(4);
  if (!faults()->protects()) {
    WARN("this kernel is older than Linux 6.4");
    return;
  }
  // The GPU has it and the CPU has not written it.
  const auto give = [&](uint32_t page) {
    rig.gpu->run(page, [](uint64_t* memory) { memory[5] = 55; });
    rig.frames->forgetWrites(page);
  };
  const CpuCounters& seen = rig.cpu->counters();
  give(0);
  CHECK(rig.page(0)[5] == 55);
  CHECK(rig.page(0)[FakeGpu::kWords - 1] == 0);
  CHECK_FALSE(rig.frames->written(0));
  CHECK(seen.write_faults == 0);
  rig.page(0)[6] = 66;
  CHECK(rig.frames->written(0));
  CHECK(seen.write_faults == 1);
  rig.page(0)[FakeGpu::kWords - 1] = 7;
  CHECK(seen.write_faults == 1);
  rig.gpu->run(0, [](uint64_t* memory) {
    CHECK(memory[5] == 55);
    CHECK(memory[6] == 66);
    CHECK(memory[FakeGpu::kWords - 1] == 7);
  });

  // The first touch is a write.
  give(1);
  rig.page(1)[0] = 1;
  CHECK(rig.frames->written(1));
  CHECK(seen.write_faults == 1);

  // A page written before is asked for by a read.
  give(1);
  CHECK(rig.page(1)[5] == 55);
  CHECK_FALSE(rig.frames->written(1));

  // A mapping that the program throws away comes again as it was, and may be written then.
  const uint64_t piece = 4096 * 3;
  REQUIRE(madvise(reinterpret_cast<void*>(rig.frames->view(1)), piece, MADV_DONTNEED) == 0);
  CHECK(rig.page(1)[5] == 55);
  CHECK_FALSE(rig.frames->written(1));
  REQUIRE(madvise(reinterpret_cast<void*>(rig.frames->view(1)), piece, MADV_DONTNEED) == 0);
  rig.page(1)[5] = 56;
  CHECK(rig.frames->written(1));
  rig.gpu->run(1, [](uint64_t* memory) { CHECK(memory[5] == 56); });

  // The program's own protection and back.
  give(2);
  CHECK(rig.page(2)[5] == 55);
  auto* const start = reinterpret_cast<void*>(rig.frames->view(2));
  REQUIRE(mprotect(start, space::kPageBytes, PROT_READ) == 0);
  REQUIRE(mprotect(start, space::kPageBytes, PROT_READ | PROT_WRITE) == 0);
  CHECK_FALSE(rig.frames->written(2));
  rig.page(2)[5] = 57;
  CHECK(rig.frames->written(2));
  if (!rig.serves_calls) return;

  // A call of the system reads it, and one writes it.
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const base::UniqueFd out(pipe_ends[0]), in(pipe_ends[1]);
  give(3);
  REQUIRE(write(in.get(), reinterpret_cast<const void*>(rig.frames->view(3)), 64) == 64);
  CHECK_FALSE(rig.frames->written(3));
  REQUIRE(::read(out.get(), reinterpret_cast<void*>(rig.frames->view(3) + 8), 64) == 64);
  CHECK(rig.frames->written(3));
  rig.gpu->run(3, [](uint64_t* memory) { CHECK(memory[6] == 55); });
  rig.check();
}

TEST_CASE("where reads can't be told from writes each page counts as written", "[managed]") {
  Rig rig(2, std::make_unique<WithoutProtection>(faults()));
  rig.gpu->run(0, [](uint64_t* memory) { memory[5] = 55; });
  CHECK_FALSE(rig.frames->written(0));
  CHECK(rig.page(0)[5] == 55);
  CHECK(rig.frames->written(0));
  rig.page(0)[5] = 56;
  rig.gpu->run(0, [](uint64_t* memory) { CHECK(memory[5] == 56); });
  CHECK(rig.cpu->counters().write_faults == 0);
  CHECK(WithoutProtection::mistakes == 0);
  rig.check();
}

TEST_CASE("what is read ahead is read, and what is written ahead is written", "[managed]") {
  constexpr uint32_t kPages = 24;
  Rig rig(kPages);
  if (!faults()->protects()) return;
  const auto take = [&] {
    // A page that is taken at once comes together with all that the thread has touched since.
    std::this_thread::sleep_for(std::chrono::nanoseconds(2 * Hold::kMost));
    for (uint32_t page = 0; page < kPages; ++page) {
      rig.gpu->take(page);
      rig.frames->forgetWrites(page);
    }
  };
  take();
  for (uint32_t page = 0; page < kPages; ++page) CHECK(rig.page(page)[1] == 0);
  CHECK(rig.cpu->counters().ahead > 0);
  for (uint32_t page = 0; page < kPages; ++page) CHECK_FALSE(rig.frames->written(page));
  take();
  for (uint32_t page = 0; page < kPages; ++page) rig.page(page)[1] = page;
  for (uint32_t page = 0; page < kPages; ++page) CHECK(rig.frames->written(page));
  CHECK(rig.cpu->counters().write_faults == 0);
  take();
  rig.cpu->want(0, kPages);
  for (uint32_t page = 0; page < kPages; ++page) CHECK(rig.page(page)[1] == page);
  for (uint32_t page = 0; page < kPages; ++page) CHECK_FALSE(rig.frames->written(page));
  rig.check();
}

TEST_CASE("threads write pages that others read, and lose nothing", "[managed]") {
  constexpr uint32_t kPages = 4, kThreads = 4;
  Rig rig(kPages);
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> wrong{0};
  std::array<std::array<uint64_t, kPages>, kThreads> written{};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!ended) {
        const uint32_t page = random() % kPages;
        // Read first: so the write is a fault of its own.
        const uint64_t value = rig.page(page)[8 + t];
        if (value != written[t][page]) ++wrong;
        if (random() % 65536 == 0) rig.page(page)[8 + t] = ++written[t][page];
      }
    });
  }
  // A launch that the CPU has not written for leaves the frame alone: its bytes are those that the
  // GPU had, which are compared.
  uint64_t unwritten = 0;
  std::array<std::array<uint64_t, kThreads>, kPages> had{};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (std::chrono::steady_clock::now() < until) {
    for (uint32_t page = 0; page < kPages; ++page) {
      rig.gpu->run(page, [&](uint64_t* memory) {
        std::array<uint64_t, kThreads> now{};
        for (uint32_t t = 0; t < kThreads; ++t) now[t] = memory[8 + t];
        if (!rig.frames->written(page)) {
          ++unwritten;
          if (now != had[page]) ++wrong;
        }
        had[page] = now;
        rig.frames->forgetWrites(page);
      });
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(unwritten > 0);
  std::printf("reads alone: %llu times, %llu write faults\n",
              static_cast<unsigned long long>(unwritten),
              static_cast<unsigned long long>(rig.cpu->counters().write_faults));
  rig.check();
}

TEST_CASE("a touch of two pages at once gets done under a storm", "[managed]") {
  Rig rig(2);
  Storm storm(*rig.gpu, {{0, 1}}, 2);
  auto* const across =
      reinterpret_cast<volatile Unaligned*>(rig.frames->view(1) - sizeof(uint64_t) / 2);
  // The halves are of different pages: only the whole of it counts.
  uint64_t turns = 0, wrong = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((storm.takes() < 300 || turns < 200) && std::chrono::steady_clock::now() < until) {
    ++turns;
    const uint64_t value = turns << 32 | turns;
    across->word = value;
    wrong += across->word != value;
  }
  storm.end();
  CHECK(wrong == 0);
  CHECK(turns >= 200);
  CHECK(storm.takes() >= 300);
  rig.check();
}

TEST_CASE("threads gather over many pages under a storm, and lose no write", "[managed]") {
  constexpr uint32_t kPages = 64, kThreads = 8;
  const uint32_t seed = seedOf("gather");
  Rig rig(kPages);
  // In each page: word 0 counts the GPU's takes, word 8 + t is thread t's own, the last word is the
  // page's name.
  for (uint32_t page = 0; page < kPages; ++page)
    rig.gpu->run(page, [&](uint64_t* memory) { memory[FakeGpu::kWords - 1] = page * 1000003; });
  Storm storm(*rig.gpu, kPages, 3, seed);
  std::atomic<uint64_t> wrong{0}, turns{0};
  std::array<std::array<uint64_t, kPages>, kThreads> written{};
  std::vector<std::thread> threads;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::array<uint64_t, kPages> seen{};
      while (std::chrono::steady_clock::now() < until) {
        std::array<uint32_t, 4> pages;
        for (uint32_t& page : pages) page = random() % kPages;
        const std::array<uint64_t, 4> names = gather(rig, pages, FakeGpu::kWords - 1);
        for (size_t i = 0; i < pages.size(); ++i) {
          const uint32_t page = pages[i];
          if (names[i] != page * 1000003ull) ++wrong;
          const uint64_t takes = rig.page(page)[0];
          if (takes < seen[page]) ++wrong;  // an older state of the page
          seen[page] = takes;
          rig.page(page)[8 + t] = ++written[t][page];
        }
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  storm.end();
  CHECK(wrong == 0);
  CHECK(turns > kThreads);
  for (uint32_t page = 0; page < kPages; ++page) {
    uint64_t takes = 0;
    bool same = true;
    rig.gpu->run(page, [&](uint64_t* memory) {
      takes = memory[0];
      for (uint32_t t = 0; t < kThreads; ++t) same = same && memory[8 + t] == written[t][page];
    });
    CHECK(same);
    CHECK(takes == storm.takesOf(page));
  }
  std::printf("gather: %llu turns, %llu takes, %llu faults, %llu holds made longer\n",
              static_cast<unsigned long long>(turns),
              static_cast<unsigned long long>(storm.takes()),
              static_cast<unsigned long long>(rig.cpu->counters().faults),
              static_cast<unsigned long long>(rig.cpu->counters().contended));
  rig.check();
}

TEST_CASE("system calls use managed memory", "[managed]") {
  Rig rig(4);
  if (!rig.serves_calls) {
    WARN("this user has faults of threads alone");
    return;
  }
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const base::UniqueFd out(pipe_ends[0]), in(pipe_ends[1]);
  constexpr size_t kBytes = 32768;
  for (int turn = 0; turn < 20; ++turn) {
    rig.gpu->run(0, [&](uint64_t* memory) { std::memset(memory, 'a' + turn, kBytes); });
    rig.gpu->take(2);
    // Across two pages, both at the GPU.
    auto* const to = reinterpret_cast<char*>(rig.frames->view(2) - kBytes / 2);
    rig.gpu->take(1);
    REQUIRE(write(in.get(), reinterpret_cast<const void*>(rig.frames->view(0)), kBytes) ==
            static_cast<ssize_t>(kBytes));
    REQUIRE(::read(out.get(), to, kBytes) == static_cast<ssize_t>(kBytes));
    CHECK(to[0] == 'a' + turn);
    CHECK(to[kBytes - 1] == 'a' + turn);
    rig.gpu->run(2, [&](uint64_t* memory) {
      CHECK(reinterpret_cast<const char*>(memory)[kBytes / 2 - 1] == 'a' + turn);
    });
  }
  rig.check();
}

TEST_CASE("a direct read goes into a page of the CPU's", "[managed]") {
  Rig rig(2);
  if (!rig.serves_calls) {
    WARN("this user has faults of threads alone");
    return;
  }
  std::string name = "managed-XXXXXX";
  const base::UniqueFd made(mkstemp(name.data()));
  REQUIRE(made);
  const std::string bytes(65536, 'd');
  REQUIRE(write(made.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const base::UniqueFd file(open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  unlink(name.c_str());
  if (!file) {
    WARN("this folder's file system has no direct reads");
    return;
  }
  rig.gpu->take(1);
  rig.page(1)[0] = 1;
  auto* const to = reinterpret_cast<char*>(rig.frames->view(1));
  REQUIRE(pread(file.get(), to, bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  uint32_t wrong = 0;
  rig.gpu->run(1, [&](uint64_t* memory) {
    wrong = std::memcmp(memory, bytes.data(), bytes.size()) != 0;
    std::memset(memory, 'e', bytes.size());
  });
  CHECK(wrong == 0);
  // And out of one that the GPU has.
  REQUIRE(pwrite(file.get(), to, bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  std::string back(bytes.size(), 0);
  REQUIRE(pread(made.get(), back.data(), back.size(), 0) == static_cast<ssize_t>(back.size()));
  CHECK(back == std::string(bytes.size(), 'e'));
  rig.check();
}

TEST_CASE("locked memory is given all the same", "[managed]") {
  Rig rig(2);
  rig.gpu->run(0, [](uint64_t* memory) { memory[5] = 55; });
  auto* const start = reinterpret_cast<void*>(rig.frames->view(0));
  if (mlock(start, space::kPageBytes) != 0) {
    WARN("this user may not lock 2 MiB, or has faults of threads alone");
    return;
  }
  CHECK(rig.page(0)[5] == 55);
  rig.page(0)[5] = 56;
  uint64_t seen = 0;
  rig.gpu->run(0, [&](uint64_t* memory) {
    seen = memory[5];
    memory[5] = 57;
  });
  CHECK(seen == 56);
  CHECK(rig.page(0)[5] == 57);
  rig.check();
}

TEST_CASE("a mapping that the program throws away comes again", "[managed]") {
  Rig rig(1);
  rig.page(0)[700] = 7;
  REQUIRE(madvise(reinterpret_cast<void*>(rig.frames->view(0)), 4096 * 3, MADV_DONTNEED) == 0);
  CHECK(rig.page(0)[700] == 7);
  CHECK(rig.page(0)[1] == 0);
  // The frame itself can't be.
  CHECK(madvise(reinterpret_cast<void*>(rig.frames->view(0)), 4096 * 3, MADV_REMOVE) == -1);
  CHECK(rig.page(0)[700] == 7);
  rig.check();
}

TEST_CASE("a forked child has a hole there, and the parent goes on", "[managed]") {
  Rig rig(2);
  rig.page(0)[0] = 11;
  std::atomic<bool> ended{false};
  std::thread parent([&] {
    while (!ended) {
      rig.page(1)[0] = rig.page(1)[0] + 1;
      rig.gpu->take(1);
    }
  });
  for (int i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      rig.cpu->forked();
      std::signal(SIGSEGV, [](int) { _exit(42); });
      _exit(rig.page(0)[0] == 11 ? 1 : 2);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 42);
    rig.gpu->take(0);
    CHECK(rig.page(0)[0] == 11);
  }
  ended = true;
  parent.join();
  rig.check();
}

TEST_CASE("a region is freed while others fault elsewhere", "[managed]") {
  Rig rig(4);
  Reserve second_reserve(4);
  Storm storm(*rig.gpu, 4, 1, 7);
  std::atomic<bool> ended{false};
  std::thread other([&] {
    for (uint32_t turn = 0; !ended; ++turn) rig.page(turn % 4)[1] = turn;
  });
  for (int round = 0; round < 10; ++round) {
    rig.exchange.allocate(4, 4);
    Result<std::unique_ptr<Frames>> frames = Frames::make(second_reserve.address(), 4);
    REQUIRE(frames.ok());
    Frames& second = *frames.value();
    rig.gpu->add(4, second);
    REQUIRE(rig.cpu->add(4, second).ok());
    for (uint32_t page = 0; page < 3; ++page) {
      auto* const word = reinterpret_cast<volatile uint64_t*>(second.view(page));
      CHECK(*word == 0);  // of the former region nothing is left
      *word = 99;
      if (page == 1) rig.gpu->take(4 + page);
    }
    rig.exchange.free(4, 4);
    // Between the free and the end of its region: as after it.
    CHECK(signalOf(second.view(1)) == SIGSEGV);
    rig.awaitReleased(4);
    rig.cpu->remove(4);
    CHECK(signalOf(second.view(0)) == SIGSEGV);
    CHECK(signalOf(second.view(3)) == SIGSEGV);
  }
  ended = true;
  other.join();
  storm.end();
  rig.check();
}

TEST_CASE("a touch of what is lost is a SIGBUS, of the rest none", "[managed]") {
  Rig rig(3, faults(), Frames::Memory::kByPage);
  rig.page(0)[0] = 1;
  for (const ExtentId page : {1u, 2u}) {
    rig.gpu->take(page);
    rig.gpu->lose(page);
  }
  CHECK(signalOf(rig.frames->view(1)) == SIGBUS);
  CHECK(signalOf(rig.frames->view(1) + 4096) == SIGBUS);
  CHECK(signalOf(rig.frames->view(2)) == SIGBUS);
  CHECK(signalOf(rig.frames->view(0)) == 0);
  rig.check();
}

TEST_CASE("a thread that waits while its page is lost gets the signal", "[managed]") {
  Rig rig(1, faults(), Frames::Memory::kByPage);
  std::binary_semaphore begun{0}, go_on{0};
  std::thread kernel([&] {
    rig.gpu->run(0, [&](uint64_t*) {
      begun.release();
      go_on.acquire();
    });
  });
  begun.acquire();
  std::atomic<int> signal{-1};
  std::thread toucher([&] { signal = signalOf(rig.frames->view(0)); });
  while (rig.cpu->counters().faults == 0) std::this_thread::yield();
  rig.gpu->lose(0);
  CHECK(signal == -1);
  go_on.release();
  toucher.join();
  CHECK(signal == SIGBUS);
  kernel.join();
  rig.check();
}

TEST_CASE("one page that waits for a kernel holds no other up", "[managed]") {
  Rig rig(3);
  std::binary_semaphore begun{0}, go_on{0};
  std::thread kernel([&] {
    rig.gpu->run(0, [&](uint64_t* memory) {
      begun.release();
      go_on.acquire();
      memory[0] = 5;
    });
  });
  begun.acquire();
  std::array<std::atomic<uint64_t>, 3> seen{};
  std::vector<std::thread> waiting;
  for (size_t t = 0; t < seen.size(); ++t)
    waiting.emplace_back([&, t] { seen[t] = rig.page(0)[t * 512]; });
  while (rig.cpu->counters().faults < 3) std::this_thread::yield();
  for (uint64_t turn = 0; turn < 20; ++turn) {
    rig.page(2)[0] = turn;
    rig.gpu->take(2);
    REQUIRE(rig.page(2)[0] == turn);
  }
  for (int i = 0; i < 300 && rig.cpu->counters().long_waits == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  // Three touches of one page are one wait.
  CHECK(rig.cpu->counters().long_waits == 1);
  CHECK(rig.cpu->counters().last_long_wait == rig.frames->view(0));
  go_on.release();
  kernel.join();
  for (std::thread& thread : waiting) thread.join();
  CHECK(seen[0] == 5);
  rig.check();
}

TEST_CASE("a sequential scan is asked for ahead", "[managed]") {
  constexpr uint32_t kPages = 40;
  Rig rig(kPages);
  for (uint32_t page = 0; page < kPages; ++page)
    rig.gpu->run(page, [&](uint64_t* memory) { memory[9] = page + 100; });
  uint32_t wrong = 0;
  for (uint32_t page = 0; page < kPages; ++page) wrong += rig.page(page)[9] != page + 100;
  CHECK(wrong == 0);
  CHECK(rig.cpu->counters().ahead > kPages / 2);
  // Pages at the CPU already are not asked for again.
  const uint64_t ahead = rig.cpu->counters().ahead, faults_before = rig.cpu->counters().faults;
  for (uint32_t page = 0; page < kPages; ++page) wrong += rig.page(page)[9] != page + 100;
  CHECK(wrong == 0);
  CHECK(rig.cpu->counters().ahead == ahead);
  CHECK(rig.cpu->counters().faults == faults_before);
  rig.check();
}

TEST_CASE("what is wanted comes without a touch", "[managed]") {
  constexpr uint32_t kPages = 70;
  Rig rig(kPages);
  for (uint32_t page = 0; page < kPages; ++page)
    rig.gpu->run(page, [&](uint64_t* memory) { memory[9] = page + 100; });
  rig.cpu->want(0, kPages);
  for (int i = 0; i < 1000 && rig.cpu->counters().published < kPages; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(rig.cpu->counters().published == kPages);
  uint32_t wrong = 0;
  for (uint32_t page = 0; page < kPages; ++page) wrong += rig.page(page)[9] != page + 100;
  CHECK(wrong == 0);
  CHECK(rig.cpu->counters().faults == 0);
  rig.check();
}

TEST_CASE("a thread that has passed holds nothing any more", "[managed]") {
  Rig rig(1);
  // The hold of a page that is taken again and again grows; who passes gives it at once.
  for (int turn = 0; turn < 50; ++turn) {
    rig.page(0)[0] = 1;
    rig.cpu->passed(static_cast<pid_t>(syscall(SYS_gettid)));
    rig.gpu->take(0);
  }
  CHECK(rig.cpu->counters().given == 50);
  rig.check();
}

TEST_CASE("with faults of threads alone, a system call gets EFAULT", "[managed]") {
  Rig rig(2, UserFaults::Reach::kUserMode);
  rig.gpu->run(0, [](uint64_t* memory) { memory[0] = 3; });
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const base::UniqueFd out(pipe_ends[0]), in(pipe_ends[1]);
  const void* const from = reinterpret_cast<const void*>(rig.frames->view(0));
  CHECK(write(in.get(), from, 8) == -1);
  CHECK(errno == EFAULT);
  CHECK(rig.page(0)[0] == 3);
  CHECK(write(in.get(), from, 8) == 8);
  rig.check();
}

TEST_CASE("after the end a touch of what others have is a SIGSEGV", "[managed]") {
  Rig rig(3);
  rig.page(0)[0] = 21;
  rig.gpu->take(1);
  CHECK(rig.page(2)[0] == 0);
  rig.cpu->stop();
  CHECK(rig.page(0)[0] == 21);
  rig.page(2)[0] = 22;  // only read until now
  CHECK(rig.page(2)[0] == 22);
  CHECK(signalOf(rig.frames->view(1)) == SIGSEGV);
  CHECK_FALSE(rig.cpu->add(3, *rig.frames).ok());
}

TEST_CASE("what the CPU has got is there after the end, touched or not", "[managed]") {
  constexpr uint32_t kPages = 12;
  Rig rig(kPages);
  for (uint32_t page = 0; page + 1 < kPages; ++page)
    rig.gpu->run(page, [&](uint64_t* memory) { memory[9] = page + 100; });
  // Two pages one after the other: the next one is the CPU's by then, and waits for a touch.
  CHECK(rig.page(0)[9] == 100);
  CHECK(rig.page(1)[9] == 101);
  rig.cpu->want(0, kPages);
  for (int i = 0; i < 1000 && rig.cpu->awayOf(0, kPages) != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(rig.cpu->awayOf(0, kPages) == 0);
  rig.cpu->stop();
  for (uint32_t page = 0; page + 1 < kPages; ++page) {
    REQUIRE(signalOf(rig.frames->view(page)) == 0);
    CHECK(rig.page(page)[9] == page + 100);
    rig.page(page)[9] = 7;
  }
  REQUIRE(signalOf(rig.frames->view(kPages - 1)) == 0);
  CHECK(rig.page(kPages - 1)[9] == 0);
  rig.check();
}

TEST_CASE("frames that can't be had are an error", "[managed]") {
  Reserve reserve(4);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 4 << 20, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const Result<std::unique_ptr<Frames>> made = Frames::make(reserve.address(), 4);
  setrlimit(RLIMIT_FSIZE, &before);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().message.find("managed memory of 8 MiB can't be had") == 0);
  CHECK(signalOf(reserve.address()) == SIGSEGV);
  const Result<std::unique_ptr<Frames>> again = Frames::make(reserve.address(), 4, false);
  REQUIRE(again.ok());
  CHECK(signalOf(reserve.address()) == 0);
}
