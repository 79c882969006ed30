// Memory of other processes that run under olpager, mapped here. The memory is the driver's as far
// as this process's pager goes: in VRAM, never moved, outside of the range. Thread-safety: any
// thread. Lock: IpcImports::mutex.
#pragma once

#include <cuda.h>

namespace olpager::local {

/// True when the handle is one of ours (cuIpcGetMemHandle of a process under olpager).
bool ipcNamesImport(const CUipcMemHandle& handle);
/// Maps it for the current context's device. The same address while it is open, however often it
/// was opened.
CUresult ipcOpen(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned int flags);
/// True when `address` was opened by ipcOpen: closed once, `result` is what the program is to see.
bool ipcClose(CUdeviceptr address, CUresult* result);
/// True when `address` lies in such memory: the allocation around it. A load while there is none.
bool ipcRange(CUdeviceptr address, CUdeviceptr* base, size_t* bytes);

/// olpager_set_connect() of forwarding/control.h.
void setConnect(int (*connect)(const char* name));

}  // namespace olpager::local
