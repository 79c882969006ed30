// Functions of libolpager.so for a process that has opened it itself: olgpunode-worker finds them
// by dlsym. Beside CUDA's own functions, and of no use to a program that is only preloaded.
// Thread-safety: any thread, any time, also before cuInit (nothing is known then). Bytes. No
// function waits for a GPU.
#pragma once

#include <cstdint>

namespace olpager::status {
struct LinksCounters;
}  // namespace olpager::status

extern "C" {

struct OlpagerDeviceFigures {
  uint64_t allocated;    // by the program
  uint64_t vram_budget;  // 0 before its first allocation
  uint64_t resident;     // in VRAM
  uint64_t moved;        // between VRAM and host RAM so far
};
struct OlpagerFigures {
  uint64_t host_used;     // of the host tier
  uint64_t host_limit;    // of it; 0 before olpager_set_host_limit and the first allocation
  uint32_t device_count;  // entries of `devices` that mean something
  uint32_t reserved;
  OlpagerDeviceFigures devices[16];
};

/// 0: `figures` is filled in. 1: there is nothing to tell.
int olpager_figures(OlpagerFigures* figures);

/// The counters of the process's links (coherence/status/link_counters.h); never null. The first
/// call makes the file of counters.
olpager::status::LinksCounters* olpager_links(void);

/// The device's VRAM budget from now on; pages beyond it leave VRAM in the background. Before the
/// device's first allocation: what it begins with. Returns the new budget, which is more when less
/// would leave memory without a place; 0: there is no pager.
uint64_t olpager_set_vram_budget(int device, uint64_t bytes);

/// The host tier's limit from now on, at most the setting `host`; memory beyond it goes back to the
/// system in the background. Returns the new limit, which is more when less would leave memory
/// without a place; 0: there is no pager, or it is nothing.
uint64_t olpager_set_host_limit(uint64_t bytes);

/// The pager ends: nothing moves any more, and memservers get their memory back. Waits for
/// transfers between here and them; no call of CUDA's may follow.
void olpager_stop(void);

/// From now on `call` is called on each thread whose operation waits for memory, once for each
/// operation, when it has waited for a moment. No lock is held.
void olpager_on_wait(void (*call)(void));

/// From now on `connect` connects to the sockets of other processes by which memory is imported
/// (abstract ones, SOCK_SEQPACKET), as this one may not: it gets the name and returns a descriptor,
/// or -1.
void olpager_set_connect(int (*connect)(const char* name));

/// The log's destination from now on, instead of standard error: warnings and errors to `grave`,
/// with `before` (which lives as long as the process) before their text.
void olpager_set_log(int descriptor, int grave, const char* before);

}  // extern "C"
