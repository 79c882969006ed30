#include "pager/shared/claim.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pager/pool_state.h"

namespace olpager::pager {

using Stage = ToldOperation::Stage;

namespace {

bool isAwayNow(const Extent& extent) {
  return extent.state == ExtentState::kAbsent || extent.leaving;
}

}  // namespace

Claim::Claim(PoolState& state)
    : state_(state),
      operation_(state.agent() != nullptr ? state.agent()->operationOfThread() : nullptr) {}

Claim::~Claim() {
  if (!asked_) return;
  // The mutex is held; nothing below releases it.
  Lock lock(state_.mutex, std::adopt_lock);
  cancel(lock);
  lock.release();
}

void Claim::cancel(Lock& lock) {
  if (!std::exchange(asked_, false)) return;
  PoolAgent& agent = *state_.agent();
  --agent.asking_;
  operation_->stage = Stage::kOver;
  agent.failed_.erase(operation_->age);
  agent.elsewhere_.cancel(operation_->age, lock);
  agent.flush();
}

void Claim::again() {
  needs_.clear();
  looked_at_ = told_ = 0;
}

bool Claim::isAway() const {
  return std::any_of(needs_.begin(), needs_.end(), [this](const directory::Need& need) {
    return isAwayNow(state_.agent()->extentAt(need.extent));
  });
}

bool Claim::mayNotAskYet(std::span<Extent* const> needed) const {
  if (operation_ == nullptr || operation_->alone || operation_->stage != Stage::kUntold)
    return false;
  return std::any_of(needed.begin(), needed.end(), [](const Extent* extent) {
    return extent->region->shared() != nullptr && isAwayNow(*extent);
  });
}

// Adds the needs of the operation's other acquisitions.
void Claim::needUses() {
  for (const auto& [address, bytes] : operation_->uses) {
    const Region* const region =
        state_.book.map().contains(address) ? state_.book.find(address) : nullptr;
    if (region == nullptr || region->dead || region->shared() == nullptr) continue;
    const ExtentRange range = extentsAt(*region, address, bytes);
    for (size_t e = range.first; e < range.last; ++e)
      needs_.push_back({region->shared()->idOf(*region->extents[e]), directory::Mode::kOwn});
  }
}

// True: an earlier call of the operation was submitted, and the pages that this one lacks, which
// are only about to leave, stay until the last call is over.
bool Claim::mayUseAgain(Lock& lock) const {
  if (operation_ == nullptr || operation_->stage != Stage::kSubmitted) return false;
  return std::all_of(needs_.begin(), needs_.end(), [&](const directory::Need& need) {
    return state_.agent()->elsewhere_.useAgain(operation_->age, need.extent, lock);
  });
}

bool Claim::ask(std::span<Extent* const> needed, Lock& lock) {
  if (state_.agent() == nullptr) return true;
  PoolAgent& agent = *state_.agent();
  for (; looked_at_ < needed.size(); ++looked_at_) {
    const Extent& extent = *needed[looked_at_];
    if (const SharedRegion* const shared = extent.region->shared(); shared != nullptr)
      needs_.push_back({shared->idOf(extent), directory::Mode::kOwn});
  }
  if (!asked_) {
    if (!isAway() || mayUseAgain(lock)) return true;
    if (operation_ == nullptr) {
      own_ = agent.newOperation();
      operation_ = own_.get();
    }
    if (operation_ == nullptr || operation_->stage != Stage::kUntold) {
      base::warnOnce("unified without an age",
                     "a call uses memory that another executor of the unified view has, and did "
                     "not say so ahead: it is refused (CUDA_ERROR_NOT_SUPPORTED)");
      return false;
    }
    needUses();
    operation_->stage = Stage::kTold;
    asked_ = true;
    ++agent.asking_;
    told_ = needs_.size();
    agent.elsewhere_.need(operation_->age, needs_, operation_->oldest, lock);
  }
  for (; told_ < needs_.size(); ++told_)
    agent.elsewhere_.more(operation_->age, needs_[told_], lock);
  agent.flush();
  return !agent.failed_.contains(operation_->age);
}

bool Claim::isRunnable() const {
  return !asked_ || state_.agent()->elsewhere_.runnable(operation_->age);
}

bool Claim::submit() {
  if (!asked_) return true;
  PoolAgent& agent = *state_.agent();
  if (!agent.elsewhere_.submit(operation_->age)) return false;
  asked_ = false;
  --agent.asking_;
  operation_->stage = Stage::kSubmitted;
  return true;
}

void Claim::begun(const StreamState& stream, uint64_t number) {
  if (operation_ == nullptr || operation_->stage != Stage::kSubmitted) return;
  operation_->points.emplace_back(stream, number);
  if (own_ != nullptr) state_.agent()->submitted(*own_);
}

void Claim::over(Lock& lock) {
  if (operation_ != nullptr && operation_->stage == Stage::kSubmitted) {
    operation_->stage = Stage::kOver;
    state_.agent()->elsewhere_.complete(operation_->age, lock);
    state_.agent()->flush();
  }
  cancel(lock);
}

}  // namespace olpager::pager
