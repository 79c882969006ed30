// A kernel that reads a texture names nothing but its handle. The object is destroyed while the
// kernel waits, other memory is used until nothing of the texture's would be left in VRAM, and then
// the kernel reads.
//
// And the other way round: an object is made while a kernel that has all of the VRAM goes on for a
// while.
//
// A driver that loads kernels at their first launch may wait for those that run before it does so,
// so all are loaded first.
#include <chrono>
#include <thread>

#include "common.h"

struct Box {
  volatile uint32_t go;
  volatile uint32_t done;
  volatile uint32_t gave_up;
  uint32_t sum;
};

constexpr uint64_t kPatience =
    20'000'000'000;  // nanoseconds that a kernel waits, however long one look takes

// Until the host says so. False: it never did.
__device__ bool awaitGo(const Box* box) {
  uint64_t began, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
  do {
    if (box->go != 0) return true;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - began < kPatience);
  return false;
}

// No pointer among the parameters leads to memory of the device.
__global__ void sumLater(cudaTextureObject_t texture, Box* box, int count) {
  if (!awaitGo(box)) {
    box->gave_up = 1;
    return;
  }
  uint32_t sum = 0;
  for (int i = 0; i < count; i += 1024) sum += tex1Dfetch<unsigned>(texture, i);
  box->sum = sum;
  __threadfence_system();
  box->done = 1;
}

// Has four buffers, and waits.
__global__ void holdBuffers(uint32_t* a, uint32_t* b, uint32_t* c, uint32_t* d, Box* box) {
  a[0] = b[0] = c[0] = d[0] = awaitGo(box) ? 1 : 0;
  __threadfence_system();
  box->done = 1;
}

__global__ void sumNow(cudaTextureObject_t texture, uint32_t* out, int count) {
  uint32_t sum = 0;
  for (int i = 0; i < count; i += 1024) sum += tex1Dfetch<unsigned>(texture, i);
  *out = sum;
}

cudaTextureObject_t textureOver(uint32_t* words, int count) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = words;
  resource.res.linear.desc = cudaCreateChannelDesc<unsigned>();
  resource.res.linear.sizeInBytes = size_t(count) * 4;
  cudaTextureDesc how{};
  how.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  RUNTIME_OK(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  return texture;
}

