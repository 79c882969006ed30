// The one root of the interposer: settings, the real driver, the pager. Made step by step at first
// need (a symbol is resolved: the driver is loaded; cuInit: the pager), never destroyed, safe in
// any exit order, absent in a forked child.
#pragma once

#include <atomic>
#include <string>

#include "base/size.h"
#include "interpose/local/local_runtime.h"
#include "pager/pool.h"

namespace olpager::local {

namespace detail {
/// State that a fork must take away: the kernel zeroes this page in the child (MADV_WIPEONFORK),
/// however the child was made.
struct alignas(4096) Gate {
  std::atomic<const Runtime*> running{nullptr};
};
extern Gate g_gate;
extern api::DriverTable g_driver;
extern const Runtime g_without_pool;
}  // namespace detail

/// The pager: nullptr before cuInit has succeeded and in a forked child. Every function of ours
/// then goes to the driver, whose answers (CUDA_ERROR_NOT_INITIALIZED) are the right ones. One
/// load.
inline pager::Pool* pool() {
  const Runtime* running = detail::g_gate.running.load(std::memory_order_acquire);
  return running != nullptr ? running->pool : nullptr;
}

/// The real driver's functions. Filled before any function of ours can be reached.
inline const api::DriverTable& driver() { return detail::g_driver; }

/// Loads the driver once; false when there is none (the reason was told on standard error).
/// Thread-safe.
bool ensureDriver();

/// The settings name a gpunode: nothing of local mode is used (interpose/forward). Valid after
/// ensureDriver(), which is false then.
bool forwarded();

/// Starts everything once; the result is cuInit's. Thread-safe.
CUresult initialize(unsigned int flags);

/// The driver's symbol, or nullptr when it has none of that name.
void* driverSymbol(const char* symbol);

/// The settings' limit for each device's VRAM. Valid once the pool exists.
base::Budget vramSetting();

/// Stands for the memservers of the settings: equal where they are the same ones, in any order; 0:
/// there are none. Valid once the pool exists.
uint64_t lenders();

/// Managed memory is moved by the pager, not by the driver (not OL_MANAGED=driver). Valid once the
/// pool exists.
bool managedIsPagers();

/// Physical memory that the program creates as exportable is the driver's (not
/// OL_EXPORTABLE=pager). Valid once the pool exists.
bool exportableIsDrivers();

/// True in a child that was forked after cuInit succeeded in its parent.
bool inForkedChild();

}  // namespace olpager::local
