// Addresses of variables and of functions that memory holds: in a table with initial values, in
// objects with virtual functions that a kernel has made, put there by a kernel, by a copy from
// pinned or pageable memory, in pinned and in managed memory, and as the program got it from a
// variable. Kernels that find such an address anywhere reach what it names. In between the program
// links code, which is nobody's.
#include <cuda.h>

#include "common.h"

using Step = uint32_t (*)(uint32_t, uint32_t);
__device__ __noinline__ uint32_t added(uint32_t a, uint32_t b) { return a + b; }
__device__ __noinline__ uint32_t scaled(uint32_t a, uint32_t b) { return a * b; }
__device__ __noinline__ uint32_t mixed(uint32_t a, uint32_t b) { return (a ^ b) * 2654435761u; }
__device__ Step g_steps[3] = {added, scaled, mixed};
__device__ Step g_step = mixed;
__device__ uint32_t g_sum;

struct Shape {
  __device__ virtual uint32_t area(uint32_t by) const = 0;
};
struct Square : Shape {
  uint32_t side;
  __device__ explicit Square(uint32_t of) : side(of) {}
  __device__ __noinline__ uint32_t area(uint32_t by) const override { return side * side + by; }
};
struct Strip : Shape {
  uint32_t side;
  __device__ explicit Strip(uint32_t of) : side(of) {}
  __device__ __noinline__ uint32_t area(uint32_t by) const override { return side * 7 + 3 * by; }
};
struct Places {
  uint32_t* sum;
  Step step;
  alignas(8) unsigned char shapes[2][16];
};
static_assert(sizeof(Square) <= 16 && sizeof(Strip) <= 16);

constexpr unsigned kThreads = 64;

__global__ void make(Places* places, uint32_t side) {
  places->sum = &g_sum;
  places->step = scaled;
  new (places->shapes[0]) Square(side);
  new (places->shapes[1]) Strip(side + 1);
}
__global__ void byTable(uint32_t* data, int which, uint32_t by) {
  data[threadIdx.x] = g_steps[which](data[threadIdx.x], by);
}
__global__ void byParameter(uint32_t* data, Step step, uint32_t by) {
  data[threadIdx.x] = step(data[threadIdx.x], by);
}
__global__ void byPlaces(uint32_t* data, const Places* places, uint32_t by) {
  data[threadIdx.x] = places->step(data[threadIdx.x], by);
}
__global__ void byShape(uint32_t* data, const Places* places, int which) {
  const auto* const shape = reinterpret_cast<const Shape*>(places->shapes[which]);
  data[threadIdx.x] = shape->area(data[threadIdx.x]);
}
__global__ void addTo(uint32_t* data, uint32_t* const* sum, uint32_t by) {
  data[threadIdx.x] += 1;
  if (threadIdx.x == 0) **sum += by;
}
__global__ void addDirectly(uint32_t* data, uint32_t by) {
  data[threadIdx.x] += 1;
  if (threadIdx.x == 0) g_sum += by;
}

static uint32_t stepped(int which, uint32_t a, uint32_t b) {
  return which == 0 ? a + b : which == 1 ? a * b : (a ^ b) * 2654435761u;
}