// A quarter of `bytes` is what fits when it pages: four buffers of a quarter of that.
void madeWhileHeld(const apps::Options& options, Box* box, cudaStream_t holder,
                   cudaStream_t other) {
  const size_t piece = options.bytes / 16;
  uint32_t *buffers[4], *words, *out;
  for (uint32_t*& buffer : buffers) RUNTIME_OK(cudaMalloc(&buffer, piece));
  RUNTIME_OK(cudaMalloc(&words, piece));
  RUNTIME_OK(cudaHostAlloc(&out, 4, cudaHostAllocMapped));
  const auto count = int(piece / 4);
  std::vector<uint32_t> host(count);
  uint32_t expected = 0;
  for (int i = 0; i < count; ++i) host[i] = apps::word(i, uint32_t(options.seed) + 9);
  for (int i = 0; i < count; i += 1024) expected += host[i];
  RUNTIME_OK(cudaMemcpy(words, host.data(), piece, cudaMemcpyHostToDevice));
  RUNTIME_OK(cudaDeviceSynchronize());
  box->go = box->done = 0;
  holdBuffers<<<1, 1, 0, holder>>>(buffers[0], buffers[1], buffers[2], buffers[3], box);
  RUNTIME_OK(cudaGetLastError());
  (void)cudaStreamQuery(holder);
  std::thread later([box] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    box->go = 1;
  });
  const cudaTextureObject_t texture = textureOver(words, count);
  sumNow<<<1, 1, 0, other>>>(texture, out, count);
  RUNTIME_OK(cudaStreamSynchronize(other));
  later.join();
  RUNTIME_OK(cudaStreamSynchronize(holder));
  CHECK(*out == expected, "an object made while VRAM was held: sum %#x, expected %#x", *out,
        expected);
  RUNTIME_OK(cudaDestroyTextureObject(texture));
  for (uint32_t* buffer : buffers) RUNTIME_OK(cudaFree(buffer));
  RUNTIME_OK(cudaFree(words));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr int kCount = 1 << 20;  // 4 MiB
  cudaFuncAttributes loaded;
  RUNTIME_OK(cudaFuncGetAttributes(&loaded, sumLater));
  RUNTIME_OK(cudaFuncGetAttributes(&loaded, holdBuffers));
  RUNTIME_OK(cudaFuncGetAttributes(&loaded, sumNow));
  RUNTIME_OK(cudaFuncGetAttributes(&loaded, apps::fillKernel));
  Box* box;
  RUNTIME_OK(cudaHostAlloc(&box, sizeof *box, cudaHostAllocMapped));
  cudaStream_t reader, other;
  RUNTIME_OK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  const size_t piece = 2 << 20;
  std::vector<void*> rest;
  // Before the first round everything is in VRAM.
  for (uint32_t round = 0; round < 3; ++round) {
    uint32_t* words;
    RUNTIME_OK(cudaMalloc(&words, kCount * 4));
    std::vector<uint32_t> host(kCount);
    uint32_t expected = 0;
    for (int i = 0; i < kCount; ++i) host[i] = apps::word(i, uint32_t(options.seed) + round);
    for (int i = 0; i < kCount; i += 1024) expected += host[i];
    // All work on the memory and on the reader's stream is over and done with before the kernel is
    // launched.
    RUNTIME_OK(cudaMemcpyAsync(words, host.data(), kCount * 4, cudaMemcpyHostToDevice, other));
    RUNTIME_OK(cudaStreamSynchronize(other));
    if (!rest.empty()) apps::fill(rest[0], piece, 0, reader);
    RUNTIME_OK(cudaStreamSynchronize(reader));
    for (size_t i = 0; i < rest.size(); ++i) apps::fill(rest[i], piece, uint32_t(i), other);
    RUNTIME_OK(cudaStreamSynchronize(other));
    const cudaTextureObject_t texture = textureOver(words, kCount);
    box->go = box->done = box->gave_up = 0;
    sumLater<<<1, 1, 0, reader>>>(texture, box, kCount);
    RUNTIME_OK(cudaGetLastError());
    (void)cudaStreamQuery(reader);
    RUNTIME_OK(cudaDestroyTextureObject(texture));
    while (rest.size() * piece < options.bytes) {
      void* more;
      RUNTIME_OK(cudaMalloc(&more, piece));
      rest.push_back(more);
    }
    for (size_t i = 0; i < rest.size(); ++i) apps::fill(rest[i], piece, uint32_t(i), other);
    RUNTIME_OK(cudaStreamSynchronize(other));
    box->go = 1;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (box->done == 0 && box->gave_up == 0) {
      const cudaError_t state = cudaStreamQuery(reader);
      CHECK(state == cudaSuccess || state == cudaErrorNotReady,
            "round %u: the reading kernel ended with %s", round, cudaGetErrorString(state));
      CHECK(std::chrono::steady_clock::now() < deadline, "round %u: no end within 30 s", round);
    }
    RUNTIME_OK(cudaStreamSynchronize(reader));
    CHECK(box->gave_up == 0, "round %u: the kernel waited in vain: a call of the host waits for it",
          round);
    CHECK(box->sum == expected, "round %u: sum %#x, expected %#x", round, box->sum, expected);
    RUNTIME_OK(cudaFree(words));
  }
  for (size_t i = 0; i < rest.size(); ++i) {
    apps::verify(rest[i], piece, uint32_t(i), 0, "other memory");
    RUNTIME_OK(cudaFree(rest[i]));
  }
  madeWhileHeld(options, box, reader, other);
  return apps::ok("texture_lifetime");
}
