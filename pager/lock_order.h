// The pager's locks, in the order in which they may be taken. A thread that holds one takes only those below it.
//
//   1  PoolState::mutex        regions, extents, chunk lists, engines' queues, predictor, edges. Never held across a driver call.
//   2  StreamTable::mutex      the list of streams and their marks. Held across cuEventRecord and cuEventQuery only (neither
//                              waits for the GPU).
//
// Without a lock: page map and region lookup (atomics), hazards and launch numbers (launches.h), Region::stamp and
// Region::blocked. Memory order of these is written where they are declared.
//
// Moves of an extent are made by its claimer: whoever sets a transitional state (region.h) under PoolState::mutex owns the
// extent's chunks and mapping until it sets a stable state, also while the mutex is not held.
#pragma once
