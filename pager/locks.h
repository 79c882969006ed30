// The pager's locks: their ranks, below, are the order in which they may be taken. A thread that
// holds one takes only those of higher ranks (base/ranked_mutex.h).
//
// The CPU's agent (managed/cpu_agent.h) has no lock: one thread owns all of it. Others hand it
// commands and wait, whatever of the above they hold. That thread takes the mutex of a
// directory::Exchange, and tries PoolState::mutex when it holds none. A thread that holds one of
// these touches no managed memory.
//
// A handler of the program's signals may touch managed memory, and may stop its thread. So all of
// these, and the exchange's, are HoldingMutexes (base/held_signals.h): no handler runs on who holds
// one. Nor does one from an operation's number to its submission, in calls of the driver that do
// not wait for the GPU (interpose/api, `interruptible`), and on threads of ours.
//
// None is held across a driver call, whichever: a call may wait for its context's lock, which some
// drivers hold while they load a module and wait for all kernels to end; launches of other contexts
// go on meanwhile.
//
// Without a lock: page map and region lookup (atomics), hazards and launch numbers (in_flight.h),
// Region::stamp and Region::blocked. Memory order of these is written where they are declared.
//
// Moves of an extent are made by its claimer: the thread that sets a transitional state (region.h)
// under PoolState::mutex owns the extent's chunks and mapping until it sets a stable state, also
// while the mutex is not held.
#pragma once

#include "base/ranked_mutex.h"

namespace olpager::pager {

// Behind the interposer's (interpose/local/locks.h).
/// Regions, extents, chunk lists, engines' queues, predictor, edges.
inline constexpr base::LockRank kPoolMutex{200, "PoolState::mutex"};
/// The stream tables of the process, for threads that end (launch/in_flight.cpp).
inline constexpr base::LockRank kStreamTablesMutex{210, "Tables::mutex"};
/// The list of streams and their marks.
inline constexpr base::LockRank kStreamTableMutex{220, "StreamTable::mutex_"};
/// Memory for extents and chunks (space/object_pool.cpp).
inline constexpr base::LockRank kObjectPoolMutex{230, "Pool::mutex of object_pool.cpp"};
/// Addresses of chunks' aliases (residency/alias_space.h).
inline constexpr base::LockRank kAliasSpaceMutex{230, "AliasSpace::mutex_"};

}  // namespace olpager::pager
