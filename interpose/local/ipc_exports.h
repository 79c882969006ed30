// Allocations that other processes may map, and the thread that hands them over. An exported
// allocation stays in VRAM until it is freed; a process that has it mapped then keeps its bytes.
// Thread-safety: any thread. Lock: IpcExports::mutex.
#pragma once

#include <cuda.h>

namespace olpager::local {

/// Makes a handle for the allocation that holds `address`, of the pool's. The same one each time.
CUresult ipcExport(CUdeviceptr address, CUipcMemHandle* out);
/// The allocation with this base is about to be freed: its handle names nothing any more.
void ipcExportGone(CUdeviceptr base);
/// True if `socket` is this process's.
bool ipcIsOwn(uint64_t socket);
/// In a forked child: the parent's socket is closed, without a lock.
void ipcForked();

}  // namespace olpager::local
