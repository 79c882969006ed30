// A pager as an agent of a directory elsewhere: the interface between olgpunode's worker and the
// pager in libolpager.so for pages that other executors have. The worker has the links, the pager
// the memory. Found by dlsym in libolpager.so, as forwarding/placing.h.
// docs/internals/coherence.md, "A launch over two executors", has the whole.
//
// Directions. The functions are the worker's to call; they take the pager's mutex, and those that
// the agent's threads call (gpunode/worker/agent.h) wait for nothing but that and moves of pages.
// The calls of OlpagerAgentLink are the pager's to call, under the pager's mutex: they leave a note
// for the agent's threads, take no lock that is held around a function of this header, and return
// at once.
//
// A hash is what the pager's pass makes of a page (pager/kernels/hash_and_scan.h), two words; null:
// it is not known. Equal hash is taken for equal bytes.
//
// Thread-safety: any thread. Errors: CUDA's.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

/// The pager's calls to the worker. `extent` and `number` are the directory's.
struct OlpagerAgentLink {
  void* worker;
  /// Messages for the home, a batch (coherence/pages/batch.h), which is the caller's. In order.
  void (*post)(void* worker, const void* batch, size_t bytes);
  /// The page's bytes lie at `bytes`, in host memory, and stay there until taken back: executor
  /// `taker` may read them. Before the post of its kReady. `hash`: of the bytes.
  void (*given)(void* worker, uint32_t extent, uint64_t number, uint8_t taker, const void* bytes,
                const uint64_t* hash);
  /// The taker has read them.
  void (*taken_back)(void* worker, uint32_t extent, uint64_t number);
  /// Brings the page that executor `from` gives by that number to `into`, in host memory. Answered
  /// by olpager_agent_landed, once: until then the memory is the worker's to write. `has`: the hash
  /// of what is there; what is given with the same is not read.
  void (*fetch)(void* worker, uint32_t extent, uint64_t number, uint8_t from, void* into,
                const uint64_t* has);
  /// The session can't go on. `why`: half a line.
  void (*failed)(void* worker, const char* why);
};

#pragma GCC visibility push(default)
extern "C" {

/// The pager's device memory is the unified view's from now on: it is agent `agent`, and regions
/// come by olpager_agent_region. Before the first allocation, once. `link` stays.
CUresult olpager_agent_start(const OlpagerAgentLink* link, uint8_t agent);
/// A context has been made: the pager starts the device's engine, before the program's code is
/// loaded. So each executor's driver is asked for the same in the same order.
CUresult olpager_agent_prepare(void);
/// Pages of the placed part (placing.h) from `base` on, that nobody has yet: page i is extent
/// first + i.
CUresult olpager_agent_region(CUdeviceptr base, uint32_t pages, uint32_t first);
/// Takes a batch of messages from the home. CUDA_ERROR_INVALID_VALUE: the home is not to be trusted
/// any more.
CUresult olpager_agent_receive(const void* batch, size_t bytes);
/// A fetch is over: the bytes are there. `hash`: of them, as the giver said.
void olpager_agent_landed(uint32_t extent, uint64_t number, const uint64_t* hash);
/// Waits until all that the program has launched is over, in whichever context and stream, also in
/// streams that it has destroyed since, and spoils no capture.
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a stream captures, and not all may be over.
CUresult olpager_agent_finish(void);
/// Bytes of pages that are kept though other executors have taken them. Any thread; no lock.
uint64_t olpager_agent_retained(void);
}
#pragma GCC visibility pop
