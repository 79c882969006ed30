// Two devices in one program, whether they are in one machine or not: what each is, work on both in
// turns and at once, copies between them of many sizes, streams of one that wait for events of the
// other, pinned memory that both use. Compared with what the CPU computes.
#include "common.h"

#include <cuda.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace {

constexpr int kDevices = 2;
constexpr uint32_t kWords = 1 << 16;
uint32_t seed;

void use(int device) { RUNTIME_OK(cudaSetDevice(device)); }

__global__ void addTo(uint32_t* words, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += value;
}

// x -> 3x + value: not the same in another order.
__global__ void mix(uint32_t* words, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] = words[i] * 3 + value;
}

void CUDART_CB takeTime(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(15)); }

uint32_t* allocate(int device, size_t bytes) {
  use(device);
  void* memory = nullptr;
  RUNTIME_OK(cudaMalloc(&memory, bytes));
  return static_cast<uint32_t*>(memory);
}

void whatTheyAre() {
  char ids[kDevices][32] = {};
  for (int d = 0; d < kDevices; ++d) {
    cudaDeviceProp properties;
    RUNTIME_OK(cudaGetDeviceProperties(&properties, d));
    RUNTIME_OK(cudaDeviceGetPCIBusId(ids[d], sizeof ids[d], d));
    int found = -1;
    RUNTIME_OK(cudaDeviceGetByPCIBusId(&found, ids[d]));
    CHECK(found == d, "device %d has the PCI address %s, which is device %d", d, ids[d], found);
    use(d);
    int now = -1;
    RUNTIME_OK(cudaGetDevice(&now));
    CHECK(now == d, "device %d is current, expected %d", now, d);
    size_t left = 0, total = 0;
    RUNTIME_OK(cudaMemGetInfo(&left, &total));
    CHECK(left > 0 && left <= total, "device %d: %zu of %zu free", d, left, total);
    uint32_t* const memory = allocate(d, 4096);
    use(1 - d);
    cudaPointerAttributes attributes;
    RUNTIME_OK(cudaPointerGetAttributes(&attributes, memory));
    CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == d,
          "memory of device %d is of type %d, device %d", d, int(attributes.type),
          attributes.device);
    RUNTIME_OK(cudaFree(memory));  // with the other one current
  }
  CHECK(std::strcmp(ids[0], ids[1]) != 0, "both have the PCI address %s", ids[0]);
  int can = -1;
  RUNTIME_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (can == 0) {
    use(0);
    const cudaError_t result = cudaDeviceEnablePeerAccess(1, 0);
    CHECK(result == cudaErrorPeerAccessUnsupported, "access without the possibility: %s",
          cudaGetErrorName(result));
    (void)cudaGetLastError();
  }
}

// Handles of one device where only the other's will do.
void notMixed() {
  cudaEvent_t events[kDevices];
  cudaStream_t streams[kDevices];
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaEventCreate(&events[d]));
    RUNTIME_OK(cudaStreamCreate(&streams[d]));
    RUNTIME_OK(cudaEventRecord(events[d], streams[d]));
    RUNTIME_OK(cudaStreamSynchronize(streams[d]));
  }
  // Forwarded, one gpunode says so with the next call that waits for it.
  CHECK(cudaEventRecord(events[0], streams[1]) != cudaSuccess ||
            cudaStreamSynchronize(streams[1]) != cudaSuccess,
        "an event of one device was recorded in a stream of the other");
  (void)cudaGetLastError();
  for (int d = 0; d < kDevices; ++d) {
    RUNTIME_OK(cudaEventSynchronize(events[d]));  // whichever is current
    RUNTIME_OK(cudaEventDestroy(events[d]));
    RUNTIME_OK(cudaStreamDestroy(streams[d]));
  }
}

