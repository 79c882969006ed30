// Operations: a worker's calls for its client, as the pager in libolpager.so knows them. Calls of
// the API that a thread makes between olpager_operation_enter and olpager_operation_over are one
// operation. Found by dlsym in libolpager.so, as forwarding/placing.h.
//
// An operation that lacks memory can be suspended in place of its thread: the call returns
// kOlpagerSuspended, and has done nothing. When the operation need not wait any more it is
// resumable, and the same call is made again. pager/launch/external_operation.h has the states.
//
//   enter -> a call -> over
//                   -> suspended ... `resumable` is called ... again -> the same call -> over
//                                                                                    -> suspended
//
// Thread-safety: any thread; one operation's functions by one thread at a time.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

/// The result of a call whose operation is suspended. No code of the driver's.
inline constexpr auto kOlpagerSuspended = static_cast<CUresult>(1022);

struct OlpagerOperation;

#pragma GCC visibility push(default)
extern "C" {

/// `resumable` is called with `of` on a thread of the pager's, without a lock, once for each time
/// that the operation is suspended; it may be called before the suspended call has returned, and
/// does not wait. nullptr: the operation is never suspended, its thread waits. The caller owns the
/// result, uses it for one operation after the other, and deletes it when it is in none.
/// nullptr: out of memory or threads.
OlpagerOperation* olpager_operation_new(void (*resumable)(void* of), void* of);
void olpager_operation_delete(OlpagerOperation* operation);

/// The calling thread's next calls of the API are this operation. `age` is the unified view's; the
/// other operations below `oldest` are complete. Missing pages are asked for by that age, and
/// behind host functions only when these are over. UINT64_MAX: the operation has no age, and needs
/// nothing that other executors have.
void olpager_operation_enter(OlpagerOperation* operation, uint64_t age, uint64_t oldest);
/// The operation is made by several calls, which use [address, + bytes): all of that is asked for
/// at once. Before the first of them. No operation, or one without an age: nothing.
void olpager_operation_uses(CUdeviceptr address, uint64_t bytes);
/// No host function is before the operation, whatever is in its stream. Likewise.
void olpager_operation_alone(void);
/// A call has returned kOlpagerSuspended: the thread is not in the operation any more.
void olpager_operation_suspended(void);
/// The calling thread is in the operation once more, and makes the same call again.
void olpager_operation_again(OlpagerOperation* operation);
/// The operation has been made. 1: the home has heard of it and hears by itself when it is
/// complete; 0: it found all in place, or has no age, and the caller says what there is to say.
int olpager_operation_over(OlpagerOperation* operation);
}
#pragma GCC visibility pop
