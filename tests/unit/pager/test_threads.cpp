// Streams and threads: what is used is not taken away, whoever asks, in whatever order. Long: one
// file for a subject, whose cases share their set-up.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "pager/launch/in_flight.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

/// The number of the newest launch, for tables whose streams a test gives numbers by hand.
const std::atomic<uint64_t> no_launch{0};

void endStream(Rig& rig, CUstream stream) {
  rig.pool().streamDestroyed(rig.key(stream));
  driver().api.cuStreamDestroy_v2(stream);
}

struct Buffer {
  CUdeviceptr address;
  uint64_t bytes;
  uint64_t seed;
  uint64_t added;
};

/// One thread's life: allocations, launches, copies and frees by chance, contents followed by a
/// model. Returns what went wrong.
std::string live(Rig& rig, const StreamKey& stream, uint64_t seed, unsigned steps,
                 uint64_t most_bytes) {
  rig.enterThread();
  std::mt19937_64 random(seed);
  std::vector<Buffer> buffers;
  uint64_t held = 0;
  const CUfunction fill = rig.kernel("fill"), add = rig.kernel("addTo");
  const auto check = [&](const Buffer& buffer) -> std::string {
    std::vector<uint64_t> words(buffer.bytes / 8);
    Access access(rig.pool(), stream);
    access.addRange(buffer.address, buffer.bytes, Mode::kRead);
    if (const CUresult result = access.acquire(); result != CUDA_SUCCESS)
      return "acquire " + std::to_string(result);
    const CUresult copied = driver().api.cuMemcpyDtoHAsync_v2(words.data(), buffer.address,
                                                              buffer.bytes, stream.stream);
    access.submitted(copied);
    if (copied != CUDA_SUCCESS) return "copy " + std::to_string(copied);
    if (const CUresult result = driver().api.cuStreamSynchronize(stream.stream);
        result != CUDA_SUCCESS)
      return "synchronize " + std::to_string(result);
    for (uint64_t i = 0; i < buffer.bytes / 8 / kStep; ++i)
      if (words[i * kStep] != mix(buffer.seed + i) + buffer.added) return "wrong contents";
    return "";
  };
  for (unsigned step = 0; step < steps; ++step) {
    const uint64_t what = random() % 10;
    if (buffers.empty() || (what < 2 && held < most_bytes)) {
      const uint64_t bytes = (1 + random() % 3) * 2 * kMiB;
      Buffer buffer{0, bytes, random(), 0};
      if (const CUresult result = rig.tryAllocate(bytes, &buffer.address); result != CUDA_SUCCESS)
        return "allocate " + std::to_string(result);
      if (const CUresult result =
              rig.tryLaunch(stream, fill, buffer.address, bytes / 8 / kStep, kStep, buffer.seed);
          result != CUDA_SUCCESS)
        return "fill " + std::to_string(result);
      held += bytes;
      buffers.push_back(buffer);
      continue;
    }
    const size_t at = random() % buffers.size();
    Buffer& buffer = buffers[at];
    if (what < 8) {
      const uint64_t value = random() % 1000;
      if (const CUresult result =
              rig.tryLaunch(stream, add, buffer.address, buffer.bytes / 8 / kStep, kStep, value);
          result != CUDA_SUCCESS)
        return "add " + std::to_string(result);
      buffer.added += value;
    } else {
      if (std::string wrong = check(buffer); !wrong.empty()) return wrong;
      if (what < 9) continue;
      if (const CUresult result = rig.pool().free(buffer.address); result != CUDA_SUCCESS)
        return "free " + std::to_string(result);
      held -= buffer.bytes;
      buffers.erase(buffers.begin() + static_cast<ptrdiff_t>(at));
    }
  }
  for (const Buffer& buffer : buffers) {
    if (std::string wrong = check(buffer); !wrong.empty()) return wrong;
    if (rig.pool().free(buffer.address) != CUDA_SUCCESS) return "free at the end";
  }
  return "";
}

}  // namespace

TEST_CASE("the pool may be stopped while a context goes", "[pager][threads]") {
  const bool moves = GENERATE(false, true);  // the engine goes on in another context
  for (int turn = 0; turn < 8; ++turn) {
    Rig rig({.vram = 16 * kMiB});
    rig.fill(rig.allocate(4 * kMiB), 4 * kMiB, 1);
    CUcontext second = nullptr;
    if (moves) {
      CUdeviceptr there = 0;
      REQUIRE(driver().cuCtxCreate_v4(&second, nullptr, 0, 0) == CUDA_SUCCESS);
      REQUIRE(rig.pool().allocate(second, 0, 2 * kMiB, AllocationKind::kDevice, &there) ==
              CUDA_SUCCESS);
      rig.enterThread();
    }
    rig.press();
    rig.synchronize();
    std::atomic<bool> go{false};
    std::thread stops([&] {
      while (!go) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(100 * turn));
      rig.pool().stop();
    });
    go = true;
    rig.pool().contextGone(rig.context());
    stops.join();
    if (second != nullptr) driver().cuCtxDestroy_v2(second);
  }
}

