// Addresses of variables, which the program has and passes on: as parameters of kernels of the same
// module, captured in a graph as well; set, copied and asked about; in a variable that is
// initialised with the address of another one. Between the kernels that change the variables all
// memory is used in turns, so that whatever holds a part of it does.
#include <cuda.h>

#include "common.h"

constexpr uint32_t kWords = 256;
__device__ uint32_t g_counts[kWords];
__device__ uint32_t g_other[kWords] = {1, 2, 3};
__device__ uint32_t* g_pointer = g_other;  // the linker puts the address there
__constant__ uint32_t c_steps[kWords];

// `variable`: an address of one.
__global__ void addSteps(uint32_t* variable, const uint32_t* buffer, uint32_t scale) {
  const uint32_t i = threadIdx.x;
  variable[i] += scale * c_steps[i] + buffer[i];
}
__global__ void throughPointer(const uint32_t* buffer) {
  g_pointer[threadIdx.x] += buffer[threadIdx.x] * 3;
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  constexpr int kBuffers = 6;
  const size_t piece = (options.bytes / 2 / kBuffers) & ~size_t{255};
  uint32_t* buffers[kBuffers];
  std::vector<std::vector<uint32_t>> filled(kBuffers, std::vector<uint32_t>(kWords));
  for (int k = 0; k < kBuffers; ++k) {
    RUNTIME_OK(cudaMalloc(&buffers[k], piece));
    for (uint32_t i = 0; i < kWords; ++i)
      filled[k][i] = apps::word(i, uint32_t(options.seed) + uint32_t(k));
    RUNTIME_OK(cudaMemcpy(buffers[k], filled[k].data(), kWords * 4, cudaMemcpyHostToDevice));
  }
  apps::Pressure pressure(options.bytes / 2);
  std::vector<uint32_t> steps(kWords), counts(kWords, 0), other(kWords, 0);
  other[0] = 1, other[1] = 2, other[2] = 3;
  void *of_counts, *of_steps, *of_other;
  RUNTIME_OK(cudaGetSymbolAddress(&of_counts, g_counts));
  RUNTIME_OK(cudaGetSymbolAddress(&of_steps, c_steps));
  RUNTIME_OK(cudaGetSymbolAddress(&of_other, g_other));
  auto* const variable = static_cast<uint32_t*>(of_counts);

  cudaStream_t stream;
  RUNTIME_OK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  RUNTIME_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  addSteps<<<1, kWords, 0, stream>>>(variable, buffers[0], 5);
  RUNTIME_OK(cudaStreamEndCapture(stream, &graph));
  RUNTIME_OK(cudaGraphInstantiate(&exec, graph, 0));

  for (int round = 0; round < 24; ++round) {
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    const int k = int(random.below(kBuffers));
    const uint32_t scale = uint32_t(random.next());
    switch (round % 6) {
      case 0:
        for (uint32_t& step : steps) step = uint32_t(random.next());
        RUNTIME_OK(cudaMemcpy(of_steps, steps.data(), kWords * 4, cudaMemcpyHostToDevice));
        break;
      case 1:
        addSteps<<<1, kWords>>>(variable, buffers[k], scale);
        for (uint32_t i = 0; i < kWords; ++i) counts[i] += scale * steps[i] + filled[k][i];
        break;
      case 2:
        throughPointer<<<1, kWords>>>(buffers[k]);
        for (uint32_t i = 0; i < kWords; ++i) other[i] += filled[k][i] * 3;
        break;
      case 3:
        RUNTIME_OK(cudaGraphLaunch(exec, stream));
        RUNTIME_OK(cudaStreamSynchronize(stream));
        for (uint32_t i = 0; i < kWords; ++i) counts[i] += 5 * steps[i] + filled[0][i];
        break;
      case 4:  // the upper half
        RUNTIME_OK(cudaMemset(variable + kWords / 2, 0, kWords * 2));
        for (uint32_t i = kWords / 2; i < kWords; ++i) counts[i] = 0;
        break;
      default:
        RUNTIME_OK(cudaMemcpy(of_other, variable, kWords * 4, cudaMemcpyDeviceToDevice));
        other = counts;
    }
    RUNTIME_OK(cudaGetLastError());
  }
  RUNTIME_OK(cudaDeviceSynchronize());
  cudaPointerAttributes attributes{};
  RUNTIME_OK(cudaPointerGetAttributes(&attributes, variable + 1));
  CHECK(attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == variable + 1,
        "a variable at %p is of type %d, at %p", static_cast<void*>(variable + 1), attributes.type,
        attributes.devicePointer);
  std::vector<uint32_t> got(kWords);
  RUNTIME_OK(cudaMemcpyFromSymbol(got.data(), g_counts, kWords * 4));
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(got[i] == counts[i], "count %u is %#x, expected %#x", i, got[i], counts[i]);
  RUNTIME_OK(cudaMemcpy(got.data(), of_other, kWords * 4, cudaMemcpyDeviceToHost));
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(got[i] == other[i], "other word %u is %#x, expected %#x", i, got[i], other[i]);
  pressure.check();
  return apps::ok("variable_addresses: %u words", kWords);
}
