// The locks of the simulated GPU and their order. A thread that holds a lock takes only locks
// further down this list; two locks of one line are never held together unless the line says so. No
// lock is held while an operation of a stream executes, while a caller's callback runs, or while a
// thread waits for a stream (StreamPoint::wait), but for the first two.
//
//   1. Context::call_lock        OL_SIM_CTXLOCK only, recursive: module load, free, synchronous
//                                copies and copies to memory that is not pinned hold it while they
//                                wait for the context or the copy; every other call of the context
//                                waits for it first, before it takes any lock
//   2. Driver::primary_mutex     recursive: retain, release and reset of primary contexts; held
//                                while one is torn down
//   3. CaptureSession::mutex     one capture's state; held while a node is added to its graph, so
//      the graphs' locks and the allocations of graph nodes come after it (locks of modules/ and
//      graphs/, that of GraphMemory last)
//   4. Context::submit_mutex     order of submission in one context: legacy-stream dependencies,
//                                the set of streams. Two contexts' locks are never held together.
//      Device::Connections::mutex  OL_SIM_CONNECTIONS only: order of submission to one device
//   5. MemPool::mutex            blocks of one stream-ordered pool
//   6. Memory's mutex            addresses, handles, mappings, the table of allocations (readers
//                                share it)
//   7. PageTable::mutex          writers of one device's page table (readers take no lock);
//      PageTable::phase_mutex    one waiter for readers at a time, taken while chunks are given
//                                back
//   8. Vram::mutex, the host arena's mutex    free frames
//   9. Stream::mutex             one stream's queue, its completed number, its capture
//  10. leaves: Event::mutex, HandleTable::mutex, Context::mutex (limits, peers, hooks; with 4 only
//      in activate()), Runners::mutex, RunningKernels::mutex, HostCallbacks::mutex,
//      PrintfSink::mutex (with Context::mutex in activate() and setLimit(), with
//      PrintfSink::flush_mutex, which is held while text is written), the registries of pools
//      (which takes a HandleTable's) and of captures, Allocation::advice_mutex, the list of what
//      was not supported, those of logs.h
#pragma once
