// Does what its standard input says on the device that it says, a line at a time, and answers each
// line: for tests of programs with several gpunodes.
//   devices    how many, and the PCI address of each
//   step D     adds 1 to every word on device D and compares them with the count
//   fetch D    copies the words of the other device to device D, behind both devices' streams, and
//              compares them
//   hang D     work on device D that waits for its gpunode's answer 2 s long (a host function), and
//              a place behind it that a stream of the other device waits for; answers at once
//   pour D     four hundred copies from device D to the other one, each behind the one before
//   sync D     waits for the stream of device D
// "ok ...", or "error NAME" when a CUDA call failed, or "WRONG ..." and status 1. Ends with its
// input.
#include "common.h"

#include <chrono>
#include <string>
#include <thread>

__global__ void addOne(uint32_t* words, uint32_t count) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) words[i] += 1;
}

namespace {

constexpr uint32_t kCount = 1 << 18;

cudaError_t g_error = cudaSuccess;
bool good(cudaError_t result) {
  if (result != cudaSuccess && g_error == cudaSuccess) g_error = result;
  return result == cudaSuccess;
}

struct Place {
  uint32_t *words = nullptr, *fetched = nullptr;
  uint32_t done = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
};
Place places[2];
int devices = 0;

bool make(int d) {
  Place& at = places[d];
  return good(cudaSetDevice(d)) && good(cudaMalloc(&at.words, kCount * 4)) &&
         good(cudaMalloc(&at.fetched, kCount * 4)) && good(cudaMemset(at.words, 0, kCount * 4)) &&
         good(cudaStreamCreateWithFlags(&at.stream, cudaStreamNonBlocking)) &&
         good(cudaEventCreateWithFlags(&at.event, cudaEventDisableTiming)) &&
         good(cudaDeviceSynchronize());
}

bool compare(const uint32_t* at, cudaStream_t stream, uint32_t expected) {
  std::vector<uint32_t> got(kCount);
  if (!good(cudaMemcpyAsync(got.data(), at, kCount * 4, cudaMemcpyDeviceToHost, stream)) ||
      !good(cudaStreamSynchronize(stream)))
    return false;
  for (uint32_t i = 0; i < kCount; ++i) {
    if (got[i] == expected) continue;
    std::printf("WRONG word %u is %u, expected %u\n", i, got[i], expected);
    std::fflush(stdout);
    std::exit(1);
  }
  return true;
}

bool step(int d) {
  Place& at = places[d];
  if (!good(cudaSetDevice(d))) return false;
  addOne<<<kCount / 256, 256, 0, at.stream>>>(at.words, kCount);
  if (!good(cudaGetLastError())) return false;
  ++at.done;
  return compare(at.words, at.stream, at.done);
}

bool waitFor(int from) {
  Place &source = places[from], &target = places[1 - from];
  return good(cudaEventRecord(source.event, source.stream)) &&
         good(cudaStreamWaitEvent(target.stream, source.event, 0));
}

bool copyFrom(int from) {
  Place &source = places[from], &target = places[1 - from];
  return good(cudaSetDevice(from)) &&
         good(cudaMemcpyPeerAsync(target.fetched, 1 - from, source.words, from, kCount * 4,
                                  source.stream)) &&
         waitFor(from);
}

void CUDART_CB lag(void*) { std::this_thread::sleep_for(std::chrono::seconds(2)); }

}  // namespace

int main() {
  good(cudaGetDeviceCount(&devices));
  for (int d = 0; d < devices && d < 2; ++d) make(d);
  std::printf(g_error == cudaSuccess ? "ready\n" : "error %s\n", cudaGetErrorName(g_error));
  std::fflush(stdout);
  char line[256];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    const std::string said(line);
    const int d = said.back() == '\n' && said.size() > 2 ? said[said.size() - 2] - '0' : 0;
    g_error = cudaSuccess;
    std::string answer = "ok";
    if (said.rfind("devices", 0) == 0) {
      answer += " " + std::to_string(devices);
      for (int i = 0; i < devices; ++i) {
        char id[32] = {};
        good(cudaDeviceGetPCIBusId(id, sizeof id, i));
        answer += std::string(" ") + id;
      }
    } else if (said.rfind("step", 0) == 0) {
      step(d);
    } else if (said.rfind("fetch", 0) == 0) {
      if (copyFrom(1 - d)) compare(places[d].fetched, places[d].stream, places[1 - d].done);
    } else if (said.rfind("hang", 0) == 0) {
      good(cudaSetDevice(d)) && good(cudaLaunchHostFunc(places[d].stream, lag, nullptr)) &&
          waitFor(d);
    } else if (said.rfind("pour", 0) == 0) {
      for (int i = 0; i < 400 && copyFrom(d); ++i) {
      }
    } else if (said.rfind("sync", 0) == 0) {
      good(cudaSetDevice(d)) && good(cudaStreamSynchronize(places[d].stream));
    } else {
      answer = "what?";
    }
    (void)cudaGetLastError();
    if (g_error != cudaSuccess) answer = std::string("error ") + cudaGetErrorName(g_error);
    std::printf("%s\n", answer.c_str());
    std::fflush(stdout);
  }
  return 0;
}
