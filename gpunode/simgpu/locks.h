// The locks of the simulated GPU and their order. A thread that holds a lock takes only locks further down this list;
// two locks of one line are never held together unless the line says so. No lock is held while an operation of a stream
// executes, while a caller's callback runs, or while a thread waits for a stream (StreamPoint::wait).
//
//   1. Context::submit_mutex     order of submission in one context: legacy-stream dependencies, capture state of its
//                                streams, the set of streams. Two contexts' locks are never held together.
//   2. MemPool::mutex            blocks of one stream-ordered pool
//   3. Memory::mutex             virtual address spaces, physical handles, mappings, the table of allocations
//   4. PageTable::mutex          writers of one device's page table (readers take no lock)
//   5. Vram::mutex               free frames of one device
//   6. Stream::mutex             one stream's queue and its completed number
//   7. Event::mutex              what an event was last recorded as
//   8. HandleTable::mutex        handle -> object; leaf
//   9. Runners::mutex, HostCallbacks::mutex, PrintfSink::mutex, the not-supported log: leaves
//
// Context::mutex (limits, peers, hooks) is a leaf as well. Modules and graphs have locks of their own, taken before 1.
#pragma once
