// Answers programs' questions about addresses. The worker answers; what it can't know of blocks of
// the window (how long they are, that they are managed) is put right here.
#include <cstring>

#include "interpose/api/attribute_bytes.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/registered.h"

namespace olpager::forward {
namespace {

template <typename T>
void put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
}

// The worker knows nothing of memory that the program registered, and asked no device pointer of.
CUresult answerHere(const BlockInfo& block, uint64_t address, CUpointer_attribute attribute,
                    void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      put(data, currentContext());
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put(data, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      put(data, address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      put(data, 0u);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      put(data, 1u);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      CUdevice device = 0;
      (void)deviceOf(currentContext(), &device);
      put(data, device);
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      put(data, block.base);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      put(data, block.bytes);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      put(data, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
      return CUDA_SUCCESS;
    default:
      std::memset(data, 0, api::pointerAttributeBytes(attribute));
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult askHere(bool plural, unsigned count, const CUpointer_attribute* attributes,
                 void* const* data, const BlockInfo& block, uint64_t address) {
  // A device pointer is made for a program that asks for nothing else: it costs the worker as much
  // memory.
  if (!plural && attributes[0] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
    CUdeviceptr device = 0;
    const CUresult result = mirrored(address, &device);
    if (result == CUDA_SUCCESS) put(data[0], device);
    return result;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = answerHere(block, address, attributes[i], data[i]);
    if (!plural && result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void settle(const BlockInfo& block, CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      put(data, static_cast<CUdeviceptr>(block.base));
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      put(data, static_cast<size_t>(block.bytes));
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (block.managed) put(data, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      if (block.managed) put(data, 1u);
      break;
    default:
      break;
  }
}

// A host pointer to what is no block: it is the address itself, or none.
void keepOwn(CUdeviceptr address, void* data) {
  uint64_t told = 0;
  std::memcpy(&told, data, sizeof told);
  if (told != address) put(data, uint64_t{0});
}

// A device's number.
void countAsProgram(const Session& session, void* data) {
  CUdevice device = 0;
  std::memcpy(&device, data, sizeof device);
  fromWorker(session, device);
  put(data, device);
}

CUresult ask(bool plural, unsigned count, const CUpointer_attribute* attributes, void* const* data,
             CUdeviceptr address) {
  for (unsigned i = 0; i < count; ++i)
    if (api::pointerAttributeBytes(attributes[i]) == 0) return CUDA_ERROR_INVALID_VALUE;
  BlockInfo block;
  const bool known = blockAt(address, &block);
  const bool mirror = known && block.registered && address - block.there < block.bytes;
  const uint64_t offset = address - (mirror ? block.there : block.base);
  if (known && block.registered && block.there == 0)
    return askHere(plural, count, attributes, data, block, address);
  if (known) address = block.there + offset;
  Call call(Operation::kPointerAttribute, Route().address(address));
  call.asksAbout(address);
  call.value(static_cast<uint8_t>(plural));
  call.value(address);
  call.value(count);
  for (unsigned i = 0; i < count; ++i) call.value(static_cast<int32_t>(attributes[i]));
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  for (unsigned i = 0; i < count; ++i) {
    const auto value = call.reply().raw(api::pointerAttributeBytes(attributes[i]));
    if (data[i] == nullptr || value.empty()) continue;
    std::memcpy(data[i], value.data(), value.size());
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      countAsProgram(*call.session(), data[i]);
    if (!known) {
      // The program's memory is known here: the worker has none to name.
      if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) keepOwn(address, data[i]);
      continue;
    }
    settle(block, attributes[i], data[i]);
    if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) put(data[i], block.base + offset);
    if (mirror && attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) put(data[i], block.there);
  }
  return call.taken(result);
}

}  // namespace
}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                           void** data, CUdeviceptr address) {
  if (count == 0 || attributes == nullptr || data == nullptr || count > 64)
    return CUDA_ERROR_INVALID_VALUE;
  return ask(true, count, attributes, data, address);
}

CUresult ol_forward_cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                          CUdeviceptr address) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return ask(false, 1, &attribute, &data, address);
}

// Synchronous copies are, always: nothing has to be done where it can be set.
CUresult ol_forward_cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                          CUdeviceptr address) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return CUDA_ERROR_INVALID_VALUE;
  BlockInfo block;
  if (isKnownMemory(address, 1) || blockAt(address, &block)) return CUDA_SUCCESS;
  CUcontext context = nullptr;
  const CUresult result =
      ol_forward_cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
  if (result != CUDA_SUCCESS) return result;
  return context != nullptr ? CUDA_SUCCESS
                            : CUDA_ERROR_NOT_SUPPORTED;  // what was mapped there has no such thing
}

CUresult ol_forward_cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  BlockInfo block;
  if (!blockAt(address, &block) || (block.registered && block.there == 0))
    return ol_forward_generated_cuMemGetAddressRange_v2(base, bytes, address);
  if (currentContext() == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (base != nullptr) *base = block.there;
  if (bytes != nullptr) *bytes = block.bytes;
  return CUDA_SUCCESS;
}

}  // extern "C"
