// The runtime API's ways into modules: symbols, managed variables, attributes, occupancy,
// cooperative launches, graphs, device printf, assertions, a reset in the middle. Prints PASS, or
// the line that failed.
#include <cooperative_groups.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                  \
  do {                                                    \
    if (!(condition)) {                                   \
      std::printf("line %d: %s\n", __LINE__, #condition); \
      std::exit(1);                                       \
    }                                                     \
  } while (false)
#define CU(call) CHECK((call) == cudaSuccess)

__device__ int counter = 40;
static __device__ int hidden = 3;
__constant__ int factors[4] = {1, 2, 3, 4};
__managed__ int managed = 5;

__global__ void useVariables(int* out) {
  out[0] = atomicAdd(&counter, 2) + hidden;
  out[1] = factors[2];
  managed += 1;
}

__global__ void addTo(int* sum, int by) { atomicAdd(sum, by); }

__global__ void gridWide(int* total, int* out) {
  if (threadIdx.x == 0) atomicAdd(total, 1);
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *total;
}

__global__ void shared(int* data) {
  extern __shared__ int scratch[];
  scratch[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x];
}

__global__ void hello() { printf("hello from thread %d of %s\n", threadIdx.x, "the kernel"); }

void hostFunction(void* flag) { *static_cast<int*>(flag) += 1; }

void variables() {
  int* out;
  CU(cudaMalloc(&out, 8));
  useVariables<<<1, 1>>>(out);
  int host[2];
  CU(cudaMemcpy(host, out, 8, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 43);
  CHECK(host[1] == 3);
  CHECK(managed == 6);
  int value = 0;
  CU(cudaMemcpyFromSymbol(&value, counter, 4));
  CHECK(value == 42);
  value = 10;
  CU(cudaMemcpyToSymbol(hidden, &value, 4));
  const int more[4] = {5, 6, 7, 8};
  CU(cudaMemcpyToSymbol(factors, more, sizeof(more)));
  managed = 100;
  useVariables<<<1, 1>>>(out);
  CU(cudaMemcpy(host, out, 8, cudaMemcpyDeviceToHost));
  CHECK(host[0] == 52);
  CHECK(host[1] == 7);
  CHECK(managed == 101);
  void* address;
  size_t size;
  CU(cudaGetSymbolAddress(&address, factors));
  CU(cudaGetSymbolSize(&size, factors));
  CHECK(size == 16);
  CU(cudaFree(out));
}

void attributes() {
  cudaFuncAttributes attributes;
  CU(cudaFuncGetAttributes(&attributes, shared));
  CHECK(attributes.maxThreadsPerBlock == 1024);
  CU(cudaFuncSetAttribute(shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 * 1024));
  int blocks = 0;
  CU(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared, 256, 0));
  CHECK(blocks > 0);
  int grid, block;
  CU(cudaOccupancyMaxPotentialBlockSize(&grid, &block, addTo, 0, 0));
  CHECK(block > 0);
  int* data;
  CU(cudaMalloc(&data, 1024));
  int host[256];
  for (int i = 0; i < 256; ++i) host[i] = i;
  CU(cudaMemcpy(data, host, 1024, cudaMemcpyHostToDevice));
  shared<<<1, 256, 100 * 1024>>>(data);
  CU(cudaMemcpy(host, data, 1024, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 256; ++i) CHECK(host[i] == 255 - i);
  shared<<<1, 2048>>>(data);
  CHECK(cudaGetLastError() != cudaSuccess);
  CU(cudaFree(data));
}

void cooperative() {
  const int blocks = 12;
  int *total, *out;
  CU(cudaMalloc(&total, 4));
  CU(cudaMalloc(&out, blocks * 4));
  CU(cudaMemset(total, 0, 4));
  void* arguments[] = {&total, &out};
  CU(cudaLaunchCooperativeKernel(gridWide, blocks, 64, arguments, 0, nullptr));
  int host[blocks];
  CU(cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost));
  for (int value : host) CHECK(value == blocks);
  CU(cudaFree(total));
  CU(cudaFree(out));
}

void graphs() {
  int* sum;
  CU(cudaMalloc(&sum, 4));
  CU(cudaMemset(sum, 0, 4));
  int flag = 0;
  cudaStream_t stream;
  CU(cudaStreamCreate(&stream));
  CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 1; i <= 4; ++i) addTo<<<2, 32, 0, stream>>>(sum, i);
  CU(cudaLaunchHostFunc(stream, hostFunction, &flag));
  cudaGraph_t graph;
  CU(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CU(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) CU(cudaGraphLaunch(exec, stream));
  CU(cudaStreamSynchronize(stream));
  int host = 0;
  CU(cudaMemcpy(&host, sum, 4, cudaMemcpyDeviceToHost));
  CHECK(host == 3 * 64 * 10);
  CHECK(flag == 3);
  CU(cudaGraphExecDestroy(exec));
  CU(cudaGraphDestroy(graph));
  CU(cudaStreamDestroy(stream));
  CU(cudaFree(sum));
}

int main() {
  variables();
  attributes();
  cooperative();
  graphs();
  hello<<<1, 2>>>();
  CU(cudaDeviceSynchronize());
  CU(cudaDeviceReset());
  int value = 0;
  CU(cudaMemcpyFromSymbol(&value, counter, 4));
  CHECK(value == 40);  // a new context has new variables
  graphs();
  std::printf("PASS\n");
  return 0;
}
