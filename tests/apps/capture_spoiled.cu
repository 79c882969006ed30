// A capture that a forbidden call has spoiled: what is put into it is refused, its end says so, and
// no operation of it is made or waits for memory. After its end the stream works as before.
#include "common.h"

namespace {

constexpr size_t kPiece = size_t{2} << 20;

__global__ void add(uint4* words, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i].x += value;
}

// If nobody waits for the answer, the end of the capture tells of it.
void refused(cudaError_t result, const char* what) {
  CHECK(result == cudaErrorStreamCaptureInvalidated || result == cudaSuccess,
        "%s in a spoiled capture: %s", what, cudaGetErrorName(result));
  static_cast<void>(cudaGetLastError());
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t count = kPiece / sizeof(uint4);
  apps::Pressure pressure(options.bytes / 2);
  std::vector<uint4*> pieces(std::max<size_t>(3, options.bytes / 2 / kPiece));
  for (uint4*& piece : pieces) {
    RUNTIME_OK(cudaMalloc(&piece, kPiece));
    RUNTIME_OK(cudaMemset(piece, 0, kPiece));
  }
  RUNTIME_OK(cudaDeviceSynchronize());  // the stream below waits for no other
  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (uint32_t round = 1; round <= 3; ++round) {
    pressure.apply(stream);
    for (uint4* piece : pieces) add<<<apps::blocks(count), 256, 0, stream>>>(piece, count, 1);
    RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<apps::blocks(count), 256, 0, stream>>>(pieces[0], count, 1000);
    RUNTIME_OK(cudaGetLastError());
    const cudaError_t spoils = cudaStreamSynchronize(stream);
    CHECK(spoils == cudaErrorStreamCaptureUnsupported, "to wait for a capture gives %s",
          cudaGetErrorName(spoils));
    static_cast<void>(cudaGetLastError());
    for (uint4* piece : pieces) {
      add<<<apps::blocks(count), 256, 0, stream>>>(piece, count, 1000);
      refused(cudaGetLastError(), "a launch");
      refused(cudaMemsetAsync(piece, 1, kPiece, stream), "a memset");
      refused(cudaMemcpyAsync(piece, pieces[0], 64, cudaMemcpyDeviceToDevice, stream), "a copy");
    }
    void* memory = nullptr;
    const cudaError_t allocates = cudaMallocAsync(&memory, 4096, stream);
    CHECK(allocates == cudaErrorStreamCaptureInvalidated, "an allocation in a spoiled capture: %s",
          cudaGetErrorName(allocates));
    static_cast<void>(cudaGetLastError());
    cudaGraph_t graph = nullptr;
    const cudaError_t ends = cudaStreamEndCapture(stream, &graph);
    CHECK(ends == cudaErrorStreamCaptureInvalidated && graph == nullptr,
          "a spoiled capture ends with %s", cudaGetErrorName(ends));
    static_cast<void>(cudaGetLastError());
    RUNTIME_OK(cudaStreamSynchronize(stream));
    std::vector<uint4> got(count);
    for (uint4* piece : pieces) {
      RUNTIME_OK(cudaMemcpy(got.data(), piece, kPiece, cudaMemcpyDeviceToHost));
      for (uint32_t i = 0; i < count; ++i)
        CHECK(got[i].x == round && got[i].y == 0, "word %u is %u after %u rounds", i, got[i].x,
              round);
    }
  }
  pressure.check();
  return apps::ok("capture_spoiled over %zu pieces", pieces.size());
}