TEST_CASE("what a long kernel reads stays while its neighbours are evicted", "[pager][streams]") {
  Rig rig;
  const CUstream first = rig.makeStream(), second = rig.makeStream();
  const CUdeviceptr x = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  rig.put(x, 7);
  rig.press();
  for (int round = 0; round < 2; ++round) {
    rig.launch(first, "readLong", out, x, uint64_t{200000});
    // The other stream uses x later and ends sooner.
    rig.launch(second, "addTo", x, uint64_t{1}, kStep, uint64_t{0});
    std::vector<CUdeviceptr> others;
    for (int i = 0; i < 6; ++i) {
      others.push_back(rig.allocate(2 * kMiB));
      rig.fill(others.back(), 2 * kMiB, others.back(), second);
    }
    for (const CUdeviceptr other : others)
      rig.launch(second, "addTo", other, uint64_t{4}, kStep, uint64_t{1});
    REQUIRE(driver().api.cuStreamSynchronize(first) == CUDA_SUCCESS);
    REQUIRE(driver().api.cuStreamSynchronize(second) == CUDA_SUCCESS);
    CHECK(rig.get(out) == 7ull * 200000);
    for (const CUdeviceptr other : others) rig.free(other);
  }
  endStream(rig, first);
  endStream(rig, second);
}

TEST_CASE("a thread that stops between the look-up and its launch keeps what it found",
          "[pager][streams][threads][numa]") {
  Rig rig;
  const CUstream stream = rig.makeStream();
  const CUdeviceptr x = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB),
                    y = rig.allocate(2 * kMiB);
  rig.put(x, 7);
  rig.put(y, 1);
  rig.press();
  for (int round = 0; round < 3; ++round) {
    const uint64_t reads = 2000;
    Access access(rig.pool(), rig.key(stream));
    access.setFunction(rig.kernel("readLong"));
    access.addParameter(&out, sizeof out);
    access.addParameter(&x, sizeof x);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    // Meanwhile another thread's later work on the same stream is over, and other memory takes all
    // of VRAM.
    std::thread([&] {
      rig.enterThread();
      rig.launch(stream, "addTo", y, uint64_t{1}, kStep, uint64_t{1});
      CHECK(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
      rig.press();
    }).join();
    std::array<const void*, 3> arguments = {&out, &x, &reads};
    const CUresult launched =
        driver().api.cuLaunchKernel(rig.kernel("readLong"), 1, 1, 1, 32, 1, 1, 0, stream,
                                    const_cast<void**>(arguments.data()), nullptr);
    access.submitted(launched);
    REQUIRE(launched == CUDA_SUCCESS);
    rig.press();  // now it may go, once the kernel is done
    REQUIRE(driver().api.cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(rig.get(out) == 7 * reads);
    CHECK(rig.get(y) == 2 + static_cast<uint64_t>(round));
  }
  endStream(rig, stream);
}

TEST_CASE("the work of a stream that was destroyed holds its memory", "[pager][streams]") {
  Rig rig;
  const CUdeviceptr x = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  rig.put(x, 7);
  rig.press();
  for (int round = 0; round < 3; ++round) {
    const CUstream stream = rig.makeStream();
    rig.launch(stream, "readLong", out, x, uint64_t{200000});
    endStream(rig, stream);
    rig.press();
    rig.synchronize();
    CHECK(rig.get(out) == 7ull * 200000);
  }
}

TEST_CASE("per-thread default streams", "[pager][streams]") {
  Rig rig;
  const uint64_t seed = seedOr(11);
  std::vector<std::string> wrong(4);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] {
      wrong[i] = live(rig, {rig.context(), CU_STREAM_PER_THREAD, 100 + i}, seed + i, 30, 8 * kMiB);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what == "");
}

TEST_CASE("eight threads on one stream and on streams of their own", "[pager][streams][threads]") {
  Rig rig({.vram = 16 * kMiB, .host = 512 * kMiB, .seconds = 240});
  const uint64_t seed = seedOr(3);
  const bool shared = GENERATE(true, false);
  std::vector<CUstream> streams;
  streams.reserve(8);
  for (int i = 0; i < (shared ? 1 : 8); ++i) streams.push_back(rig.makeStream());
  std::vector<std::string> wrong(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] {
      wrong[i] = live(rig, rig.key(streams[i % streams.size()]), seed * 100 + i, 40, 10 * kMiB);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what == "");
  for (const CUstream stream : streams) endStream(rig, stream);
}

