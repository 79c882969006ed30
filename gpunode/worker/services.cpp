#include "gpunode/worker/services.h"

#include <span>

#include "base/log.h"
#include "gpunode/worker/worker.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/forward_functions.h"

namespace olpager::gpunode {

using forward::Operation;

Serve writtenService(size_t operation) {
  switch (static_cast<Operation>(operation)) {
    case Operation::kDescribe:
      return describe;
    case Operation::kGoodbye:
      return goodbye;
    case Operation::kParameters:
      return parameters;
    case Operation::kLaunch:
      return launch;
    case Operation::kCopyIn:
      return copyIn;
    case Operation::kCopyOut:
      return copyOut;
    case Operation::kCopyDevice:
      return copyDevice;
    case Operation::kLoadModule:
      return loadModule;
    case Operation::kLoadLibrary:
      return loadLibrary;
    case Operation::kVariable:
      return variable;
    case Operation::kManagedBytes:
      return managedBytes;
    case Operation::kManagedGone:
      return managedGone;
    case Operation::kVariableBytes:
      return variableBytes;
    case Operation::kHostAlloc:
      return hostAlloc;
    case Operation::kHostFree:
      return hostFree;
    case Operation::kHostBytes:
      return hostBytes;
    case Operation::kHostFunction:
      return hostFunction;
    case Operation::kHostFunctionDone:
      return hostFunctionDone;
    case Operation::kPointerAttribute:
      return pointerAttribute;
    case Operation::kContextCreate:
      return contextCreate;
    case Operation::kPrimaryRetain:
      return primaryRetain;
    case Operation::kHostChanges:
      return hostChanges;
    case Operation::kGraphHostSides:
      return graphHostSides;
    case Operation::kGraphBytes:
      return graphBytes;
    case Operation::kGraphKernelNode:
      return graphKernelNode;
    case Operation::kGraphHostNode:
      return graphHostNode;
    case Operation::kGraphMemcpyNode:
      return graphMemcpyNode;
    case Operation::kGraphConditionalNode:
      return graphConditionalNode;
    case Operation::kGraphAllocNode:
      return graphAllocNode;
    case Operation::kGraphNodeParameters:
      return graphNodeParameters;
    case Operation::kGraphKernelNodeAttribute:
      return graphKernelNodeAttribute;
    case Operation::kCopyPeer:
      return copyPeer;
    case Operation::kClusters:
      return clusters;
    case Operation::kGate:
      return gate;
    case Operation::kOpenGate:
      return openGate;
    case Operation::kNameKernel:
      return nameKernel;
    case Operation::kSynchronizeDefault:
      return synchronizeDefault;
    case Operation::kPeerLink:
      return peerLink;
    case Operation::kStraightOut:
      return straightOut;
    case Operation::kStraightIn:
      return straightIn;
    case Operation::kStraightStop:
      return straightStop;
    case Operation::kGreenContext:
      return greenContext;
    case Operation::kGreenDestroy:
      return greenDestroy;
    case Operation::kExportMemory:
      return exportMemory;
    case Operation::kImportMemory:
      return importMemory;
    case Operation::kExportGone:
      return exportGone;
    case Operation::kAllocateAt:
      return allocateAt;
    case Operation::kLinkCreate:
      return linkCreate;
    case Operation::kLinkAdd:
      return linkAdd;
    case Operation::kLinkComplete:
      return linkComplete;
    case Operation::kLinkDestroy:
      return linkDestroy;
    case Operation::kUserObjectCreate:
      return userObjectCreate;
    case Operation::kGraphBatchNode:
      return graphBatchNode;
    case Operation::kGraphDotPrint:
      return graphDotPrint;
    case Operation::kLogsDump:
      return logsDump;
    case Operation::kLogsListen:
      return logsListen;
    case Operation::kLaunchOnDevices:
      return launchOnDevices;
    case Operation::kFinishWork:
      return finishWork;
  }
  return nullptr;
}

CUresult describe(Invocation& in) {
  Worker& worker = in.worker();
  forward::Description description{};
  description.specification = forward::kSpecification;
  (void)in.driver().cuDriverGetVersion(&description.driver_version);
  description.devices = worker.library().devices();
  description.va_base = worker.options().va_base;
  description.va_size = worker.options().va_size;
  description.window = forward::kWindow;
  description.window_bytes = forward::kWindowBytes;
  description.placed = worker.library().placed().base;
  description.placed_bytes = worker.library().placed().bytes;
  const OlpagerRoom room = worker.library().room();
  description.vram = room.vram;
  description.told = room.told;
  description.capacity = room.all;
  description.lent = room.lent;
  description.told_lent = room.told_lent;
  description.lenders = room.lenders;
  in.results().value(description);
  for (size_t i = 0; i < api::kSymbolCount; ++i) {
    const auto symbol = static_cast<api::Symbol>(i);
    in.results().value(static_cast<uint8_t>(
        api::isDeclared(symbol) && worker.library().symbol(api::symbolName(symbol)) != nullptr));
  }
  return CUDA_SUCCESS;
}

// Nobody may wait: the client has told its program that the memory is there. If it is not, the
// context is of no use any more.
CUresult allocateAt(Invocation& in) {
  const auto address = in.value<CUdeviceptr>();
  const auto bytes = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  Worker& worker = in.worker();
  size_t room = 0, largest = 0;
  const CUresult result =
      worker.library().placed().allocateAt != nullptr
          ? worker.library().placed().allocateAt(address, bytes, &room, &largest)
          : CUDA_ERROR_NOT_SUPPORTED;
  if (result == CUDA_SUCCESS) {
    in.results().value(forward::Room{room, largest});
  } else if (in.head().reply == 0) {
    base::logError(
        "an allocation of %llu bytes that the client counted on failed (CUDA error %d): its "
        "context ends",
        static_cast<unsigned long long>(bytes), static_cast<int>(result));
    worker.tell(forward::Answer::kBroken, 0, result,
                std::as_bytes(std::span(&in.head().context, 1)), false);
  }
  return result;
}

CUresult goodbye(Invocation& in) {
  in.worker().lead().end();
  return CUDA_SUCCESS;
}

// The context is current where it was made; what is current is the client's to know.
CUresult contextCreate(Invocation& in) {
  const auto flags = in.value<unsigned>();
  const auto device = in.value<CUdevice>();
  if (!in.ok()) return in.refusal();
  CUcontext made = nullptr;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (in.driver().cuCtxCreate_v2 != nullptr) {
    result = in.driver().cuCtxCreate_v2(&made, flags, device);
  } else if (in.driver().cuCtxCreate_v4 != nullptr) {
    result = in.driver().cuCtxCreate_v4(&made, nullptr, flags, device);
  }
  if (result != CUDA_SUCCESS) return result;
  CUcontext popped = nullptr;
  (void)in.driver().cuCtxPopCurrent_v2(&popped);
  in.results().value(in.numberFor(made));
  return in.worker().agent().contextMade();
}

CUresult primaryRetain(Invocation& in) {
  const auto device = in.value<CUdevice>();
  if (!in.ok()) return in.refusal();
  CUcontext context = nullptr;
  const CUresult result = in.driver().cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS) return result;
  in.bind(forward::primaryHandle(in.worker().options().handle_slot, device), context);
  return in.worker().agent().contextMade();
}

}  // namespace olpager::gpunode
