// Operations that wait for memory without a thread (launch/external_operation.h).
#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>

#include "pager/launch/external_operation.h"
#include "pager/pool_state.h"
#include "tests/unit/pager/rig.h"

using namespace olpager::pager;
using namespace olpager::pager::test;

namespace {

constexpr uint64_t kBytes = 4 * kMiB;

/// Operations, and which of them are resumable.
struct Caller {
  std::mutex mutex;
  std::condition_variable told;
  std::set<void*> resumable;

  struct Its {
    explicit Its(Caller& of)
        : caller(of),
          operation(
              [](void* self) {
                auto& its = *static_cast<Its*>(self);
                const std::lock_guard lock(its.caller.mutex);
                its.caller.resumable.insert(self);
                its.caller.told.notify_all();
              },
              this) {}
    Caller& caller;
    ExternalOperation operation;
  };

  bool await(Its& its) {
    std::unique_lock lock(mutex);
    const bool came =
        told.wait_for(lock, std::chrono::seconds(60), [&] { return resumable.contains(&its); });
    resumable.erase(&its);
    return came;
  }
};

/// A launch of kernel `addTo` in the name of the operation.
CUresult launchAs(Rig& rig, ExternalOperation& operation, CUdeviceptr at, uint64_t added) {
  ExternalOperation::setCurrent(&operation);
  Access access(rig.pool(), rig.key(CU_STREAM_LEGACY));
  uint64_t step = kStep, words = kBytes / sizeof(uint64_t) / step;
  access.setFunction(rig.kernel("addTo"));
  access.addParameter(&at, sizeof at);
  CUresult result = access.acquire(true);
  if (result == CUDA_SUCCESS) {
    std::array<void*, 4> parameters = {&at, &words, &step, &added};
    result = driver().api.cuLaunchKernel(rig.kernel("addTo"), 1, 1, 1, 32, 1, 1, 0,
                                         CU_STREAM_LEGACY, parameters.data(), nullptr);
    access.submitted(result);
  }
  ExternalOperation::setCurrent(nullptr);
  return result;
}

}  // namespace

TEST_CASE(
    "an operation that lacks memory is suspended, and does what it is to do when it is made "
    "again",
    "[pager][suspended]") {
  Rig rig({.vram = 16 * kMiB});
  rig.pool().startSuspending();
  constexpr size_t kAllocations = 6;  // more than VRAM has
  std::array<CUdeviceptr, kAllocations> all{};
  for (size_t i = 0; i < kAllocations; ++i) {
    all[i] = rig.allocate(kBytes);
    rig.fill(all[i], kBytes, i);
  }
  rig.synchronize();
  Caller caller;
  unsigned suspended = 0;
  // Memory may come before a moment is over, more often on some machines than on others.
  constexpr unsigned kLeast = 5, kMost = 500;
  unsigned rounds = 0;
  for (; rounds < kLeast || (suspended == 0 && rounds < kMost); ++rounds) {
    std::array<std::unique_ptr<Caller::Its>, kAllocations> its;
    std::array<bool, kAllocations> waits{};
    for (size_t i = 0; i < kAllocations; ++i) {
      its[i] = std::make_unique<Caller::Its>(caller);
      const uint64_t number = PoolInside::of(rig.pool()).launch_number.load();
      const CUresult result = launchAs(rig, its[i]->operation, all[i], 1);
      waits[i] = result == kSuspended;
      REQUIRE((waits[i] || result == CUDA_SUCCESS));
      CHECK((its[i]->operation.kept != nullptr) == waits[i]);
      if (waits[i]) CHECK(PoolInside::of(rig.pool()).launch_number.load() == number);
      suspended += waits[i] ? 1 : 0;
    }
    for (size_t i = 0; i < kAllocations; ++i) {
      while (waits[i]) {
        REQUIRE(caller.await(*its[i]));
        const CUresult result = launchAs(rig, its[i]->operation, all[i], 1);
        waits[i] = result == kSuspended;  // another one may have taken what it had
        REQUIRE((waits[i] || result == CUDA_SUCCESS));
      }
      CHECK(its[i]->operation.kept == nullptr);
    }
  }
  CHECK(suspended != 0);
  for (size_t i = 0; i < kAllocations; ++i) {
    CHECK(rig.holds(all[i], kBytes, i, rounds));
    rig.free(all[i]);
  }
}

TEST_CASE("an operation that nobody is told of waits on its thread", "[pager][suspended]") {
  Rig rig({.vram = 16 * kMiB});
  const CUdeviceptr at = rig.allocate(kBytes);
  rig.fill(at, kBytes, 1);
  rig.press();
  ExternalOperation operation(nullptr, nullptr);
  CHECK(launchAs(rig, operation, at, 1) == CUDA_SUCCESS);
  CHECK(operation.kept == nullptr);
  CHECK(rig.holds(at, kBytes, 1, 1));
  rig.free(at);
}

TEST_CASE("what a suspended operation holds is given up with it", "[pager][suspended]") {
  Rig rig({.vram = 16 * kMiB});
  rig.pool().startSuspending();
  const CUdeviceptr at = rig.allocate(kBytes);
  rig.fill(at, kBytes, 1);
  Caller caller;
  Caller::Its its(caller);
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; i < 200 && result != kSuspended; ++i) {
    rig.press();
    result = launchAs(rig, its.operation, at, 1);
  }
  REQUIRE(result == kSuspended);
  REQUIRE(caller.await(its));
  rig.pool().giveUp(its.operation);
  CHECK(its.operation.kept == nullptr);
  rig.free(at);  // waits for whatever holds it
}
