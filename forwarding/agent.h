// A pager as an agent of a directory elsewhere: what olgpunode's worker and the pager in
// libolpager.so say to each other about pages that other executors have. The worker has the links,
// the pager the memory. Found by dlsym in libolpager.so, as forwarding/placing.h.
//
// Designed, not built: nothing includes this yet (docs/internals/coherence.md, "A launch over two
// executors").
//
// Directions. The functions are the worker's to call: from its agent's thread (gpunode/worker/
// agent.h) unless they say otherwise; they take the pager's mutex and wait for nothing but that.
// The calls of OlpagerAgentLink are the pager's to call, under the pager's mutex: they post to the
// agent's thread, take no lock that is held around a function of this header, and return at once.
//
// Thread-safety: any thread. Errors: CUDA's; what a function of the link's is told and can't do is
// told by lost().
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

/// What the pager asks of the worker. `extent` and `number` are the directory's.
struct OlpagerAgentLink {
  void* worker;
  /// Messages for the home, a batch (coherence/pages/batch.h), which is the caller's. In order.
  void (*post)(void* worker, const void* batch, size_t bytes);
  /// Host memory whose parts given() may name from now on; `fd` and `offset`: of the memfd that it
  /// maps, or -1. Until memoryGone(), which returns when no transfer reads it any more.
  void (*memory)(void* worker, const void* base, uint64_t bytes, int fd, uint64_t offset);
  void (*memory_gone)(void* worker, const void* base);
  /// The page's bytes lie at `bytes`, in such memory, and stay there until taken back: executor
  /// `taker` may read them. Before the post of its kReady.
  void (*given)(void* worker, uint32_t extent, uint64_t number, uint8_t taker, const void* bytes);
  void (*taken_back)(void* worker, uint32_t extent, uint64_t number);
  /// Brings the page that executor `from` gives by that number to `into`, in such memory. Then
  /// olpager_agent_landed, once.
  void (*fetch)(void* worker, uint32_t extent, uint64_t number, uint8_t from, void* into);
  /// That is not wanted any more: on return nothing more is written there.
  void (*abort)(void* worker, uint32_t extent, uint64_t number);
};

/// The pager's device memory is the unified view's from now on: it is agent `agent`, and regions
/// come by olpager_agent_region. Before the first allocation, once. `link` stays.
CUresult olpager_agent_start(const OlpagerAgentLink* link, uint8_t agent);
/// Pages of the range, that nobody has yet: page i is extent first + i.
CUresult olpager_agent_region(CUdeviceptr base, uint32_t pages, uint32_t first);
/// What the home says: a batch.
CUresult olpager_agent_receive(const void* batch, size_t bytes);
/// A fetch is over; `good`: the bytes are there.
void olpager_agent_landed(uint32_t extent, uint64_t number, int good);

/// The calling thread's next calls of the API are the operation of that age, until
/// olpager_operation_over; the other operations below `oldest` are complete. Where they lack
/// something, it is asked for by that age. From the thread that makes the call.
void olpager_operation(uint64_t age, uint64_t oldest);
/// It has been made. 1: the home has heard of it and hears by itself when it is complete; 0: it
/// found all in place, and the caller says so.
int olpager_operation_over(void);
}
#pragma GCC visibility pop
