// The client's host memory and host functions as the driver here sees them.
#include <memory>
#include <optional>

#include "base/log.h"
#include "gpunode/worker/owed.h"
#include "gpunode/worker/relaxed.h"
#include "gpunode/worker/services.h"
#include "gpunode/worker/worker.h"
#include "interpose/api/attribute_bytes.h"

namespace olpager::gpunode {

namespace {

// A block that is mapped; it is gone again where the driver does not take it.
CUresult pin(Invocation& in, uint64_t address, uint64_t bytes) {
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult result =
      in.driver().cuMemHostRegister_v2(reinterpret_cast<void*>(address), bytes, kFlags);
  if (result != CUDA_SUCCESS) (void)in.worker().hostMemory().unmap(address);
  return result;
}

// The client's own memory in its place, where the two have one host. False: whatever is in the way,
// it can be exchanged.
bool shareBlock(Invocation& in, uint64_t address, uint64_t bytes, const transport::RemoteKey& key) {
  if (key.key == 0) return false;
  const auto asked = in.worker().channel().share(key);
  if (!in.worker().arrived(*asked)) return false;
  if (!in.worker().hostMemory().share(address, bytes, calls::Channel::memoryOf(*asked)))
    return false;
  const CUresult result = pin(in, address, bytes);
  if (result == CUDA_SUCCESS) return true;
  base::warnOnce("share",
                 "the driver does not take the program's memory (CUDA error %d): pinned memory is "
                 "exchanged with it",
                 result);
  return false;
}

}  // namespace

CUresult hostAlloc(Invocation& in) {
  const auto address = in.value<uint64_t>();
  const auto bytes = in.value<uint64_t>();
  const auto key = in.value<transport::RemoteKey>();
  const bool during_capture = in.value<uint8_t>() != 0;
  if (!in.ok()) return in.refusal();
  std::optional<Relaxed> relaxed;
  if (during_capture) relaxed.emplace(in.driver());
  const bool shared = shareBlock(in, address, bytes, key);
  if (!shared) {
    if (!in.worker().hostMemory().map(address, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (const CUresult result = pin(in, address, bytes); result != CUDA_SUCCESS) return result;
  }
  in.results().value(static_cast<uint8_t>(shared));
  return CUDA_SUCCESS;
}

CUresult hostFree(Invocation& in) {
  const auto address = in.value<uint64_t>();
  if (!in.ok()) return in.refusal();
  if (!in.worker().hostMemory().has(address, 1)) return CUDA_ERROR_INVALID_VALUE;
  // As the driver's: after all that may still use it.
  CUresult result = in.head().context != 0 ? in.driver().cuCtxSynchronize() : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  result = in.driver().cuMemHostUnregister(reinterpret_cast<void*>(address));
  if (result == CUDA_SUCCESS && !in.worker().hostMemory().unmap(address))
    return CUDA_ERROR_INVALID_VALUE;
  return result;
}

CUresult hostBytes(Invocation& in) {
  while (in.ok() && in.arguments().left() > 0) {
    forward::Run run;
    if (!forward::readRun(in.arguments(), &run) || !in.worker().hostMemory().apply(run)) {
      in.arguments().fail();
      return in.refusal();
    }
  }
  return CUDA_SUCCESS;
}

namespace {

struct Function {
  Worker* worker;
  uint32_t number;
  bool again;  // runs with each launch of a graph: it stays as long as the session
};
void called(void* data, CUresult status) {
  std::unique_ptr<const Function> function(static_cast<const Function*>(data));
  ClientFunctions& functions = function->worker->clientFunctions();
  // The function finds what its graph has changed so far.
  if (function->again) function->worker->exchange().payNow();
  functions.call(function->number, status);
  if (function->again) {
    (void)function.release();
  } else {
    functions.over();
  }
}
void CUDA_CB callFunction(void* data) { called(data, CUDA_SUCCESS); }
// The driver does not call a host function behind a fault, and nobody would tell: a callback is in
// its place, where no graph takes it.
void CUDA_CB callUnlessFailed(CUstream /*stream*/, CUresult status, void* data) {
  if (status == CUDA_SUCCESS) return called(data, status);
  const std::unique_ptr<const Function> function(static_cast<const Function*>(data));
  function->worker->clientFunctions().over();
}
void CUDA_CB callCallback(CUstream /*stream*/, CUresult status, void* data) {
  called(data, status);
}

}  // namespace

CUresult hostFunction(Invocation& in) {
  const auto given = in.value<uint64_t>();
  const bool per_thread = in.value<uint8_t>() != 0;
  const CUstream stream = in.streamOf(given, per_thread);
  const bool with_status = in.value<uint8_t>() != 0;
  const auto number = in.value<uint32_t>();
  Owed owed(in.worker(), forward::Answer::kHostFunction, number,
            static_cast<CUresult>(forward::kFunctionNotTaken));
  if (!in.ok()) return in.refusal();
  auto function =
      std::make_unique<Function>(Function{&in.worker(), number, isCapturing(in, stream)});
  const bool again = function->again;
  ClientFunctions& functions = in.worker().clientFunctions();
  if (again) {
    functions.inGraphs();
  } else {
    functions.comes();
  }
  const CUresult result =
      again && !with_status
          ? in.driver().cuLaunchHostFunc(stream, callFunction, function.get())
          : in.driver().cuStreamAddCallback(stream, with_status ? callCallback : callUnlessFailed,
                                            function.get(), 0);
  if (result != CUDA_SUCCESS) {
    if (!again) functions.over();
    return result;
  }
  (void)function.release();
  owed.comes();
  return result;
}

CUresult hostFunctionDone(Invocation& in) {
  const auto number = in.value<uint32_t>();
  if (!in.ok()) return in.refusal();
  in.worker().clientFunctions().isOver(number);
  return CUDA_SUCCESS;
}

namespace {
// The stream has come to it, or never will. A callback, which unlike a host function is called
// behind a fault, too.
void CUDA_CB tellNotice(CUstream /*stream*/, CUresult status, void* data) {
  const std::unique_ptr<Function> notice(static_cast<Function*>(data));
  notice->worker->tell(forward::Answer::kHostFunction, notice->number, status, {}, true);
}
}  // namespace

CUresult gate(Invocation& in) {
  const auto given = in.value<uint64_t>();
  const bool per_thread = in.value<uint8_t>() != 0;
  const auto notice = in.value<uint32_t>();  // 0: the client is told nothing
  const auto number = in.value<uint32_t>();  // 0: the stream waits for nothing
  // The client is told of any outcome: else it would wait for ever.
  Owed owed(in.worker(), forward::Answer::kHostFunction, notice, CUDA_ERROR_INVALID_HANDLE);
  const CUstream stream = in.streamOf(given, per_thread);
  if (!in.ok()) return in.refusal();
  if (isCapturing(in, stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (notice != 0) {
    auto function = std::make_unique<Function>(Function{&in.worker(), notice, false});
    const CUresult result = in.driver().cuStreamAddCallback(stream, tellNotice, function.get(), 0);
    if (result != CUDA_SUCCESS) return result;
    (void)function.release();
    owed.comes();
  }
  if (number == 0) return CUDA_SUCCESS;
  const CUresult result =
      in.worker().gates().put(in.driver(), in.enterContextOf(stream), stream, number);
  in.worker().lead().gatePut();
  return result;
}

CUresult openGate(Invocation& in) {
  const auto number = in.value<uint32_t>();
  if (!in.ok()) return in.refusal();
  in.worker().gates().open(number);
  return CUDA_SUCCESS;
}

bool isCapturing(Invocation& in, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return in.driver().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

namespace {

std::vector<uint64_t> readBlocks(Invocation& in, uint32_t count) {
  if (count > in.arguments().left() / sizeof(uint64_t)) in.arguments().fail();
  std::vector<uint64_t> blocks;
  for (uint32_t i = 0; in.ok() && i < count; ++i) blocks.push_back(in.value<uint64_t>());
  return blocks;
}

struct Bytes {
  Worker* worker;
  std::vector<std::byte> runs;
};
void CUDA_CB putBytes(void* data) {
  const std::unique_ptr<const Bytes> bytes(static_cast<const Bytes*>(data));
  forward::Reader reader(bytes->runs);
  for (forward::Run run; reader.left() > 0 && forward::readRun(reader, &run);)
    (void)bytes->worker->hostMemory().apply(run);
}

}  // namespace

CUresult graphBytes(Invocation& in) {
  const auto given = in.value<uint64_t>();
  const bool per_thread = in.value<uint8_t>() != 0;
  std::vector<uint64_t> blocks = readBlocks(in, in.value<uint32_t>());
  const CUstream stream = in.streamOf(given, per_thread);
  if (!in.ok()) return in.refusal();
  const auto runs = in.arguments().raw(in.arguments().left());
  for (forward::Reader reader(runs); reader.left() > 0;) {
    forward::Run run;
    if (forward::readRun(reader, &run) && in.worker().hostMemory().has(run.address, run.length))
      continue;
    in.arguments().fail();
    return in.refusal();
  }
  in.worker().exchange().expect(in.worker().contextOf(stream), stream, std::move(blocks));
  if (runs.empty()) return CUDA_SUCCESS;
  auto bytes = std::make_unique<Bytes>(Bytes{&in.worker(), {runs.begin(), runs.end()}});
  const CUresult result = in.driver().cuLaunchHostFunc(stream, putBytes, bytes.get());
  if (result == CUDA_SUCCESS) (void)bytes.release();
  return result;
}

CUresult hostChanges(Invocation& in) {
  const auto given = in.value<uint64_t>();
  const bool per_thread = in.value<uint8_t>() != 0;
  Owed owed(in.worker(), forward::Answer::kHostBytes, 1);
  std::vector<uint64_t> blocks = readBlocks(in, in.value<uint32_t>());
  std::vector<uint64_t> own = readBlocks(in, in.value<uint32_t>());
  const CUstream stream = in.streamOf(given, per_thread);
  if (!in.ok()) return in.refusal();
  // Blocks of a captured call come back behind its graph.
  if (isCapturing(in, stream)) return CUDA_SUCCESS;
  in.worker().exchange().owe(in.worker().contextOf(stream), stream, std::move(blocks),
                             std::move(own));
  owed.comes();
  return CUDA_SUCCESS;
}

CUhostFn clientFunction() { return callFunction; }
void* clientFunctionData(Worker& worker, uint32_t number) {
  worker.clientFunctions().inGraphs();
  return new Function{&worker, number, true};
}
uint32_t clientFunctionNumber(const void* data) {
  return static_cast<const Function*>(data)->number;
}

CUresult pointerAttribute(Invocation& in) {
  constexpr uint32_t kMost = 64;
  const bool plural = in.value<uint8_t>() != 0;
  const auto address = in.value<CUdeviceptr>();
  const auto count = in.value<uint32_t>();
  if (count == 0 || count > kMost) in.arguments().fail();
  CUpointer_attribute attributes[kMost];
  uint64_t values[kMost][2] = {};
  void* data[kMost];
  for (uint32_t i = 0; in.ok() && i < count; ++i) {
    attributes[i] = static_cast<CUpointer_attribute>(in.value<int32_t>());
    if (api::pointerAttributeBytes(attributes[i]) == 0) in.refuseValue();
    data[i] = values[i];
  }
  if (!in.ok()) return in.refusal();
  const CUresult result =
      plural ? in.driver().cuPointerGetAttributes(count, attributes, data, address)
             : in.driver().cuPointerGetAttribute(values[0], attributes[0], address);
  if (result != CUDA_SUCCESS) return result;
  for (uint32_t i = 0; i < count; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT)
      values[i][0] = in.numberFor(handleFrom<CUcontext>(values[i][0]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
      values[i][0] = in.numberFor(handleFrom<CUmemoryPool>(values[i][0]));
    in.results().raw(values[i], api::pointerAttributeBytes(attributes[i]));
  }
  return CUDA_SUCCESS;
}

}  // namespace olpager::gpunode
