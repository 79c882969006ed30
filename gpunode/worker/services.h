// Services of the worker for which no decoder can be generated; by operation
// (forwarding/wire/wire.h), and by subject in files of their own. Each takes its arguments from
// the call, checks them, and puts its results.
#pragma once

#include <cuda.h>

#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

CUresult describe(Invocation& in);
CUresult goodbye(Invocation& in);
CUresult contextCreate(Invocation& in);
CUresult primaryRetain(Invocation& in);

CUresult copyIn(Invocation& in);
CUresult copyOut(Invocation& in);
CUresult copyDevice(Invocation& in);
CUresult copyPeer(Invocation& in);
CUresult synchronizeDefault(Invocation& in);
CUresult finishWork(Invocation& in);

CUresult loadModule(Invocation& in);
CUresult loadLibrary(Invocation& in);
CUresult nameKernel(Invocation& in);

CUresult variable(Invocation& in);
CUresult managedBytes(Invocation& in);
CUresult managedGone(Invocation& in);
CUresult variableBytes(Invocation& in);

CUresult linkCreate(Invocation& in);
CUresult linkAdd(Invocation& in);
CUresult linkComplete(Invocation& in);
CUresult linkDestroy(Invocation& in);

CUresult parameters(Invocation& in);
CUresult launch(Invocation& in);
CUresult launchOnDevices(Invocation& in);
CUresult clusters(Invocation& in);

CUresult hostAlloc(Invocation& in);
CUresult hostFree(Invocation& in);
CUresult hostBytes(Invocation& in);
CUresult hostFunction(Invocation& in);
CUresult hostFunctionDone(Invocation& in);
CUresult hostChanges(Invocation& in);
CUresult graphHostSides(Invocation& in);
CUresult graphBytes(Invocation& in);
CUresult gate(Invocation& in);
CUresult openGate(Invocation& in);
CUresult pointerAttribute(Invocation& in);

CUresult peerLink(Invocation& in);
CUresult straightOut(Invocation& in);
CUresult straightIn(Invocation& in);
CUresult straightStop(Invocation& in);

CUresult allocateAt(Invocation& in);

CUresult userObjectCreate(Invocation& in);
CUresult graphDotPrint(Invocation& in);
CUresult logsDump(Invocation& in);
CUresult logsListen(Invocation& in);

CUresult exportMemory(Invocation& in);
CUresult importMemory(Invocation& in);
CUresult exportGone(Invocation& in);

CUresult greenContext(Invocation& in);
CUresult greenDestroy(Invocation& in);

CUresult graphKernelNode(Invocation& in);
CUresult graphHostNode(Invocation& in);
CUresult graphMemcpyNode(Invocation& in);
CUresult graphAllocNode(Invocation& in);
CUresult graphConditionalNode(Invocation& in);
CUresult graphBatchNode(Invocation& in);
CUresult graphNodeParameters(Invocation& in);
CUresult graphKernelNodeAttribute(Invocation& in);

/// A host function that calls the client's function of this number, and what it is to be given.
CUhostFn clientFunction();
void* clientFunctionData(Worker& worker, uint32_t number);
/// The number that such data has.
uint32_t clientFunctionNumber(const void* data);
/// The parameters of a node that is a batch of operations, as the answer to kGraphNodeParameters.
CUresult batchParameters(Invocation& in, CUgraphNode node);
/// The places of a kernel's parameters, by either of its two handles.
CUresult parameterPlaces(Invocation& in, CUfunction function, ParameterPlaces& places);
/// True if the values of the attribute are plain: no handles.
bool isPlain(CUlaunchAttributeID attribute);
/// True if work of this stream is captured now.
bool isCapturing(Invocation& in, CUstream stream);

}  // namespace olpager::gpunode