TEST_CASE("small allocations from eight threads are mapped when they are given out",
          "[pager][threads]") {
  Rig rig({.vram = 64 * kMiB});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      rig.enterThread();
      const CUfunction fill = rig.kernel("fill");
      for (uint64_t k = 0; k < 100; ++k) {
        CUdeviceptr at = 0;
        if (rig.tryAllocate(300000, &at) != CUDA_SUCCESS ||
            rig.tryLaunch({rig.context(), CU_STREAM_LEGACY, 0}, fill, at, uint64_t{1}, kStep,
                          i + k) != CUDA_SUCCESS ||
            (k % 3 == 0 && rig.pool().free(at) != CUDA_SUCCESS))
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(driver().api.cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a dozen threads whose launches hardly fit together", "[pager][threads]") {
  Rig rig({.vram = 8 * kMiB, .host = 512 * kMiB, .seconds = 240});
  const uint64_t seed = seedOr(5);
  std::vector<std::string> wrong(12);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < wrong.size(); ++i)
    threads.emplace_back([&, i] {
      wrong[i] =
          live(rig, {rig.context(), CU_STREAM_PER_THREAD, 100 + i}, seed * 100 + i, 40, 8 * kMiB);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what == "");
}

TEST_CASE("two threads whose launches fit one at a time", "[pager][threads]") {
  Rig rig({.vram = 8 * kMiB, .host = 64 * kMiB});
  CUdeviceptr buffers[2] = {rig.allocate(6 * kMiB), rig.allocate(6 * kMiB)};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      rig.enterThread();
      const CUfunction add = rig.kernel("addTo"), fill = rig.kernel("fill");
      const StreamKey stream{rig.context(), CU_STREAM_LEGACY, 0};
      if (rig.tryLaunch(stream, fill, buffers[i], 6 * kMiB / 8 / kStep, kStep, uint64_t{i}) !=
          CUDA_SUCCESS)
        ++wrong;
      for (int k = 0; k < 10; ++k)
        if (rig.tryLaunch(stream, add, buffers[i], 6 * kMiB / 8 / kStep, kStep, uint64_t{1}) !=
            CUDA_SUCCESS)
          ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(rig.holds(buffers[0], 6 * kMiB, 0, 10));
  CHECK(rig.holds(buffers[1], 6 * kMiB, 1, 10));
}

TEST_CASE("what is zeroed after it was used in place is not taken for its old copy",
          "[pager][hash][numa]") {
  Rig rig;
  const CUdeviceptr x = rig.allocate(2 * kMiB), big = rig.allocate(8 * kMiB);
  REQUIRE(rig.zero(CU_STREAM_LEGACY, x, 2 * kMiB) == CUDA_SUCCESS);
  rig.press();  // its copy in host memory, and the hash of it, are of zeros
  // More than VRAM at once: x is used in place.
  rig.launch(CU_STREAM_LEGACY, "sumTwo", x, big, big + 4 * kMiB, 4 * kMiB / 8 / kStep, kStep);
  for (int i = 0; i < 3; ++i) {
    rig.launch(CU_STREAM_LEGACY, "addTo", x, uint64_t{8}, kStep, uint64_t{5});
    rig.launch(CU_STREAM_LEGACY, "copyTo", big, x, uint64_t{8}, kStep);
  }
  rig.synchronize();
  REQUIRE(rig.pool().pin(x) == CUDA_SUCCESS);
  REQUIRE(rig.pool().unpin(x) == CUDA_SUCCESS);
  REQUIRE(rig.zero(CU_STREAM_LEGACY, x, 2 * kMiB) == CUDA_SUCCESS);
  rig.press();
  rig.press();
  for (uint64_t i = 0; i < 8; ++i) CHECK(rig.get(x + i * kStep * 8) == 0);
}

TEST_CASE("pages that were only read are dropped, written ones are written down", "[pager][hash]") {
  Rig rig;
  constexpr uint64_t kBytes = 4 * kMiB;
  std::vector<CUdeviceptr> buffers;
  buffers.reserve(5);
  for (int i = 0; i < 5; ++i) buffers.push_back(rig.allocate(kBytes));
  const CUdeviceptr out = rig.allocate(4096);
  for (size_t i = 0; i < buffers.size(); ++i) rig.fill(buffers[i], kBytes, i);
  const auto readAll = [&] {
    for (const CUdeviceptr buffer : buffers)
      rig.launch(CU_STREAM_LEGACY, "sumTwo", out, buffer, buffer, uint64_t{4}, kStep);
    rig.synchronize();
  };
  readAll();
  const uint64_t clean = valueOf(rig.figures().evictions_clean);
  // More than once: a launch that waits too long uses its memory in place, which comes to VRAM
  // where uses leave the time.
  for (int i = 0; i < 100 && valueOf(rig.figures().evictions_clean) == clean; ++i) {
    readAll();
    std::this_thread::sleep_for(std::chrono::milliseconds(i * kPatience / 2));
  }
  if (!kInstrumented) CHECK(valueOf(rig.figures().evictions_clean) > clean);
  for (size_t i = 0; i < buffers.size(); ++i) CHECK(rig.holds(buffers[i], kBytes, i));
}

TEST_CASE("under reach = all every allocation is mapped for every launch", "[pager][reach][numa]") {
  Rig rig({.reach = Reach::kAll});
  const CUdeviceptr table = rig.allocate(2 * kMiB), out = rig.allocate(2 * kMiB);
  std::vector<CUdeviceptr> targets;
  for (uint64_t i = 0; i < 5; ++i) {
    targets.push_back(rig.allocate(2 * kMiB));
    rig.put(targets[i], 50 + i);
    rig.put(table + i * 8, targets[i]);
  }
  rig.launch(CU_STREAM_LEGACY, "gather", out, table, uint64_t{5});
  rig.synchronize();
  for (uint64_t i = 0; i < 5; ++i) CHECK(rig.get(out + i * 8) == 50 + i);
}

TEST_CASE("stopping while work goes on ends in time", "[pager][end]") {
  Rig rig;
  const uint64_t seed = seedOr(5);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const CUstream stream = nullptr;
      static_cast<void>(stream);
      // A refusal after the stop ends a thread's life; nothing hangs.
      static_cast<void>(live(rig, {rig.context(), CU_STREAM_LEGACY, 0}, seed + i, 60, 16 * kMiB));
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  rig.pool().stop();
  for (std::thread& thread : threads) thread.join();
  rig.pool().stop();
}

TEST_CASE("a forked child gets an answer to every call", "[pager][end]") {
  Rig rig;
  const CUdeviceptr a = rig.allocate(4 * kMiB);
  rig.fill(a, 4 * kMiB, 1);
  rig.press();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);
    Pool& pool = rig.pool();
    pool.forked();
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    AllocationInfo info;
    bool right = pool.allocate(nullptr, 0, 4096, AllocationKind::kDevice, &address) ==
                 CUDA_ERROR_NOT_INITIALIZED;
    right &= pool.free(a) == CUDA_ERROR_NOT_INITIALIZED &&
             pool.freeAsync(a, {}) == CUDA_ERROR_NOT_INITIALIZED;
    right &=
        pool.pin(a) == CUDA_ERROR_NOT_INITIALIZED && pool.unpin(a) == CUDA_ERROR_NOT_INITIALIZED;
    right &= pool.retainHandle(a, &handle) == CUDA_ERROR_NOT_INITIALIZED;
    right &= pool.releaseAddress(a, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED;
    right &= pool.unmap(a, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED;
    right &= !pool.describe(a, &info);
    pool.addRoot(nullptr, a, 8, RootKind::kVariable);
    pool.removeRoot(a);
    pool.streamDestroyed({});
    pool.contextGone(nullptr);
    {
      Access access(pool, {});
      access.addRange(a, 8, Mode::kRead);
      ReachSet set;
      access.collect(set);
      right &= access.acquire() == CUDA_ERROR_NOT_INITIALIZED;
    }
    pool.stop();
    _exit(right ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(rig.holds(a, 4 * kMiB, 1));
}

TEST_CASE("thousands of threads have launched and live on", "[pager][threads]") {
  Watchdog watchdog(120);
  constexpr unsigned kThreads = 4200;
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<HazardSlot*> slots;
    unsigned entered = 0;
    bool over = false;
  } shared;
  const auto live = [](void* given) -> void* {
    auto& all = *static_cast<Shared*>(given);
    HazardSlot* slot = hazards().mine();
    slot->enter();
    std::unique_lock lock(all.mutex);
    all.slots.insert(slot);
    ++all.entered;
    all.changed.notify_all();
    all.changed.wait(lock, [&] { return all.over; });
    slot->leave();
    return nullptr;
  };
  std::vector<pthread_t> threads;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 128 << 10);
  for (unsigned i = 0; i < kThreads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, live, &shared) != 0) break;
    threads.push_back(thread);
  }
  if (threads.size() < kThreads) WARN("the system gives " << threads.size() << " threads only");
  Hazards::Snapshot snapshot;
  {
    std::unique_lock lock(shared.mutex);
    shared.changed.wait(lock, [&] { return shared.entered == threads.size(); });
    CHECK(shared.slots.size() == threads.size());  // each has its own
    hazards().snapshot(snapshot);
    CHECK(snapshot.active.size() >= threads.size());
    CHECK_FALSE(Hazards::passed(snapshot));
    shared.over = true;
    shared.changed.notify_all();
  }
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  CHECK(Hazards::passed(snapshot));
  // Slots of ended threads are used again.
  HazardSlot* again = nullptr;
  std::thread([&] { again = hazards().mine(); }).join();
  CHECK(shared.slots.contains(again));
}

