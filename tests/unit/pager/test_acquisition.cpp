// Acquiring as an object: what it holds in which state, and that it needs nobody's stack frame.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "pager/launch/acquisition.h"
#include "pager/pool_state.h"
#include "pager/residency/engine.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

using State = Acquisition::State;
constexpr uint64_t kBytes = 4 * kMiB;

PoolState& inside(Rig& rig) { return PoolInside::of(rig.pool()); }

bool isUsable(const Region& region) {
  return std::all_of(region.extents.begin(), region.extents.end(),
                     [](const auto& extent) { return usable(extent->state); });
}

Operation kernelOn(const StreamKey& stream, CUdeviceptr address) {
  Operation operation(stream);
  operation.follows_pointers = true;
  operation.uses.push() = {address, 0, Mode::kReadWrite};
  return operation;
}

State await(Acquisition& acquisition, PoolState& state, Lock& lock) {
  while (acquisition.ready(lock) == State::kWaiting)
    state.changed.wait_for(lock, std::chrono::milliseconds(100));
  return acquisition.state();
}

// As Access::submitted().
void submitted(const Submission& submission) {
  raise(submission.stream->last, submission.number);
  submission.stream->pending.fetch_sub(1);
  hazards().mine()->leave();
}

// Allocations that have been written, and whose bytes are not in VRAM any more.
template <size_t kCount>
std::array<CUdeviceptr, kCount> parked(Rig& rig) {
  std::array<CUdeviceptr, kCount> all{};
  for (uint64_t i = 0; i < kCount; ++i) {
    all[i] = rig.allocate(kBytes);
    rig.fill(all[i], kBytes, i);
  }
  const auto anyUsable = [&] {
    PoolState& state = inside(rig);
    Lock lock(state.mutex);
    return std::any_of(all.begin(), all.end(),
                       [&](CUdeviceptr one) { return isUsable(*state.book.find(one)); });
  };
  constexpr unsigned kMost = 500;  // on a machine that is busy with other work it takes dozens
  unsigned tries = 0;
  do rig.press();
  while (anyUsable() && ++tries < kMost);
  REQUIRE(tries < kMost);
  return all;
}

}  // namespace

TEST_CASE("an acquisition that is cancelled leaves nothing behind", "[pager][acquisition]") {
  Rig rig({.vram = 16 * kMiB});
  const auto [a] = parked<1>(rig);
  PoolState& state = inside(rig);
  {
    Lock lock(state.mutex);
    Region& region = *state.book.find(a);
    REQUIRE_FALSE(isUsable(region));
    const uint64_t newest = state.launch_number.load();
    const Operation operation = kernelOn(rig.key(CU_STREAM_LEGACY), a);
    {
      Acquisition acquisition(state, operation);
      CHECK(acquisition.state() == State::kDescribed);
      CHECK(region.wanted == 0);
      CHECK(acquisition.begin(lock) == State::kWaiting);
      CHECK(region.wanted == 1);
      CHECK(region.engine->waiting() == 1);
      acquisition.cancel(lock);
      CHECK(region.wanted == 0);
      CHECK(region.engine->waiting() == 0);
      Submission submission;
      CHECK(acquisition.ready(lock) == State::kCancelled);
      CHECK(acquisition.commit(lock, submission) == State::kCancelled);
      CHECK(submission.stream == nullptr);
    }
    CHECK(state.launch_number.load() == newest);
    {
      Acquisition acquisition(state, operation);  // by its destructor
      CHECK(acquisition.begin(lock) == State::kWaiting);
    }
    CHECK(region.wanted == 0);
    CHECK(region.engine->waiting() == 0);
  }
  CHECK(rig.holds(a, kBytes, 0));
  rig.free(a);
}

TEST_CASE("a range that is not there is refused, and nothing is held", "[pager][acquisition]") {
  Rig rig;
  const CUdeviceptr a = rig.allocate(kBytes);
  PoolState& state = inside(rig);
  Lock lock(state.mutex);
  Operation operation(rig.key(CU_STREAM_LEGACY));
  operation.uses.push() = {a, kBytes, Mode::kRead};
  operation.uses.push() = {a, kBytes + 1, Mode::kRead};
  Acquisition acquisition(state, operation);
  CHECK(acquisition.begin(lock) == State::kRefused);
  CHECK(acquisition.result() == CUDA_ERROR_INVALID_VALUE);
  CHECK(state.book.find(a)->wanted == 0);
}