// There and back, waited for and not, of sizes around those that copies are cut at.
void copies(size_t most) {
  const size_t sizes[] = {
      1, 3, 4096, 65535, 65537, (256 << 10) - 1, 256 << 10, (1 << 20) + 3, (4 << 20) + 4, most};
  std::vector<unsigned char> sent(most), got(most);
  for (size_t i = 0; i < most; ++i)
    sent[i] = static_cast<unsigned char>(apps::word(uint32_t(i), seed) >> 7);
  auto* const here = reinterpret_cast<unsigned char*>(allocate(0, most + 16));
  auto* const there = reinterpret_cast<unsigned char*>(allocate(1, most + 16));
  auto* const back = reinterpret_cast<unsigned char*>(allocate(0, most + 16));
  cudaStream_t stream;  // of the second device: it takes what comes and sends it back
  use(1);
  RUNTIME_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    const size_t size = sizes[i] < most ? sizes[i] : most;
    for (int how = 0; how < 3; ++how) {
      const size_t skew = i % 3;
      // A device sets its own memory alone, as long as it has no access to the other's.
      use(1);
      RUNTIME_OK(cudaMemset(there, 0x5a, size + 8));
      use(0);
      RUNTIME_OK(cudaMemset(back, 0, size + 8));
      use(int(i) % 2);
      RUNTIME_OK(cudaMemcpy(here + skew, sent.data(), size, cudaMemcpyHostToDevice));
      RUNTIME_OK(cudaDeviceSynchronize());
      use(1 - int(i) % 2);
      RUNTIME_OK(cudaDeviceSynchronize());
      if (how == 0) {
        RUNTIME_OK(cudaMemcpyPeer(there + 1, 1, here + skew, 0, size));
        RUNTIME_OK(cudaMemcpyPeer(back + 2, 0, there + 1, 1, size));
      } else if (how == 1) {
        RUNTIME_OK(cudaMemcpyPeerAsync(there + 1, 1, here + skew, 0, size, stream));
        RUNTIME_OK(cudaMemcpyPeerAsync(back + 2, 0, there + 1, 1, size, stream));
        RUNTIME_OK(cudaStreamSynchronize(stream));
      } else {
        RUNTIME_OK(cudaMemcpyAsync(there + 1, here + skew, size, cudaMemcpyDefault, stream));
        RUNTIME_OK(cudaMemcpyAsync(back + 2, there + 1, size, cudaMemcpyDeviceToDevice, stream));
        RUNTIME_OK(cudaStreamSynchronize(stream));
      }
      RUNTIME_OK(cudaMemcpy(got.data(), back + 2, size, cudaMemcpyDeviceToHost));
      CHECK(std::memcmp(got.data(), sent.data(), size) == 0,
            "%zu bytes came back otherwise (how %d)", size, how);
      unsigned char around[2] = {};
      RUNTIME_OK(cudaMemcpy(&around[0], there, 1, cudaMemcpyDeviceToHost));
      RUNTIME_OK(cudaMemcpy(&around[1], there + 1 + size, 1, cudaMemcpyDeviceToHost));
      CHECK(around[0] == 0x5a && around[1] == 0x5a,
            "a copy of %zu bytes wrote beyond its end (how %d)", size, how);
    }
  }
  RUNTIME_OK(cudaStreamDestroy(stream));
  RUNTIME_OK(cudaFree(here));
  RUNTIME_OK(cudaFree(there));
  RUNTIME_OK(cudaFree(back));
}

