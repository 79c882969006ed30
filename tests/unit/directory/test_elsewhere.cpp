// A GPU's pager and the program's CPU as agents of one directory, over calls: what
// pager/tiers/elsewhere.h and the exchange say of threads, of operations that the agent is not told
// of, and of frames that others read. The pagers are fakes of a few pages with real bytes and real
// threads; the protocol is the real one.
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <semaphore>
#include <thread>

#include "coherence/directory/exchange.h"
#include "pager/tiers/elsewhere.h"
#include "tests/catch.h"

using namespace olpager::directory;
using namespace olpager::pager;

namespace {

using Lock = std::unique_lock<std::mutex>;
constexpr Mode W = Mode::kOwn, R = Mode::kShared;
constexpr size_t kWords = 512;
using Frame = std::array<uint64_t, kWords>;

class FakePager;
/// The roles: a taker reads the giver's frame.
struct Machine {
  explicit Machine(ExtentId extents_) : extents(extents_) { exchange.allocate(0, extents); }
  ExtentId extents;
  Exchange exchange;
  std::array<FakePager*, 2> pagers{};
};

class FakePager final : public Residence<Lock> {
 public:
  FakePager(Machine& machine, AgentId id)
      : machine_(machine), id_(id), elsewhere_(id, *this), pages_(machine.extents) {
    elsewhere_.resize(machine.extents);
    machine.pagers[id] = this;
    machine.exchange.join(id, [this] { bell_.release(); });
    thread_ = std::thread([this] { loop(); });
  }
  ~FakePager() override {
    ended_ = true;
    bell_.release();
    thread_.join();
  }

  /// A launch, a copy or a CPU access that uses these extents: does `work` with their frames.
  template <typename Work>
  void run(std::vector<Need> needs, Work&& work) {
    Lock lock(mutex_);
    if (beginUntold(needs)) {
      ++untold_runs;
      lock.unlock();
      for (const Need& need : needs) work(*pages_[need.extent].frame);
      lock.lock();
      for (const Need& need : needs) endUntold(need.extent, lock);
      return;
    }
    ++told_runs;
    const Age age = machine_.exchange.operation(id_);
    // As a launch is: what is named is known at once, the rest is found.
    elsewhere_.need(age, std::span(needs).first(1), machine_.exchange.oldest(), lock);
    for (size_t i = 1; i < needs.size(); ++i) elsewhere_.more(age, needs[i], lock);
    while (!elsewhere_.submit(age)) changed_.wait(lock);
    lock.unlock();
    for (const Need& need : needs) work(*pages_[need.extent].frame);
    lock.lock();
    for (const Need& need : needs) pages_[need.extent].written |= need.mode == W;
    elsewhere_.complete(age, lock);
  }

  /// One that runs on until endKernel(). Extents that it uses are granted for writing.
  void beginKernel(ExtentId extent) {
    Lock lock(mutex_);
    REQUIRE(beginUntold({{extent, W}}));
  }
  void endKernel(ExtentId extent) {
    Lock lock(mutex_);
    endUntold(extent, lock);
  }
  bool holdsFrame(ExtentId extent) {
    Lock lock(mutex_);
    return pages_[extent].frame != nullptr;
  }
  std::atomic<uint32_t> untold_runs{0}, told_runs{0};
  std::atomic<uint32_t> mistakes{0};

 private:
  struct Page {
    std::unique_ptr<Frame> frame;
    bool mapped = false, writable = false, blocked = false, written = false, lent = false;
    bool stop_asked = false;
    uint32_t untold = 0;
  };
  struct Copy {
    ExtentId extent;
    AgentId from;
    Number number;
  };

  // Catch is not for several threads.
  void expect(bool holds) {
    if (!holds) ++mistakes;
  }

  bool beginUntold(const std::vector<Need>& needs) {
    for (const Need& need : needs) {
      const Page& page = pages_[need.extent];
      if (!page.mapped || !page.writable || page.blocked) return false;
    }
    for (const Need& need : needs) ++pages_[need.extent].untold;
    return true;
  }
  void endUntold(ExtentId extent, Lock& lock) {
    Page& page = pages_[extent];
    page.written = true;
    if (--page.untold == 0 && page.stop_asked) quieted(extent, lock);
  }
  void quieted(ExtentId extent, Lock& lock) {
    Page& page = pages_[extent];
    page.stop_asked = false;
    elsewhere_.quiet(extent, page.written, lock);
  }
  void take(ExtentId extent) {
    Page& page = pages_[extent];
    expect(!page.mapped);
    if (page.frame == nullptr) page.frame = std::make_unique<Frame>();
  }

