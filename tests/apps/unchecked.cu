// Launches whose own results nobody looks at, as most programs make them: what went wrong with one
// is told by every way of waiting for it, and by all that is asked of the context afterwards, until
// the device is reset; then everything works again. "filled", then: "OK unchecked: right": nothing
// went wrong. "OK unchecked: told": something did (it takes a memserver that is lost), and was
// told. With an even seed the launches run in a green context's stream, which shares its fate with
// the primary context that all else is asked of.
#include <thread>

#include "common.h"

constexpr size_t kPiece = size_t{4} << 20;
constexpr uint32_t kRounds = 8;

static std::vector<void*> filled(size_t count, uint32_t seed) {
  std::vector<void*> pieces(count);
  for (size_t i = 0; i < count; ++i) {
    RUNTIME_OK(cudaMalloc(&pieces[i], kPiece));
    apps::fill(pieces[i], kPiece, uint32_t(seed + i));
  }
  return pieces;
}

static void addTo(void* piece, cudaStream_t stream) {
  apps::addKernel<<<apps::blocks(kPiece / 16), 256, 0, stream>>>(static_cast<uint4*>(piece),
                                                                 kPiece / 16, 3);
}

// All of the device, as a green context. nullptr: there are none here.
static CUgreenCtx makeGreen() {
  CUdevResource all{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  if (cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return nullptr;
  DRIVER_OK(cuDevResourceGenerateDesc(&description, &all, 1));
  DRIVER_OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const size_t count = options.bytes / kPiece;
  const auto seed = uint32_t(options.seed);
  const std::vector<void*> pieces = filled(count, seed);
  cudaStream_t stream;
  cudaEvent_t event;
  const CUgreenCtx green = seed % 2 == 0 ? makeGreen() : nullptr;
  if (green != nullptr)
    DRIVER_OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  else
    RUNTIME_OK(cudaStreamCreate(&stream));
  RUNTIME_OK(cudaEventCreate(&event));
  cudaArray_t array;
  const cudaChannelFormatDesc words = cudaCreateChannelDesc<uint32_t>();
  RUNTIME_OK(cudaMallocArray(&array, &words, 16, 16));
  RUNTIME_OK(cudaDeviceSynchronize());
  std::printf("filled\n");
  std::fflush(stdout);
  for (uint32_t round = 0; round < kRounds; ++round)
    for (void* piece : pieces) addTo(piece, stream);
  (void)cudaEventRecord(event, stream);
  (void)cudaGetLastError();

  const cudaError_t said = cudaDeviceSynchronize();
  if (said == cudaSuccess) {
    for (size_t i = 0; i < count; ++i)
      apps::verify(pieces[i], kPiece, uint32_t(seed + i), kRounds * 3, "a piece");
    return apps::ok("unchecked: right");
  }
  CHECK(said == cudaErrorECCUncorrectable, "cudaDeviceSynchronize says %s", cudaGetErrorName(said));
  void* more = nullptr;
  uint32_t word = 0;
  size_t is_free = 0, total = 0;
  const auto again = [&](const char* what, cudaError_t result) {
    CHECK(result == said, "%s says %s after it", what, cudaGetErrorName(result));
  };
  again("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  again("cudaStreamQuery", cudaStreamQuery(stream));
  again("cudaEventSynchronize", cudaEventSynchronize(event));
  again("cudaEventQuery", cudaEventQuery(event));
  again("cudaDeviceSynchronize", cudaDeviceSynchronize());
  again("cudaMalloc", cudaMalloc(&more, kPiece));
  again("cudaMemGetInfo", cudaMemGetInfo(&is_free, &total));
  for (void* piece : pieces)
    again("cudaMemcpy", cudaMemcpy(&word, piece, sizeof(word), cudaMemcpyDeviceToHost));
  again("a copy from an array", cudaMemcpy2DFromArray(&word, sizeof(word), array, 0, 0,
                                                      sizeof(word), 1, cudaMemcpyDeviceToHost));
  again("cudaMallocAsync", cudaMallocAsync(&more, kPiece, stream));
  std::thread([&] {
    again("cudaDeviceSynchronize of another thread", cudaDeviceSynchronize());
  }).join();
  addTo(pieces[0], stream);
  again("a launch", cudaGetLastError());

  if (green != nullptr) {  // it has kept the primary context, and nothing of what was lost
    (void)cudaStreamDestroy(stream);
    (void)cuGreenCtxDestroy(green);
    again("cudaDeviceSynchronize without the green context", cudaDeviceSynchronize());
  }
  RUNTIME_OK(cudaDeviceReset());
  (void)cudaGetLastError();
  const size_t few = 4;
  const std::vector<void*> fresh = filled(few, seed);
  for (size_t i = 0; i < few; ++i)
    apps::verify(fresh[i], kPiece, uint32_t(seed + i), 0, "a piece after the reset");
  RUNTIME_OK(cudaDeviceSynchronize());
  return apps::ok("unchecked: told");
}