// Work goes to and fro between two streams, with nobody waiting in between: the copy behind the
// kernel, the other device's kernel behind the copy.
void handOver(int rounds, bool from_source) {
  uint32_t* data[kDevices] = {allocate(0, kWords * 4), allocate(1, kWords * 4)};
  cudaStream_t streams[kDevices];
  cudaEvent_t passed[kDevices];
  std::vector<uint32_t> expected(kWords);
  uint32_t* result = nullptr;
  RUNTIME_OK(cudaMallocHost(&result, kWords * 4));
  for (uint32_t i = 0; i < kWords; ++i) expected[i] = apps::word(i, seed);
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
    RUNTIME_OK(cudaEventCreateWithFlags(&passed[d], cudaEventDisableTiming));
  }
  use(0);
  RUNTIME_OK(cudaMemcpy(data[0], expected.data(), kWords * 4, cudaMemcpyHostToDevice));
  for (int round = 0; round < rounds; ++round) {
    const int d = round % 2;
    use(d);
    if (round % 5 == 0) RUNTIME_OK(cudaLaunchHostFunc(streams[d], takeTime, nullptr));
    for (uint32_t k = 0; k < 3; ++k)
      mix<<<kWords / 256, 256, 0, streams[d]>>>(data[d], kWords, uint32_t(round) + k);
    RUNTIME_OK(cudaGetLastError());
    for (uint32_t k = 0; k < 3; ++k) {
      for (uint32_t& word : expected) word = word * 3 + uint32_t(round) + k;
    }
    if (from_source) {
      RUNTIME_OK(cudaMemcpyPeerAsync(data[1 - d], 1 - d, data[d], d, kWords * 4, streams[d]));
      RUNTIME_OK(cudaEventRecord(passed[d], streams[d]));
      RUNTIME_OK(cudaStreamWaitEvent(streams[1 - d], passed[d], 0));
    } else {
      RUNTIME_OK(cudaEventRecord(passed[d], streams[d]));
      RUNTIME_OK(cudaStreamWaitEvent(streams[1 - d], passed[d], 0));
      RUNTIME_OK(cudaMemcpyPeerAsync(data[1 - d], 1 - d, data[d], d, kWords * 4, streams[1 - d]));
      RUNTIME_OK(cudaEventRecord(passed[1 - d], streams[1 - d]));
      RUNTIME_OK(cudaStreamWaitEvent(streams[d], passed[1 - d], 0));
    }
  }
  const int last = rounds % 2;
  use(last);
  RUNTIME_OK(
      cudaMemcpyAsync(result, data[last], kWords * 4, cudaMemcpyDeviceToHost, streams[last]));
  RUNTIME_OK(cudaStreamSynchronize(streams[last]));
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(result[i] == expected[i], "after %d rounds word %u is %#x, expected %#x", rounds, i,
          result[i], expected[i]);
  RUNTIME_OK(cudaFreeHost(result));
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaStreamSynchronize(streams[d]));
    RUNTIME_OK(cudaStreamDestroy(streams[d]));
    RUNTIME_OK(cudaEventDestroy(passed[d]));
    RUNTIME_OK(cudaFree(data[d]));
  }
}

