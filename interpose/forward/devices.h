// The program's devices: those of all its gpunodes, one after another, as far as
// CUDA_VISIBLE_DEVICES names them. A worker counts its own from 0: numbers are translated where a
// call goes out and where an answer comes in. Thread-safety: any thread; the list does not change
// once it is there.
#pragma once

#include <cuda.h>

#include <span>
#include <vector>

#include "base/result.h"

namespace olpager::forward {

class Session;

/// Made once, before the sessions can be seen; read without a lock after that.
struct DeviceList {
  struct Place {
    Session* session;
    CUdevice at_worker;
  };
  std::vector<Place> places;  // by the program's number
};

/// How many the program sees; 0 without sessions.
int deviceCount();
/// The session of a device of the program's, and the worker's number for it; false: there is no
/// such device.
bool placeOf(CUdevice device, Session** session, CUdevice* at_worker);
/// The program's number of a worker's device; CU_DEVICE_INVALID: it does not see it.
CUdevice deviceOf(const Session& session, CUdevice at_worker);

/// Numbers in structures as the worker of `session` knows them; false: a device is another
/// gpunode's, or nobody's.
bool toWorker(const Session& session, CUdevice& device);
bool toWorker(const Session& session, CUmemLocation& location);
inline bool toWorker(const Session& session, CUmemAccessDesc& desc) {
  return toWorker(session, desc.location);
}
inline bool toWorker(const Session& session, CUmemPoolProps& props) {
  return toWorker(session, props.location);
}
inline bool toWorker(const Session& session, CUmemAllocationProp& prop) {
  return toWorker(session, prop.location);
}
/// A bit for each device.
bool toWorker(const Session& session, CUarrayMapInfo& info);
/// And back.
void fromWorker(const Session& session, CUdevice& device);
void fromWorker(const Session& session, CUmemLocation& location);
inline void fromWorker(const Session& session, CUmemAllocationProp& prop) {
  fromWorker(session, prop.location);
}

/// Makes the list; once, before any of the functions above answers. The Error: CUDA_VISIBLE_DEVICES
/// names none.
Status findDevices(std::span<Session* const> all);
/// In a forked child.
void forgetDevices();

}  // namespace olpager::forward