namespace {

/// A stream in a table of its own, whose launches are numbered by hand.
struct NumberedStream {
  explicit NumberedStream(uint64_t from) : newest(from) {
    REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    key = rig.key(stream);
    state = table.find(key);
  }
  uint64_t takesNumber() {
    state->pending.fetch_add(1);
    return newest.fetch_add(1) + 1;
  }
  void isSubmitted(uint64_t number) {
    state->last.store(number);
    state->pending.fetch_sub(1);
  }

  Rig rig;
  std::atomic<uint64_t> newest;
  StreamTable table{driver().api, newest};
  CUstream stream = nullptr;
  StreamKey key;
  StreamState* state = nullptr;
};

}  // namespace

TEST_CASE("a stream does not stand for what is older than its oldest launch", "[pager][threads]") {
  NumberedStream on(5);
  StreamTable& table = on.table;
  const StreamPoint first(*on.state, on.takesNumber());
  CHECK(table.quiet(5));  // the stream is younger
  CHECK_FALSE(table.quiet(6));
  CHECK_FALSE(first.isOver());
  on.isSubmitted(6);
  CHECK_FALSE(table.quiet(6));
  REQUIRE(driver().api.cuStreamSynchronize(on.stream) == CUDA_SUCCESS);
  table.markNow(on.state);  // the mark,
  REQUIRE(driver().api.cuStreamSynchronize(on.stream) == CUDA_SUCCESS);
  on.newest.store(9);  // of other streams
  table.markAll();     // and that it has come
  CHECK(first.isOver());
  const uint64_t second = on.takesNumber();
  CHECK(second == 10);
  CHECK(table.quiet(9));
  CHECK_FALSE(table.quiet(10));
  on.isSubmitted(second);
  CHECK(table.quiet(9));
  CHECK_FALSE(table.quiet(10));
  REQUIRE(driver().api.cuStreamDestroy_v2(on.stream) == CUDA_SUCCESS);
}