  // Residence
  void fetch(ExtentId extent, AgentId from, Number number, Content, Lock&) override {
    take(extent);
    copies_.push_back({extent, from, number});
    bell_.release();
  }
  void clear(ExtentId extent, Lock&) override {
    take(extent);
    pages_[extent].frame->fill(0);
  }
  void grant(ExtentId extent, Mode mode, Lock& lock) override {
    // As a call of the driver.
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    Page& page = pages_[extent];
    expect(page.frame != nullptr && (mode == W || page.untold == 0));
    page.mapped = true;
    page.writable = mode == W;
    page.blocked = page.written = page.stop_asked = false;
  }
  void yield(ExtentId extent, Lock& lock) override {
    Page& page = pages_[extent];
    expect(page.mapped && page.untold == 0 && !page.lent);
    page.mapped = page.writable = false;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  void release(ExtentId extent, Lock&) override {
    expect(!pages_[extent].mapped && !pages_[extent].lent);
    pages_[extent].frame.reset();
  }
  void stop(ExtentId extent, Lock& lock) override {
    Page& page = pages_[extent];
    page.blocked = page.stop_asked = true;
    if (page.untold == 0) quieted(extent, lock);
  }
  void go(ExtentId extent, Lock&) override {
    pages_[extent].blocked = pages_[extent].stop_asked = false;
  }
  void lend(ExtentId extent, Lock&) override {
    expect(pages_[extent].mapped && !pages_[extent].writable);
    pages_[extent].lent = true;
  }
  void lendOver(ExtentId extent, Lock&) override { pages_[extent].lent = false; }
  void runnable(Age) override { changed_.notify_all(); }
  void failed(Age, ExtentId) override { expect(false); }
  void post(const Message& message) override { machine_.exchange.post(message); }
  void violated(const Action&) override { expect(false); }

  void loop() {
    std::vector<Message> messages;
    for (;;) {
      bell_.acquire();
      if (ended_) return;
      Lock lock(mutex_);
      messages.clear();
      if (machine_.exchange.take(id_, messages)) {
        for (const Message& message : messages) elsewhere_.receive(message, lock);
      }
      while (!copies_.empty()) {
        const Copy copy = copies_.front();
        copies_.pop_front();
        Frame& to = *pages_[copy.extent].frame;
        lock.unlock();
        const Frame& from = machine_.pagers[copy.from]->frameToRead(copy.extent);
        std::memcpy(&to, &from, sizeof to / 2);
        std::this_thread::yield();
        std::memcpy(to.data() + kWords / 2, from.data() + kWords / 2, sizeof to / 2);
        lock.lock();
        elsewhere_.landed(copy.extent, copy.number, lock);
      }
    }
  }
  const Frame& frameToRead(ExtentId extent) {
    Lock lock(mutex_);
    const Page& page = pages_[extent];
    expect(page.frame != nullptr && (!page.mapped || page.lent));
    return *page.frame;
  }

  Machine& machine_;
  AgentId id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::counting_semaphore<> bell_{0};
  // Under the mutex:
  Elsewhere<Lock> elsewhere_;
  std::vector<Page> pages_;
  std::deque<Copy> copies_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

struct Rig {
  Machine machine;
  FakePager gpu, cpu;
  explicit Rig(ExtentId extents) : machine(extents), gpu(machine, 0), cpu(machine, 1) {}
  void check() {
    CHECK(gpu.mistakes == 0);
    CHECK(cpu.mistakes == 0);
    CHECK(machine.exchange.news().empty());
  }
};

void increment(Frame& frame) {
  for (uint64_t& word : frame) std::atomic_ref(word).fetch_add(1, std::memory_order_relaxed);
}

/// The value of all words of the frame, or -1.
int64_t valueOf(Frame& frame) {
  const uint64_t first = std::atomic_ref(frame[0]).load(std::memory_order_relaxed);
  for (uint64_t& word : frame) {
    if (std::atomic_ref(word).load(std::memory_order_relaxed) != first) return -1;
  }
  return static_cast<int64_t>(first);
}

}  // namespace

TEST_CASE("GPU and CPU use a page in turns", "[elsewhere]") {
  Rig rig(2);
  int64_t seen = -2;
  rig.cpu.run({{0, W}}, increment);
  for (int64_t turn = 1; turn < 50; turn += 2) {
    rig.gpu.run({{0, W}, {1, W}}, increment);
    rig.cpu.run({{0, R}}, [&](Frame& frame) { seen = valueOf(frame); });
    REQUIRE(seen == turn + 1);
    rig.gpu.run({{0, R}}, [&](Frame& frame) { seen = valueOf(frame); });
    REQUIRE(seen == turn + 1);
    rig.cpu.run({{0, W}}, increment);
  }
  // Extents granted for writing cost no message.
  const uint32_t told = rig.cpu.told_runs;
  for (int i = 0; i < 10; ++i) rig.cpu.run({{0, W}}, increment);
  CHECK(rig.cpu.told_runs == told);
  rig.check();
}

TEST_CASE("a kernel that does not end holds what it uses and nothing else", "[elsewhere]") {
  Rig rig(3);
  rig.gpu.run({{0, W}}, increment);
  rig.gpu.run({{1, W}}, increment);
  rig.cpu.run({{2, W}}, increment);
  rig.gpu.beginKernel(0);
  std::atomic<bool> got{false};
  int64_t seen = -2;
  std::thread reader([&] {
    rig.cpu.run({{0, R}}, [&](Frame& frame) { seen = valueOf(frame); });
    got = true;
  });
  // Both ways, past the one that waits; later launches on what it uses wait with it.
  for (int i = 0; i < 20; ++i) {
    rig.cpu.run({{1, W}}, increment);
    rig.gpu.run({{1, W}, {2, W}}, increment);
    rig.cpu.run({{2, W}}, increment);
  }
  CHECK_FALSE(got);
  rig.gpu.endKernel(0);
  reader.join();
  CHECK(seen == 1);
  rig.check();
}

TEST_CASE("a storm of launches and CPU accesses loses no write and tears none", "[elsewhere]") {
  constexpr ExtentId kExtents = 6;
  constexpr int kThreads = 3, kRounds = 300;
  Rig rig(kExtents);
  std::array<std::atomic<int64_t>, kExtents> expected{};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads * 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t) + 1);
      FakePager& pager = t % 2 == 0 ? rig.gpu : rig.cpu;
      for (int round = 0; round < kRounds; ++round) {
        const ExtentId a = random() % kExtents, b = (a + 1 + random() % (kExtents - 1)) % kExtents;
        if (random() % 4 == 0) {
          pager.run({{a, R}}, [](Frame& frame) { (void)valueOf(frame); });
          continue;
        }
        pager.run({{a, W}, {b, W}}, increment);
        ++expected[a];
        ++expected[b];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (ExtentId p = 0; p < kExtents; ++p) {
    int64_t seen = -2;
    rig.cpu.run({{p, R}}, [&](Frame& frame) { seen = valueOf(frame); });
    CHECK(seen == expected[p]);
  }
  CHECK(rig.gpu.untold_runs > 0);
  CHECK(rig.gpu.told_runs > 0);
  rig.check();
}

TEST_CASE("a freed extent leaves no frame, and can be had again", "[elsewhere]") {
  Rig rig(2);
  rig.gpu.run({{0, W}, {1, W}}, increment);
  rig.cpu.run({{0, R}}, [](Frame&) {});
  rig.machine.exchange.free(0, 2);
  size_t released = 0;
  for (int i = 0; i < 10000 && released < 2; ++i) {
    for (const Action& action : rig.machine.exchange.news()) {
      REQUIRE(action.kind == ActionKind::kReleased);
      ++released;
    }
    std::this_thread::yield();
    if (i > 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(released == 2);
  for (ExtentId p = 0; p < 2; ++p) {
    CHECK_FALSE(rig.gpu.holdsFrame(p));
    CHECK_FALSE(rig.cpu.holdsFrame(p));
  }
  rig.machine.exchange.allocate(0, 2);
  int64_t seen = -2;
  rig.cpu.run({{0, W}}, [&](Frame& frame) { seen = valueOf(frame); });
  CHECK(seen == 0);
  rig.check();
}
