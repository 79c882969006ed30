#include "gpunode/worker/exchange.h"

#include <memory>

#include "gpunode/worker/worker.h"
#include "interpose/api/driver_symbols.h"

namespace olpager::gpunode {
namespace {

struct Payment {
  Worker* worker;
  uint32_t answers;
  std::vector<uint64_t> blocks;
};

void CUDA_CB pay(void* data) {
  const std::unique_ptr<Payment> payment(static_cast<Payment*>(data));
  // In answers of bounded length, of which the last one counts.
  constexpr uint64_t kAtOnce = 1 << 20, kAnswerBytes = 4 << 20;
  std::vector<std::byte> runs;
  for (const uint64_t block : payment->blocks) {
    for (uint64_t at = 0; payment->worker->hostMemory().changes(block, at, kAtOnce, runs); at += kAtOnce) {
      if (runs.size() < kAnswerBytes) continue;
      payment->worker->tell(forward::Answer::kHostBytes, 0, CUDA_SUCCESS, runs, false);
      runs.clear();
    }
  }
  payment->worker->tell(forward::Answer::kHostBytes, payment->answers, CUDA_SUCCESS, runs, true);
}

}  // namespace

void Exchange::owe(CUcontext context, CUstream stream, std::vector<uint64_t> blocks) {
  std::lock_guard lock(mutex_);
  if (answers_.empty()) since_ = std::chrono::steady_clock::now();
  ++answers_[{context, stream}];
  blocks_ = std::move(blocks);
  owes_.store(true);
}

bool Exchange::isLate() {
  std::lock_guard lock(mutex_);
  return !answers_.empty() && std::chrono::steady_clock::now() - since_ >= kLatest;
}

void Exchange::settle() {
  std::map<std::pair<CUcontext, CUstream>, uint32_t> answers;
  std::vector<uint64_t> blocks;
  {
    std::lock_guard lock(mutex_);
    answers.swap(answers_);
    blocks = blocks_;
    owes_.store(false);
  }
  for (const auto& [where, count] : answers) {
    auto payment = std::make_unique<Payment>(Payment{&worker_, count, blocks});
    worker_.setCurrent(where.first);
    if (worker_.driver().cuLaunchHostFunc(where.second, pay, payment.get()) == CUDA_SUCCESS) {
      (void)payment.release();
    } else {
      worker_.tell(forward::Answer::kHostBytes, count, CUDA_SUCCESS, {}, true);
    }
  }
}

bool Exchange::settlesBefore(const forward::CallHead& head) {
  using api::Symbol;
  using forward::Operation;
  // A launch that somebody waits for as well: that the driver has taken it tells nothing of what is before it.
  if (static_cast<Operation>(head.function) == Operation::kLaunch) return false;
  if (head.reply != 0) return true;
  switch (static_cast<Operation>(head.function)) {
    case Operation::kCopyIn:
    case Operation::kCopyDevice:
    case Operation::kHostBytes:
    case Operation::kHostChanges:
      return false;
    default:
      break;
  }
  switch (static_cast<Symbol>(head.function)) {
    case Symbol::kCuMemsetD8Async:
    case Symbol::kCuMemsetD8Async_ptsz:
    case Symbol::kCuMemsetD16Async:
    case Symbol::kCuMemsetD16Async_ptsz:
    case Symbol::kCuMemsetD32Async:
    case Symbol::kCuMemsetD32Async_ptsz:
    case Symbol::kCuMemcpyDtoDAsync_v2:
    case Symbol::kCuMemcpyDtoDAsync_v2_ptsz:
    case Symbol::kCuFuncSetAttribute:
    case Symbol::kCuFuncSetCacheConfig:
    case Symbol::kCuKernelSetAttribute:
    case Symbol::kCuKernelSetCacheConfig:
      return false;
    default:
      return true;
  }
}

}  // namespace olpager::gpunode
