#include "interpose/local/relief.h"
#include "interpose/local/locks.h"

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

namespace olpager::local {

namespace {

struct Loan {
  CUcontext context = nullptr;
  CUdevice device = 0;
  uint64_t bytes = 0;
};

struct Loans {
  base::RankedMutex mutex{kLoansMutex};
  std::map<uint64_t, Loan> by_object;
};

Loans& loans() {
  static auto* instance = new Loans;
  return *instance;
}

std::atomic<size_t> g_count{0};

}  // namespace

void detail::loanMade(uint64_t object, CUcontext context, CUdevice device, uint64_t bytes) {
  std::lock_guard lock(loans().mutex);
  Loan& loan = loans().by_object[object];
  loan.context = context;
  loan.device = device;
  loan.bytes += bytes;
  g_count.store(loans().by_object.size(), std::memory_order_relaxed);
}

void loanGone(uint64_t object) {
  if (g_count.load(std::memory_order_relaxed) == 0) return;
  Loan loan;
  {
    std::lock_guard lock(loans().mutex);
    const auto found = loans().by_object.find(object);
    if (found == loans().by_object.end()) return;
    loan = found->second;
    loans().by_object.erase(found);
    g_count.store(loans().by_object.size(), std::memory_order_relaxed);
  }
  if (pager::Pool* running = pool()) running->regain(loan.device, loan.bytes);
}

void loansOfContextGone(CUcontext context) {
  if (g_count.load(std::memory_order_relaxed) == 0) return;
  pager::Pool* running = pool();
  std::vector<Loan> back;
  {
    std::lock_guard lock(loans().mutex);
    std::erase_if(loans().by_object, [&](const auto& entry) {
      const Loan& loan = entry.second;
      if (loan.context == context) back.push_back(loan);
      // If the device's engine went with the context, the budget that was lowered did: the next one
      // begins with all of its own.
      return loan.context == context || running == nullptr || !running->hasEngine(loan.device);
    });
    g_count.store(loans().by_object.size(), std::memory_order_relaxed);
  }
  for (const Loan& loan : back)
    if (running != nullptr) running->regain(loan.device, loan.bytes);
}

}  // namespace olpager::local
