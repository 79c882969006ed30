#include "gpunode/worker/exchange.h"

#include <algorithm>
#include <memory>

#include "base/kernel_faults.h"
#include "gpunode/worker/relaxed.h"
#include "gpunode/worker/worker.h"
#include "interpose/api/function_facts.h"

namespace olpager::gpunode {
namespace {

void addDistinct(std::vector<uint64_t>& blocks, const std::vector<uint64_t>& more) {
  if (more.empty() || blocks == more) return;
  blocks.insert(blocks.end(), more.begin(), more.end());
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
}

}  // namespace

struct Exchange::Payment {
  Exchange* exchange;
  Owing owing;
};

void Exchange::Owing::add(const Owing& more) {
  answers += more.answers;
  addDistinct(blocks, more.blocks);
}

// In answers of bounded length, of which the last one counts.
void Exchange::pay(Owing owing) {
  constexpr uint64_t kAtOnce = 1 << 20, kAnswerBytes = 4 << 20;
  {
    std::lock_guard lock(mutex_);
    addDistinct(owing.blocks, blocks_);
  }
  const std::lock_guard paying(paying_);
  std::vector<std::byte> runs;
  for (const uint64_t block : owing.blocks) {
    for (uint64_t at = 0; worker_.hostMemory().changes(block, at, kAtOnce, runs); at += kAtOnce) {
      if (runs.size() < kAnswerBytes) continue;
      worker_.tell(forward::Answer::kHostBytes, 0, CUDA_SUCCESS, runs, false);
      runs.clear();
    }
  }
  if (!runs.empty() || owing.answers != 0)
    worker_.tell(forward::Answer::kHostBytes, owing.answers, CUDA_SUCCESS, runs, true);
}

// A callback, which unlike a host function is called behind a fault, too: the client waits for what
// it counts.
void CUDA_CB Exchange::payInStream(CUstream /*stream*/, CUresult /*status*/, void* data) {
  const std::unique_ptr<Payment> payment(static_cast<Payment*>(data));
  payment->exchange->pay(std::move(payment->owing));
}

// Under mutex_.
void Exchange::noteOwes() { owes_.store(!answers_.empty() || !behind_.empty()); }

void Exchange::owe(CUcontext context, CUstream stream, std::vector<uint64_t> blocks,
                   std::vector<uint64_t> own) {
  std::lock_guard lock(mutex_);
  if (answers_.empty()) since_ = Clock::now();
  Owing& owing = answers_[{context, stream}];
  owing.add({1, std::move(own)});
  addDistinct(owing.blocks, blocks);
  blocks_ = std::move(blocks);
  owes_.store(true);
}

void Exchange::expect(CUcontext context, CUstream stream, std::vector<uint64_t> blocks) {
  std::lock_guard lock(mutex_);
  expected_[{context, stream}] = std::move(blocks);
}

void Exchange::payNow() {
  Owing owing;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [where, blocks] : expected_) addDistinct(owing.blocks, blocks);
    for (const auto& [where, owed] : answers_) addDistinct(owing.blocks, owed.blocks);
    for (const auto& [where, behind] : behind_) addDistinct(owing.blocks, behind.owing.blocks);
  }
  pay(std::move(owing));
}

void Exchange::attend() {
  constexpr auto kLook = std::chrono::microseconds(200);
  const std::unique_lock hands(hands_, std::try_to_lock);
  if (!hands) return;  // settle() is at it
  bool late = false, look = false;
  {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    late = !answers_.empty() && now - since_ >= kTurn;
    look = !behind_.empty() && now - looked_ >= kLook;
    if (look) looked_ = now;
  }
  if (look) collect();
  if (late) mark();
}