TEST_CASE("a launch is not over because its stream is gone", "[pager][threads]") {
  NumberedStream on(0);
  // The launch is a host function that waits.
  std::atomic<bool> open{false};
  const uint64_t number = on.takesNumber();
  const StreamPoint launch(*on.state, number);
  const CUhostFn waits = [](void* gate) {
    while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::yield();
  };
  REQUIRE(driver().cuLaunchHostFunc(on.stream, waits, &open) == CUDA_SUCCESS);
  on.isSubmitted(number);
  on.table.streamDestroyed(on.key);
  REQUIRE(driver().api.cuStreamDestroy_v2(on.stream) == CUDA_SUCCESS);
  CHECK_FALSE(launch.isOver());
  CHECK_FALSE(on.table.quiet(1));
  open.store(true);
  for (int i = 0; i < 5000 && !launch.isOver(); ++i) {
    on.table.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(launch.isOver());
}

TEST_CASE("streams that come and go leave no states behind", "[pager][threads]") {
  Rig rig;
  StreamTable table(driver().api, no_launch);
  const CUcontext context = rig.key(CU_STREAM_LEGACY).context;
  for (uint64_t i = 1; i <= 500; ++i) {
    CUstream stream = nullptr;
    REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const StreamKey key{context, stream, 0};
    table.find(key)->last.store(i);  // a launch that nobody has marked
    table.streamDestroyed(key);
    REQUIRE(driver().api.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  }
  for (int i = 0; i < 5000 && table.states() >= 50; ++i) {  // the GPU may be late
    table.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(table.states() < 50);
  table.contextGone(context);
}

TEST_CASE("events that outlive a green context are destroyed", "[pager][threads]") {
  Rig rig;
  static std::atomic<int> events;
  events = 0;
  DriverApi api = driver().api;
  api.cuEventCreate = [](CUevent* out, unsigned flags) {
    ++events;
    return driver().api.cuEventCreate(out, flags);
  };
  api.cuEventDestroy_v2 = [](CUevent event) {
    --events;
    return driver().api.cuEventDestroy_v2(event);
  };
  StreamTable table(api, no_launch);
  const CUstream streams[] = {rig.makeStream(), rig.makeStream(), rig.makeStream()};
  for (uint64_t number = 1; number <= 9; ++number) {
    table.find(rig.key(streams[number % 3]))->last = number;
    table.poll();  // at the end of the loop some marks are in streams, some events are free
  }
  CHECK(events > 0);
  table.contextGone(rig.context(), true);
  CHECK(events == 0);
  for (const CUstream stream : streams) endStream(rig, stream);
}

TEST_CASE("threads that launch in default streams of their own and end leave no states behind",
          "[pager][threads]") {
  StreamTable table(driver().api, no_launch);
  const auto context = reinterpret_cast<CUcontext>(0x1000);
  for (uint64_t i = 1; i <= 500; ++i) {
    std::thread([&] { table.find({context, CU_STREAM_PER_THREAD, i})->last.store(i); }).join();
    if (i % 20 == 0) table.contextDrained(context, i);  // as each free does
  }
  CHECK(table.states() < 50);
  // One with work of which nobody knows that it is over keeps its own.
  StreamState* busy = nullptr;
  std::thread([&] {
    busy = table.find({context, CU_STREAM_PER_THREAD, 501});
    busy->last.store(501);
  }).join();
  std::thread([&] { CHECK(table.find({context, CU_STREAM_PER_THREAD, 502}) != busy); }).join();
  CHECK_FALSE(table.quiet(501));
}

TEST_CASE("a thread that launches on several streams in turns looks each of them up once",
          "[pager][threads]") {
  StreamTable table(driver().api, no_launch);
  const auto key = [](uintptr_t context, uintptr_t stream) {
    return StreamKey{reinterpret_cast<CUcontext>(context), reinterpret_cast<CUstream>(stream), 0};
  };
  std::vector<StreamKey> keys;
  for (uintptr_t i = 0; i < 64; ++i)
    keys.push_back(key(0x1000 + 0x100 * (i % 2), 0x5000 + 0x2c0 * i));
  std::vector<StreamState*> states;
  states.reserve(keys.size());
  for (const StreamKey& wanted : keys) states.push_back(table.find(wanted));
  CHECK(table.searches() == keys.size());
  for (unsigned round = 0; round < 100; ++round)
    for (size_t i = 0; i < keys.size(); ++i) CHECK(table.find(keys[i]) == states[i]);
  CHECK(table.searches() == keys.size());
  // One that is gone is not found by what the thread remembers.
  table.streamDestroyed(keys[2]);
  StreamState* other = table.find(key(0x9000, 0x9000));
  CHECK(other == states[2]);  // its state is used for another stream
  CHECK(table.find(keys[2]) != states[2]);
  CHECK(table.find(keys[2])->key == keys[2]);
  // More streams than are remembered.
  for (uintptr_t i = 0; i < 20; ++i)
    CHECK(table.find(key(0x1, 0x70000 + i))->key == key(0x1, 0x70000 + i));
}

TEST_CASE("what is being submitted is not over", "[pager][threads]") {
  StreamTable table(driver().api, no_launch);
  const StreamKey key{reinterpret_cast<CUcontext>(0x1000), reinterpret_cast<CUstream>(0x5000), 0};
  const StreamKey elsewhere{reinterpret_cast<CUcontext>(0x1000), reinterpret_cast<CUstream>(0x6000),
                            0};
  StreamState* const stream = table.find(key);
  StreamState* const other = table.find(elsewhere);
  other->last = other->completed = 7;
  CHECK(table.quiet(7));
  CHECK(table.quiet(9));  // nobody has it
  // Launch 9 has its number, and the driver has not been called for it.
  stream->pending = 1;
  CHECK_FALSE(table.quiet(9));
  CHECK(table.completedFloor(9) == 0);
  stream->last = 9;
  stream->pending = 0;
  CHECK_FALSE(table.quiet(9));
  stream->completed = 9;
  CHECK(table.quiet(9));
  CHECK(table.completedFloor(9) == 9);
  // A later one on its way says nothing of what is over.
  stream->pending = 1;
  CHECK(table.quiet(9));
  CHECK_FALSE(table.quiet(10));
}

namespace {

// The answer of cuCtxSynchronize without a look, and how often it was asked; CUDA_SUCCESS: the
// driver's own answer.
std::atomic<CUresult> g_refusal{CUDA_SUCCESS};
std::atomic<unsigned> g_asked{0};

void refuseSynchronisation(DriverApi& api) {
  api.cuCtxSynchronize = [] {
    ++g_asked;
    return g_refusal != CUDA_SUCCESS ? g_refusal.load() : driver().api.cuCtxSynchronize();
  };
}

}  // namespace

TEST_CASE("a synchronisation that the driver refuses tells nothing", "[pager][threads]") {
  const Rig rig;
  DriverApi api = driver().api;
  refuseSynchronisation(api);
  StreamTable table(api, no_launch);
  std::thread([&] {
    table.find({rig.context(), CU_STREAM_PER_THREAD, 1001})->last.store(5);
  }).join();
  table.poll();  // another thread's own stream: this one can't mark it
  REQUIRE(table.contextsToDrain().size() == 1);
  for (const CUresult refusal :
       {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_OUT_OF_MEMORY}) {
    g_refusal = refusal;
    CHECK(table.synchronize(rig.context(), 5) == refusal);
    CHECK_FALSE(table.quiet(5));
    CHECK(table.contextsToDrain().size() == 1);
  }
  // While something captures the driver is not even asked: it would end the capture.
  table.captureBegins(rig.context());
  g_asked = 0;
  CHECK(table.synchronize(rig.context(), 5) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  table.captureBegan(true);
  CHECK(table.synchronize(rig.context(), 5) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(g_asked == 0);
  CHECK_FALSE(table.quiet(5));
  table.captureEnded();
  g_refusal = CUDA_ERROR_LAUNCH_FAILED;  // nothing runs any more
  CHECK(table.synchronize(rig.context(), 5) == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(table.quiet(5));
  g_refusal = CUDA_SUCCESS;
}

TEST_CASE("streams of a context are waited for one by one", "[pager][threads]") {
  Rig rig;
  StreamTable table(driver().api, no_launch);
  const CUstream stream = rig.makeStream(), gone = rig.makeStream(), captures = rig.makeStream();
  table.find(rig.key(stream))->last = 3;
  table.find(rig.key(gone))->last = 4;
  table.streamDestroyed(rig.key(gone));  // its last launch has a mark
  table.synchronizeEach(rig.context());
  CHECK(table.quiet(4));
  // Nothing is known of one that captures, nor of another thread's own.
  table.find(rig.key(captures))->last = 5;
  REQUIRE(driver().cuStreamBeginCapture_v2(captures, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  table.find(rig.key(stream))->last = 6;
  table.synchronizeEach(rig.context());
  CHECK(table.find(rig.key(stream))->completed == 6);
  CHECK_FALSE(table.quiet(5));
  CUgraph graph = nullptr;
  CHECK(driver().cuStreamEndCapture(captures, &graph) == CUDA_SUCCESS);
  CHECK(driver().cuGraphDestroy(graph) == CUDA_SUCCESS);
  table.synchronizeEach(rig.context());
  CHECK(table.quiet(6));
  std::thread([&] {
    table.find({rig.context(), CU_STREAM_PER_THREAD, 1004})->last.store(7);
  }).join();
  table.synchronizeEach(rig.context());
  CHECK_FALSE(table.quiet(7));
  table.contextGone(rig.context());
  for (const CUstream one : {stream, gone, captures}) driver().api.cuStreamDestroy_v2(one);
}

TEST_CASE("what a refused synchronisation did not wait for is not freed", "[pager][threads]") {
  Rig rig({.alter = refuseSynchronisation});
  const CUdeviceptr a = rig.allocate(2 * kMiB);
  rig.fill(a, 2 * kMiB, 1);
  g_refusal = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CHECK(rig.pool().free(a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(rig.pool().isAllocated(a));
  g_refusal = CUDA_SUCCESS;
  rig.pool().captureBegins(rig.context());
  rig.pool().captureBegan(true);
  g_asked = 0;
  CHECK(rig.pool().free(a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(g_asked == 0);
  CHECK(rig.pool().isAllocated(a));
  rig.pool().captureEnded();
  CHECK(rig.holds(a, 2 * kMiB, 1));
  CHECK(rig.pool().free(a) == CUDA_SUCCESS);
  CHECK_FALSE(rig.pool().isAllocated(a));
}

namespace {

// A recording of an event waits for leave, where asked to.
struct Recording {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  unsigned begun = 0;
};
Recording g_recording;

}  // namespace

TEST_CASE("a capture begins when no mark is being recorded, and none is until it has begun",
          "[pager][threads]") {
  Rig rig;
  DriverApi api = driver().api;
  api.cuEventRecord = [](CUevent event, CUstream stream) {
    std::unique_lock lock(g_recording.mutex);
    ++g_recording.begun;
    g_recording.changed.notify_all();
    g_recording.changed.wait(lock, [] { return !g_recording.held; });
    return driver().api.cuEventRecord(event, stream);
  };
  StreamTable table(api, no_launch);
  const CUstream stream = rig.makeStream();
  StreamState* const state = table.find(rig.key(stream));
  state->last = 3;
  g_recording.held = true;
  std::thread polling([&] { table.poll(); });
  {
    std::unique_lock lock(g_recording.mutex);
    g_recording.changed.wait(lock, [] { return g_recording.begun > 0; });
  }
  std::atomic<bool> may_begin{false};
  std::thread capturing([&] {
    table.captureBegins(rig.context());
    may_begin = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK_FALSE(may_begin);  // the event would get into the capture
  {
    std::lock_guard lock(g_recording.mutex);
    g_recording.held = false;
    g_recording.changed.notify_all();
  }
  polling.join();
  capturing.join();
  CHECK(may_begin);
  CHECK(g_recording.begun == 1);
  // The driver is about to begin: whether the stream captures can't be told.
  state->last = 4;
  table.poll();
  CHECK(g_recording.begun == 1);
  table.captureBegan(false);
  table.poll();
  CHECK(g_recording.begun == 2);
  table.contextGone(rig.context());
  endStream(rig, stream);
}

TEST_CASE(
    "a launch has its mark when a capture begins, also while another thread asks for an older one",
    "[pager][threads]") {
  Rig rig;
  DriverApi api = driver().api;
  api.cuEventQuery = [](CUevent event) {
    std::unique_lock lock(g_recording.mutex);
    ++g_recording.begun;
    g_recording.changed.notify_all();
    g_recording.changed.wait(lock, [] { return !g_recording.held; });
    return driver().api.cuEventQuery(event);
  };
  StreamTable table(api, no_launch);
  CUstream stream = nullptr;  // the legacy stream waits for it
  REQUIRE(driver().cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  StreamState* const state = table.find(rig.key(CU_STREAM_LEGACY));
  state->last = 3;
  table.poll();
  state->last = 4;
  {
    std::lock_guard lock(g_recording.mutex);
    g_recording.begun = 0;
    g_recording.held = true;
  }
  std::thread polling([&] { table.poll(); });
  {
    std::unique_lock lock(g_recording.mutex);
    g_recording.changed.wait(lock, [] { return g_recording.begun > 0; });
  }
  std::thread letting([&] {
    std::this_thread::sleep_for(
        std::chrono::milliseconds(50));  // the capture waits by then for who asks
    std::lock_guard lock(g_recording.mutex);
    g_recording.held = false;
    g_recording.changed.notify_all();
  });
  table.captureBegins(rig.context());
  CHECK(driver().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  table.captureBegan(true);
  polling.join();
  letting.join();
  // The legacy stream can't be marked now: its launch is over for whom it has been before.
  for (unsigned looks = 0; looks < 2000 && !table.quiet(4); ++looks) {
    table.poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(table.quiet(4));
  CUgraph graph = nullptr;
  CHECK(driver().cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  table.captureEnded();
  CHECK(driver().cuGraphDestroy(graph) == CUDA_SUCCESS);
  table.contextGone(rig.context());
  endStream(rig, stream);
}

TEST_CASE("what runs beside a capture is marked, and the capture is not spoiled",
          "[pager][threads]") {
  Rig rig;
  StreamTable table(driver().api, no_launch);
  const CUstream captured = rig.makeStream(), beside = rig.makeStream();
  const StreamKey own{rig.context(), CU_STREAM_PER_THREAD, 1002};
  uint64_t number = 0;
  const auto over = [&] {
    for (unsigned looks = 0; looks < 2000 && !table.quiet(number); ++looks) {
      table.poll();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return table.quiet(number);
  };
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    // Made before, on the stream that captures and on this thread's own, and known to nobody.
    for (const StreamKey& key : {rig.key(captured), own, rig.key(CU_STREAM_LEGACY)})
      table.find(key)->last = ++number;
    table.captureBegins(rig.context());
    REQUIRE(driver().cuStreamBeginCapture_v2(captured, mode) == CUDA_SUCCESS);
    table.captureBegan(true);
    CHECK(over());
    // Made meanwhile.
    for (const StreamKey& key : {rig.key(beside), rig.key(CU_STREAM_LEGACY)})
      table.find(key)->last = ++number;
    CHECK(over());
    StreamState* const mine = table.find(own);
    mine->last = ++number;
    table.markOwn(mine);
    CHECK(over());
    CUgraph graph = nullptr;
    CHECK(driver().cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS);
    table.captureEnded();
    REQUIRE(graph != nullptr);
    CHECK(driver().cuGraphDestroy(graph) == CUDA_SUCCESS);
  }
  table.contextGone(rig.context());
  endStream(rig, captured);
  endStream(rig, beside);
}

TEST_CASE("a stream that is destroyed in the capture of another one does not spoil it",
          "[pager][threads]") {
  Rig rig;
  StreamTable table(driver().api, no_launch);
  const CUstream first = rig.makeStream(), joined = rig.makeStream();
  StreamState* const state = table.find(rig.key(joined));
  table.captureBegins(rig.context());
  REQUIRE(driver().cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  table.captureBegan(true);
  state->last = 7;  // without a mark
  CUevent event = nullptr;
  REQUIRE(driver().api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(driver().api.cuStreamWaitEvent(joined, event, 0) == CUDA_SUCCESS);
  table.streamDestroyed(rig.key(joined));
  CHECK(driver().api.cuStreamDestroy_v2(joined) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CHECK(driver().cuStreamEndCapture(first, &graph) == CUDA_SUCCESS);
  table.captureEnded();
  CHECK_FALSE(table.quiet(7));
  CHECK(table.synchronize(rig.context(), 7) == CUDA_SUCCESS);
  CHECK(table.quiet(7));
  CHECK(driver().cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(driver().api.cuEventDestroy_v2(event) == CUDA_SUCCESS);
  endStream(rig, first);
}

TEST_CASE("what a stream ran that is destroyed while it captures is not over with it",
          "[pager][threads]") {
  Rig rig;
  StreamTable table(driver().api, no_launch);
  const CUstream stream = rig.makeStream();
  StreamState* const state = table.find(rig.key(stream));
  table.captureBegins(rig.context());
  REQUIRE(driver().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  table.captureBegan(true);
  state->last = 7;  // submitted before by a thread that had not come to say so
  table.streamDestroyed(rig.key(stream));
  REQUIRE(driver().api.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  table.captureEnded();
  CHECK_FALSE(table.quiet(7));
  CHECK(table.find(rig.key(CU_STREAM_LEGACY)) != state);  // serves no other yet
  REQUIRE(table.contextsToDrain().size() == 1);
  CHECK(table.synchronize(rig.context(), 7) == CUDA_SUCCESS);
  CHECK(table.quiet(7));
}
