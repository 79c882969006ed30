// The locks of forwarded mode on the program's side, in the order in which a thread may take them:
// a thread that holds one takes only later ones. A call (call.h) may take 7 to 12, also for what it
// receives, so a holder of one of those makes no call. No lock is held while a function of the
// program's runs. A launch whose kernel is known takes, as long as no pinned memory is exchanged,
// the channel's and leaves, these as a reader.
//
// clang-format off
//    1  Connecting::mutex            sessions.h          while the sessions are connected
//    2  LogListeners::registering    logs.h              while workers are told to send their logs
//       PeerLinks::Pair::mutex       straight_copies.h   while two workers are linked
//    3  Variables::mutex             variables.h         a variable is adopted, or goes
//       NoneBegins                   none_begins.h       what would spoil a capture is sent, or one
//                                                        is about to begin
//       EventClock::mutex_           event_clock.h       while executors are asked when they came
//                                    (../unified)        to events
//    4  BlockTable::mirroring        block_table.h       a mirror is made, or goes
//    5  StandInTable::send_mutex     stand_in_table.h    the order in which changes of stand-ins go
//    6  AllocationBook::mutex        allocation_book.h   addresses of device memory; held while the
//                                                        worker is told
//       ManagedMemory::mutex_        managed_memory.h    a view's pages that the CPU has; while
//                                    (../unified)        they are copied. Below the one before
//       the order of a Group         group.h             from a call's turn until its record is
//                                                        written; while all moves. Below the
//                                                        two before
//       BlockTable::send_mutex       block_table.h       the order in which changes of blocks go.
//                                                        Below the three before: calls under it go
//                                                        to one executor alone (Call::only)
//    7  BlockTable::mutex            block_table.h       blocks, and what workers have of them
//    8  StandInTable::mutex          stand_in_table.h    stand-ins, and who needs them
//    9  SessionContexts::mutex       session_contexts.h  which contexts there are; a Context is
//                                                        used under it, and ends without it
//   10  Executor::waits_mutex_       executor.h          who waits, who receives
//       Executor::counting_          executor.h          what the link has carried
//       AnswerCache::mutex           answer_cache.h      answers that stay
//       SetAttributes::mutex         kernel_attributes.h what was set of kernels
//       Captures::mutex              captures.h          streams that capture, of a session
//   11  the channel's and the transport's (CONTRIBUTING.md)
//   12  leaves, under which nothing is taken:
//       Window (window.h), DriverMemory (driver_memory.h), SpareStandIns (stand_in_table.h),
//       api::ManagedAdvice, AllocationBook::known_mutex (allocation_book.h), FreedInOrder
//       (freed_in_order.h), StreamIndex and
//       IdleStreams (streams.h, crossings.h), AllocatingGraphs (captures.h), ParameterLayouts and
//       TakenLaunches (launch.h), KernelAliases (kernel_attributes.h), KnownKernels and KnownCode
//       (known_kernels.h), CommonKernels (libraries.h), Linker and Linkers (links.h), NodeFunctions
//       (graph_nodes.h), ToldNodes (node_calls.h), UserObjects (user_objects.h), SessionParts
//       (session_parts.h), Arrivals (arrivals.h), HostFunctions (host_functions.h),
//       Executor::Attendant (executor.h), Notifications (notifications.h), LogListeners::mutex
//       (logs.h), Couriers (couriers.h), ThreadNumbers (threads.h), ExportedDescriptors
//       (export_descriptors.h), KeptTexts (call.h), a Group's notes (group.h) and code
//       (group_code.h), ManagedMemory::ranges_mutex_, Executors::keeping_ (../unified/executors.h)
// clang-format on
//
// Signals. A handler of the program's may touch managed memory of a view, and may stop its thread.
// The code that serves such a touch makes calls, which take nearly all of the above. So no handler
// runs while a thread is in a call of the program's (HeldInCall in all that the program calls:
// interpose/api/emit_forward.py), nor on threads of ours. Signals come now and then while a thread
// waits for the GPU (waitsForGpu() in executor.cpp), unless it waits with a lock: the order,
// ManagedMemory::mutex_ and EventClock::mutex_ are HoldingMutexes for that (base/held_signals.h),
// and Variables::mutex has HeldSignals beside it. Nobody else waits for the GPU under a lock. None
// of this asks the system for anything before there is managed memory of a view's.
//
// The end of a context takes AllocationBook::mutex, Captures::mutex and leaves
// (SessionContexts::gone). fork(): Connecting::mutex is new in the child; others may be held there
// by threads that the child has not, and no function that makes a call comes as far as them: the
// child has no session.
#pragma once