static void linkCode() {
  char text[] =
      ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry idle()\n{\nret;\n}\n";
  CUlinkState state;
  void* image = nullptr;
  size_t bytes = 0;
  CHECK(cuLinkCreate(0, nullptr, nullptr, &state) == CUDA_SUCCESS &&
            cuLinkAddData(state, CU_JIT_INPUT_PTX, text, sizeof text, "idle", 0, nullptr,
                          nullptr) == CUDA_SUCCESS &&
            cuLinkComplete(state, &image, &bytes) == CUDA_SUCCESS && bytes != 0,
        "code can't be linked");
  CHECK(cuLinkDestroy(state) == CUDA_SUCCESS, "a linker does not go");
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  apps::Random random(options.seed);
  constexpr int kBuffers = 3, kKinds = 9;
  uint32_t* data[kBuffers];
  uint32_t values[kBuffers];
  for (int k = 0; k < kBuffers; ++k) {
    values[k] = uint32_t(random.next());
    const std::vector<uint32_t> filled(kThreads, values[k]);
    RUNTIME_OK(cudaMalloc(&data[k], options.bytes / 2 / kBuffers));
    RUNTIME_OK(cudaMemcpy(data[k], filled.data(), kThreads * 4, cudaMemcpyHostToDevice));
  }
  Places* places;
  RUNTIME_OK(cudaMalloc(&places, sizeof *places));
  addDirectly<<<1, kThreads>>>(data[0], 0);
  values[0] += 1;
  RUNTIME_OK(cudaDeviceSynchronize());
  linkCode();
  const uint32_t side = uint32_t(random.below(100)) + 2;
  make<<<1, 1>>>(places, side);
  Step step = nullptr;
  RUNTIME_OK(cudaMemcpyFromSymbol(&step, g_step, sizeof step));
  void* sum_at = nullptr;
  RUNTIME_OK(cudaGetSymbolAddress(&sum_at, g_sum));

  // The holders of the variable's address, as kernels reach it: pinned and managed memory, and two
  // places in device memory that copies fill.
  uint32_t **pinned, **managed, **copied;
  RUNTIME_OK(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped));
  RUNTIME_OK(cudaMallocManaged(&managed, 1 << 20));
  RUNTIME_OK(cudaMalloc(&copied, 2 * sizeof *copied));
  *pinned = *managed = static_cast<uint32_t*>(sum_at);
  RUNTIME_OK(cudaMemcpy(copied, &sum_at, sizeof sum_at, cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaMemcpyAsync(copied + 1, pinned, sizeof *pinned, cudaMemcpyHostToDevice, nullptr));
  uint32_t** pinned_there;
  RUNTIME_OK(cudaHostGetDevicePointer(&pinned_there, pinned, 0));
  uint32_t* const* const holders[] = {pinned_there, managed, copied, copied + 1, &places->sum};

  uint32_t sum = 0;
  for (int round = 0; round < 45; ++round) {
    const int k = int(random.below(kBuffers)), which = int(random.below(3));
    const auto by = uint32_t(random.below(1000));
    uint32_t& value = values[k];
    switch (const int kind = round % kKinds; kind) {
      case 0:
        byTable<<<1, kThreads>>>(data[k], which, by);
        value = stepped(which, value, by);
        break;
      case 1:
        byParameter<<<1, kThreads>>>(data[k], step, by);
        value = stepped(2, value, by);
        break;
      case 2:
        byPlaces<<<1, kThreads>>>(data[k], places, by);
        value = stepped(1, value, by);
        break;
      case 3:
        byShape<<<1, kThreads>>>(data[k], places, which & 1);
        value = (which & 1) != 0 ? (side + 1) * 7 + 3 * value : side * side + value;
        break;
      default:
        if (const auto holder = size_t(kind - 4); (which & 1) != 0)
          addTo<<<1, kThreads>>>(data[k], holders[holder], by);
        else
          addDirectly<<<1, kThreads>>>(data[k], by);
        value += 1;
        sum += by;
    }
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  for (int k = 0; k < kBuffers; ++k) {
    std::vector<uint32_t> got(kThreads);
    RUNTIME_OK(cudaMemcpy(got.data(), data[k], kThreads * 4, cudaMemcpyDeviceToHost));
    for (const uint32_t one : got)
      CHECK(one == values[k], "buffer %d has %#x, expected %#x", k, one, values[k]);
  }
  uint32_t got = 0;
  RUNTIME_OK(cudaMemcpyFromSymbol(&got, g_sum, sizeof got));
  CHECK(got == sum, "the variable is %u, expected %u", got, sum);
  return apps::ok("code_addresses: %u", sum);
}
