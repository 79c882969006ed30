#include "gpunode/simgpu/api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "gpunode/simgpu/array.h"
#include "gpunode/simgpu/device.h"

using olpager::simgpu::Device;
using olpager::simgpu::Driver;
using olpager::simgpu::requireInit;

namespace {

/// The device with that ordinal, once the driver is initialized.
CUresult find(CUdevice ordinal, Device** out) {
  if (const CUresult result = requireInit()) return result;
  *out = Driver::get().device(ordinal);
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

template <typename Call>
CUresult with(CUdevice ordinal, const void* out, Call call) {
  Device* device = nullptr;
  if (const CUresult result = find(ordinal, &device)) return result;
  return out != nullptr ? call(*device) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return with(ordinal, device, [&](Device& found) {
    *device = found.handle();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  if (const CUresult result = requireInit()) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(Driver::get().devices.size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  return with(ordinal, name, [&](Device& device) {
    if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(length), "%s", device.name.c_str());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  return with(ordinal, uuid, [&](Device& device) {
    std::memcpy(uuid->bytes, device.uuid.data(), 16);
    return CUDA_SUCCESS;
  });
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  return cuDeviceGetUuid_v2(uuid, ordinal);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  return with(ordinal, bytes, [&](Device& device) {
    *bytes = device.vram.totalBytes();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceTotalMem(unsigned int* bytes, CUdevice ordinal) {
  return with(ordinal, bytes, [&](Device& device) {
    *bytes = static_cast<unsigned>(std::min<uint64_t>(device.vram.totalBytes(), ~0u));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  return with(ordinal, value, [&](Device& device) { return device.attribute(attribute, value); });
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  return with(ordinal, properties, [&](Device& device) {
    const auto get = [&](CUdevice_attribute attribute) {
      int value = 0;
      (void)device.attribute(attribute, &value);
      return value;
    };
    properties->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int i = 0; i < 3; ++i) {
      properties->maxThreadsDim[i] =
          get(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i));
      properties->maxGridSize[i] =
          get(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i));
    }
    properties->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    properties->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    properties->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    properties->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    properties->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    properties->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    properties->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  return with(ordinal, major, [&](Device& device) {
    if (minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    (void)device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major);
    return device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
  });
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t* elements, CUarray_format format,
                                                    unsigned channels, CUdevice ordinal) {
  return with(ordinal, elements, [&](Device&) {
    if (olpager::simgpu::arrayElementBytes(format, channels) == 0) return CUDA_ERROR_INVALID_VALUE;
    *elements = 268435456;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  return with(ordinal, text, [&](Device& device) {
    if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<size_t>(length), "%04X:%02X:%02X.0", device.pciDomain(),
                  device.pciBus(), device.pciDevice());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* ordinal, const char* text) {
  if (const CUresult result = requireInit()) return result;
  if (ordinal == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& device : Driver::get().devices) {
    if (device->pciDomain() != static_cast<int>(domain) ||
        device->pciBus() != static_cast<int>(bus) || device->pciDevice() != static_cast<int>(slot))
      continue;
    *ordinal = device->handle();
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType,
                                                CUdevice ordinal) {
  return with(ordinal, supported, [&](Device&) {
    *supported = 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice ordinal, CUdevice peer) {
  return with(ordinal, can, [&](Device&) {
    if (Driver::get().device(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *can = ordinal != peer && Driver::get().settings.peers;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                         CUdevice source, CUdevice destination) {
  return with(source, value, [&](Device&) {
    if (Driver::get().device(destination) == nullptr || source == destination)
      return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = Driver::get().settings.peers ? 1 : 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                                   const CUatomicOperation* operations,
                                                   unsigned int count, CUdevice ordinal) {
  return with(ordinal, capabilities, [&](Device&) {
    if (operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    std::fill_n(capabilities, count, 0u);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                                  const CUatomicOperation* operations,
                                                  unsigned int count, CUdevice source,
                                                  CUdevice destination) {
  return with(source, capabilities, [&](Device&) {
    if (operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (Driver::get().device(destination) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::fill_n(capabilities, count, 0u);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                            CUflushGPUDirectRDMAWritesScope) {
  return requireInit();  // what a card writes into a memfd is visible at once
}