// Under hands_. A stream whose event has not passed yet gets its next one then.
void Exchange::mark() {
  std::map<Where, Owing> marked;
  {
    std::lock_guard lock(mutex_);
    for (auto next = answers_.begin(); next != answers_.end();) {
      const auto here = next++;
      if (!behind_.contains(here->first)) marked.insert(answers_.extract(here));
    }
    since_ = Clock::now();
  }
  const Relaxed relaxed(worker_.driver());
  for (const auto& [where, owing] : marked) {
    worker_.setCurrent(where.first);
    const CUevent event = eventIn(where.first);
    const CUresult result = event != nullptr ? worker_.driver().cuEventRecord(event, where.second)
                                             : CUDA_ERROR_OUT_OF_MEMORY;
    if (base::isKernelFault(result)) {  // nothing runs there any more
      pay(owing);
      continue;
    }
    std::lock_guard lock(mutex_);
    if (result == CUDA_SUCCESS) {
      behind_[where] = {event, owing};
    } else {  // for settle()
      if (event != nullptr) spare_[where.first].push_back(event);
      answers_[where].add(owing);
    }
  }
  std::lock_guard lock(mutex_);
  noteOwes();
}

// Under hands_.
void Exchange::collect() {
  std::map<Where, Behind> looked;
  {
    std::lock_guard lock(mutex_);
    looked.swap(behind_);
  }
  Owing over;
  {
    const Relaxed relaxed(worker_.driver());
    for (auto next = looked.begin(); next != looked.end();) {
      const auto here = next++;
      worker_.setCurrent(here->first.first);
      const CUresult result = worker_.driver().cuEventQuery(here->second.event);
      if (result == CUDA_ERROR_NOT_READY) continue;
      over.add(here->second.owing);
      if (result == CUDA_SUCCESS) {
        std::lock_guard lock(mutex_);
        spare_[here->first.first].push_back(here->second.event);
      }
      looked.erase(here);
    }
  }
  if (over.answers != 0) pay(std::move(over));
  std::lock_guard lock(mutex_);
  behind_.merge(looked);
  noteOwes();
}

// nullptr: there is none to be had.
CUevent Exchange::eventIn(CUcontext context) {
  {
    std::lock_guard lock(mutex_);
    auto& spare = spare_[context];
    if (!spare.empty()) {
      const CUevent event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  return worker_.driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event
                                                                                         : nullptr;
}

void Exchange::settle() {
  // Until all of it is in the streams: who waits for one of them next finds that something is owed,
  // and waits here.
  const std::lock_guard hands(hands_);
  std::map<Where, Owing> answers;
  {
    std::lock_guard lock(mutex_);
    answers.swap(answers_);
    for (const auto& [where, behind] : behind_) {
      answers[where].add(behind.owing);
      spare_[where.first].push_back(behind.event);
    }
    behind_.clear();
  }
  for (const auto& [where, owing] : answers) {
    auto payment = std::make_unique<Payment>(Payment{this, owing});
    worker_.setCurrent(where.first);
    if (worker_.driver().cuStreamAddCallback(where.second, payInStream, payment.get(), 0) ==
        CUDA_SUCCESS) {
      (void)payment.release();
    } else {
      worker_.tell(forward::Answer::kHostBytes, owing.answers, CUDA_SUCCESS, {}, true);
    }
  }
  std::lock_guard lock(mutex_);
  noteOwes();
}

void Exchange::contextGone(CUcontext context) {
  std::lock_guard lock(mutex_);
  spare_.erase(context);
  std::erase_if(expected_, [&](const auto& one) { return one.first.first == context; });
}

bool Exchange::settlesBefore(const forward::CallHead& head) {
  using forward::Operation;
  // A launch that somebody waits for as well: that the driver has taken it tells nothing of what is
  // before it.
  if (static_cast<Operation>(head.function) == Operation::kLaunch) return false;
  if (head.reply != 0) return true;
  switch (static_cast<Operation>(head.function)) {
    case Operation::kCopyIn:
    case Operation::kCopyDevice:
    case Operation::kHostBytes:
    case Operation::kHostChanges:
    case Operation::kGraphBytes:
    // By which streams go on: they never wait for what settle() waits for, and tell the client of
    // nothing.
    case Operation::kHostFunctionDone:
    case Operation::kOpenGate:
    case Operation::kStraightStop:
      return false;
    default:
      break;
  }
  return !api::holds(api::Fact::kQuiet, head.function);
}

}  // namespace olpager::gpunode