// Copies without a stream come behind what is in both devices' default streams, and before what
// comes later there.
void defaultStreams() {
  uint32_t* data[kDevices] = {allocate(0, kWords * 4), allocate(1, kWords * 4)};
  std::vector<uint32_t> got(kWords);
  for (int round = 0; round < 4; ++round) {
    const int from = round % 2;
    use(from);
    RUNTIME_OK(cudaMemset(data[from], 0, kWords * 4));
    RUNTIME_OK(cudaLaunchHostFunc(nullptr, takeTime, nullptr));
    for (int k = 0; k < 20; ++k)
      addTo<<<kWords / 256, 256>>>(data[from], kWords, 1 + uint32_t(round));
    RUNTIME_OK(cudaGetLastError());
    use(round / 2);  // the one or the other
    RUNTIME_OK(cudaMemcpyPeer(data[1 - from], 1 - from, data[from], from, kWords * 4));
    use(1 - from);
    addTo<<<kWords / 256, 256>>>(data[1 - from], kWords, 7);
    RUNTIME_OK(cudaMemcpy(got.data(), data[1 - from], kWords * 4, cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < kWords; ++i)
      CHECK(got[i] == 20 * (1 + uint32_t(round)) + 7, "round %d: word %u is %u", round, i, got[i]);
  }
  for (int d = 0; d < kDevices; ++d) RUNTIME_OK(cudaFree(data[d]));
}

// Pinned memory of both: what one device's kernel leaves in it, the other one's finds.
void pinned() {
  uint32_t* words = nullptr;
  use(0);
  RUNTIME_OK(cudaHostAlloc(&words, kWords * 4, cudaHostAllocPortable | cudaHostAllocMapped));
  for (uint32_t i = 0; i < kWords; ++i) words[i] = apps::word(i, seed);
  uint32_t* device[kDevices] = {};
  uint32_t* copy[kDevices] = {allocate(0, kWords * 4), allocate(1, kWords * 4)};
  cudaStream_t streams[kDevices];
  cudaEvent_t done[kDevices];
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaHostGetDevicePointer(&device[d], words, 0));
    RUNTIME_OK(cudaStreamCreate(&streams[d]));
    RUNTIME_OK(cudaEventCreateWithFlags(&done[d], cudaEventDisableTiming));
  }
  uint32_t added = 0;
  for (uint32_t round = 0; round < 6; ++round) {
    const int d = int(round % 2);
    use(d);
    addTo<<<kWords / 256, 256, 0, streams[d]>>>(device[d], kWords, round + 1);
    RUNTIME_OK(cudaGetLastError());
    RUNTIME_OK(cudaEventRecord(done[d], streams[d]));
    added += round + 1;
    RUNTIME_OK(cudaStreamWaitEvent(streams[1 - d], done[d], 0));
    if (round == 3) {
      // By a copy: what was written here at one device goes to the other.
      use(1 - d);
      RUNTIME_OK(
          cudaMemcpyAsync(copy[1 - d], words, kWords * 4, cudaMemcpyHostToDevice, streams[1 - d]));
      std::vector<uint32_t> got(kWords);
      RUNTIME_OK(cudaStreamSynchronize(streams[1 - d]));
      RUNTIME_OK(cudaMemcpy(got.data(), copy[1 - d], kWords * 4, cudaMemcpyDeviceToHost));
      for (uint32_t i = 0; i < kWords; ++i)
        CHECK(got[i] == apps::word(i, seed) + added, "word %u of the copy is %#x", i, got[i]);
    }
  }
  use(1);
  RUNTIME_OK(cudaStreamSynchronize(streams[1]));
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(words[i] == apps::word(i, seed) + added, "pinned word %u is %#x, expected %#x", i,
          words[i], apps::word(i, seed) + added);
  // The program's own changes reach both.
  for (uint32_t i = 0; i < kWords; ++i) words[i] = i;
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    addTo<<<kWords / 256, 256, 0, streams[d]>>>(device[d], kWords, 5);
    RUNTIME_OK(cudaStreamSynchronize(streams[d]));
  }
  for (uint32_t i = 0; i < kWords; ++i)
    CHECK(words[i] == i + 10, "pinned word %u is %u, expected %u", i, words[i], i + 10);
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    RUNTIME_OK(cudaStreamDestroy(streams[d]));
    RUNTIME_OK(cudaEventDestroy(done[d]));
    RUNTIME_OK(cudaFree(copy[d]));
  }
  RUNTIME_OK(cudaFreeHost(words));
}