TEST_CASE("an acquisition goes on when its caller has gone", "[pager][acquisition]") {
  Rig rig({.vram = 16 * kMiB});
  const auto [a, b] = parked<2>(rig);
  PoolState& state = inside(rig);
  Submission submission;
  {
    Lock lock(state.mutex);
    auto brought = std::make_unique<uint64_t>(b);
    auto operation = std::make_unique<Operation>(rig.key(CU_STREAM_LEGACY));
    operation->uses.push() = {a, sizeof(uint64_t), Mode::kWrite};
    operation->host_source = brought.get();
    operation->host_bytes = sizeof(uint64_t);
    operation->host_stable = true;
    Acquisition acquisition(state, *operation);
    REQUIRE(acquisition.begin(lock) == State::kWaiting);
    acquisition.keep();
    *brought = 0;
    brought.reset();
    operation.reset();
    REQUIRE(await(acquisition, state, lock) == State::kReady);
    REQUIRE(acquisition.commit(lock, submission) == State::kCommitted);
    CHECK(state.book.find(a)->stamp.load() == submission.number);
    CHECK(state.book.find(a)->wanted == 0);
  }
  const uint64_t value = b;
  mustSucceed(driver().api.cuMemcpyHtoDAsync_v2(a, &value, sizeof(value), CU_STREAM_LEGACY),
              "copy");
  submitted(submission);
  // The bytes that the copy brought are known: a kernel that names `a` reaches `b`.
  Lock lock(state.mutex);
  const Operation operation = kernelOn(rig.key(CU_STREAM_LEGACY), a);
  Acquisition acquisition(state, operation);
  acquisition.begin(lock);
  CHECK(state.book.find(b)->wanted == 1);
  acquisition.cancel(lock);
}

TEST_CASE("what a turn has found ready is looked at again in the next", "[pager][acquisition]") {
  Rig rig({.vram = 16 * kMiB});
  const auto [b] = parked<1>(rig);
  const CUdeviceptr table = rig.allocate(kBytes);
  const uint64_t nothing = 0, pointer = b;
  mustSucceed(rig.copyIn(CU_STREAM_LEGACY, table, &nothing, sizeof(nothing), true), "copyIn");
  rig.synchronize();
  PoolState& state = inside(rig);
  const Operation operation = kernelOn(rig.key(CU_STREAM_LEGACY), table);
  std::optional<Acquisition> acquisition;
  {
    Lock lock(state.mutex);
    acquisition.emplace(state, operation);
    acquisition->begin(lock);
    REQUIRE(await(*acquisition, state, lock) == State::kReady);
    REQUIRE(state.book.find(b)->wanted == 0);
  }
  mustSucceed(rig.copyIn(CU_STREAM_LEGACY, table, &pointer, sizeof(pointer), true), "copyIn");
  Submission submission;
  {
    Lock lock(state.mutex);
    const uint64_t newest = state.launch_number.load();
    CHECK(acquisition->ready(lock) == State::kWaiting);
    CHECK(state.book.find(b)->wanted == 1);
    REQUIRE(await(*acquisition, state, lock) == State::kReady);
    REQUIRE(acquisition->commit(lock, submission) == State::kCommitted);
    CHECK(submission.number > newest);
    CHECK(state.book.find(b)->stamp.load() == submission.number);
    CHECK(isUsable(*state.book.find(b)));
    acquisition.reset();
  }
  submitted(submission);
}