// A thread for each device, each of which also fetches from the other one.
void threads() {
  uint32_t* source[kDevices] = {allocate(0, kWords * 4), allocate(1, kWords * 4)};
  for (int d = 0; d < kDevices; ++d) {
    use(d);
    apps::fill(source[d], kWords * 4, seed + uint32_t(d));
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  std::thread both[kDevices];
  for (int d = 0; d < kDevices; ++d) {
    both[d] = std::thread([d, &source] {
      uint32_t* const own = allocate(d, kWords * 4);
      uint32_t* const fetched = allocate(d, kWords * 4);
      cudaStream_t stream;
      RUNTIME_OK(cudaStreamCreate(&stream));
      for (uint32_t round = 0; round < 8; ++round) {
        apps::fill(own, kWords * 4, seed + 10 * round);
        RUNTIME_OK(cudaMemcpyPeerAsync(fetched, d, source[1 - d], 1 - d, kWords * 4, stream));
        RUNTIME_OK(cudaStreamSynchronize(stream));
        apps::verify(fetched, kWords * 4, seed + uint32_t(1 - d), 0, "fetched by a thread");
        apps::verify(own, kWords * 4, seed + 10 * round, 0, "a thread's own");
      }
      RUNTIME_OK(cudaStreamDestroy(stream));
      RUNTIME_OK(cudaFree(own));
      RUNTIME_OK(cudaFree(fetched));
    });
  }
  for (auto& one : both) one.join();
  for (int d = 0; d < kDevices; ++d) RUNTIME_OK(cudaFree(source[d]));
}

// A module is unloaded while a stream of its device waits for the other device, or for a copy
// between both: the driver drains the context first.
void unloadMeanwhile(bool copies) {
  const char* const ptx =
      ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing(.param .u64 at)\n{\n "
      " ret;\n}\n";
  for (int d = 0; d < kDevices; ++d) {
    uint32_t* data[kDevices] = {allocate(0, kWords * 4), allocate(1, kWords * 4)};
    uint32_t* const back = allocate(d, kWords * 4);
    apps::fill(data[d], kWords * 4, seed + uint32_t(d));
    RUNTIME_OK(cudaDeviceSynchronize());
    CUmodule module = nullptr;
    cudaStream_t waiting, awaited;
    cudaEvent_t passed;
    use(d);
    RUNTIME_OK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    CHECK(cuModuleLoadData(&module, ptx) == CUDA_SUCCESS, "%s", "a module was not loaded");
    use(1 - d);
    RUNTIME_OK(cudaStreamCreateWithFlags(&awaited, cudaStreamNonBlocking));
    RUNTIME_OK(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming));
    RUNTIME_OK(cudaLaunchHostFunc(awaited, takeTime, nullptr));
    RUNTIME_OK(cudaEventRecord(passed, awaited));
    use(d);
    RUNTIME_OK(cudaStreamWaitEvent(waiting, passed, 0));
    if (copies) {
      RUNTIME_OK(cudaMemcpyPeerAsync(data[1 - d], 1 - d, data[d], d, kWords * 4, waiting));
      RUNTIME_OK(cudaMemcpyPeerAsync(back, d, data[1 - d], 1 - d, kWords * 4, waiting));
    }
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS, "%s", "it was not unloaded");
    RUNTIME_OK(cudaStreamSynchronize(waiting));
    if (copies)
      apps::verify(back, kWords * 4, seed + uint32_t(d), 0, "copied before the module was gone");
    RUNTIME_OK(cudaStreamDestroy(waiting));
    RUNTIME_OK(cudaFree(back));
    for (int other = 0; other < kDevices; ++other) RUNTIME_OK(cudaFree(data[other]));
    use(1 - d);
    RUNTIME_OK(cudaStreamDestroy(awaited));
    RUNTIME_OK(cudaEventDestroy(passed));
  }
}

}  // namespace

/// A copy between devices that names an address of nothing is refused, whichever side it is, and
/// all goes on.
void fromNowhere() {
  CUcontext contexts[kDevices];
  CUdeviceptr memory[kDevices];
  for (int d = 0; d < kDevices; ++d) {
    memory[d] = CUdeviceptr(allocate(d, 4096));
    DRIVER_OK(cuCtxGetCurrent(&contexts[d]));
  }
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr nothing = 0x4000;
  for (const auto& [to, from] : {std::pair(memory[1], nothing), std::pair(nothing, memory[0])}) {
    const CUresult now = cuMemcpyPeer(to, contexts[1], from, contexts[0], 64);
    const CUresult later = cuMemcpyPeerAsync(to, contexts[1], from, contexts[0], 64, stream);
    CHECK(now == CUDA_ERROR_INVALID_VALUE && later == now, "copies of nothing: %d, %d", int(now),
          int(later));
  }
  DRIVER_OK(cuMemcpyPeerAsync(memory[1], contexts[1], memory[0], contexts[0], 64, stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  DRIVER_OK(cuStreamDestroy(stream));
  for (const CUdeviceptr one : memory) DRIVER_OK(cuMemFree(one));
}

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  seed = uint32_t(options.seed);
  apps::needTwoDevices();
  whatTheyAre();
  notMixed();
  defaultStreams();
  copies(options.bytes / 2 + 5);
  fromNowhere();
  handOver(20, true);
  handOver(20, false);
  pinned();
  threads();
  unloadMeanwhile(false);
  unloadMeanwhile(true);
  return apps::ok("two devices that work together, %zu bytes at most in a copy",
                  options.bytes / 2 + 5);
}