TEST_CASE("one thread has two acquisitions at once", "[pager][acquisition]") {
  Rig rig({.vram = 32 * kMiB});
  const auto [a, b, both] = parked<3>(rig);
  PoolState& state = inside(rig);
  Submission first, second;
  {
    Lock lock(state.mutex);
    Operation on_a = kernelOn(rig.key(CU_STREAM_LEGACY), a);
    on_a.uses.push() = {both, 0, Mode::kReadWrite};
    Operation on_b = kernelOn(rig.key(CU_STREAM_LEGACY), b);
    on_b.uses.push() = {both, 0, Mode::kReadWrite};
    Acquisition of_a(state, on_a), of_b(state, on_b);
    REQUIRE(of_a.begin(lock) == State::kWaiting);
    REQUIRE(of_b.begin(lock) == State::kWaiting);
    CHECK(state.book.find(a)->wanted == 1);
    CHECK(state.book.find(b)->wanted == 1);
    CHECK(state.book.find(both)->wanted == 2);
    CHECK(state.book.find(a)->engine->waiting() == 2);
    REQUIRE(await(of_b, state, lock) == State::kReady);
    REQUIRE(of_b.commit(lock, second) == State::kCommitted);
    CHECK(state.book.find(both)->wanted == 1);
    REQUIRE(await(of_a, state, lock) == State::kReady);
    REQUIRE(of_a.commit(lock, first) == State::kCommitted);
    CHECK(state.book.find(both)->wanted == 0);
    CHECK(state.book.find(a)->engine->waiting() == 0);
    CHECK(first.number > second.number);
    CHECK(state.book.find(both)->stamp.load() == first.number);
    CHECK(state.book.find(b)->stamp.load() == second.number);
    CHECK(first.stream == second.stream);
    CHECK(first.stream->pending.load() == 2);
  }
  submitted(second);
  submitted(first);
  CHECK(first.stream->pending.load() == 0);
  for (const CUdeviceptr address : {a, b, both}) rig.free(address);
}

namespace {

// True if a graph that reaches `addresses` is refused since its parts are better, without leaving
// anything behind.
bool isLeftToParts(Rig& rig, std::span<const CUdeviceptr> addresses, bool everything = false) {
  PoolState& state = inside(rig);
  ReachSet reach;
  for (const CUdeviceptr address : addresses) reach.add(address);
  reach.everything = everything;
  Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
  access.setFunction(&reach);
  access.addReach(reach);
  access.inPartsBeyondVram();
  const uint64_t newest = state.launch_number.load();
  const CUresult result = access.acquire();
  if (!access.mustBeInParts()) {
    mustSucceed(result, "a graph");
    access.submitted(CUDA_SUCCESS);
    return false;
  }
  CHECK(result == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(state.launch_number.load() == newest);
  access.madeInParts();
  for (const CUdeviceptr address : addresses) CHECK(state.book.find(address)->wanted == 0);
  return true;
}

}  // namespace

TEST_CASE("a graph is left to its parts where it reaches more than VRAM has room for",
          "[pager][acquisition]") {
  Rig rig({.vram = 16 * kMiB});
  const auto all = parked<6>(rig);
  DeviceWhy& why = counters().whyOf(0);
  const uint64_t before = valueOf(why.graph_launches_in_parts);
  CHECK(isLeftToParts(rig, all));
  CHECK_FALSE(isLeftToParts(rig, std::span(all).first(2)));
  CHECK(isLeftToParts(rig, std::span(all).first(1), true));  // a node of it may reach everything
  CHECK(valueOf(why.graph_launches_in_parts) - before == 2);
  CHECK(valueOf(why.graph_most_bytes) >= all.size() * kBytes);
  // Memory reached through memory counts.
  rig.fill(all[0], kBytes, 7);
  for (uint64_t i = 1; i < all.size(); ++i) {
    Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
    access.addRange(all[0] + i * 8, 8, Mode::kWrite);
    access.addHostSource(&all[i], 8, true);
    REQUIRE(access.acquire() == CUDA_SUCCESS);
    const CUresult copied = driver().cuMemcpyHtoD_v2(all[0] + i * 8, &all[i], 8);
    access.submitted(copied);
    mustSucceed(copied, "a pointer");
  }
  CHECK(isLeftToParts(rig, std::span(all).first(1)));
  for (const CUdeviceptr one : all) rig.free(one);
}

TEST_CASE("a graph gains nothing from parts of which each needs more than VRAM",
          "[pager][numa][acquisition]") {
  Rig rig({.vram = 16 * kMiB});
  const auto [a, b] = parked<2>(rig);
  const CUdeviceptr large = rig.allocate(24 * kMiB);
  const std::array all{a, b, large};
  CHECK_FALSE(isLeftToParts(rig, all));
  for (const CUdeviceptr one : all) rig.free(one);
  Rig everything({.vram = 16 * kMiB, .reach = Reach::kAll});
  std::array<CUdeviceptr, 6> many{};
  for (CUdeviceptr& one : many) one = everything.allocate(kBytes);
  CHECK_FALSE(isLeftToParts(everything, many));
  for (const CUdeviceptr one : many) everything.free(one);
}
