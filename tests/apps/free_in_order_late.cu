// Memory that is freed in a stream's order behind what takes long: an allocation in the order of
// another stream, for which there is no other room, gets it, however long that is.
#include <unistd.h>

#include "common.h"

static void CUDART_CB takesLong(void*) { sleep(12); }

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  unsigned *first, *second;
  cudaStream_t one, other;
  RUNTIME_OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  RUNTIME_OK(cudaMallocAsync(&first, options.bytes, one));
  RUNTIME_OK(cudaMemsetAsync(first, 1, options.bytes, one));
  RUNTIME_OK(cudaStreamSynchronize(one));
  RUNTIME_OK(cudaLaunchHostFunc(one, takesLong, nullptr));
  RUNTIME_OK(cudaFreeAsync(first, one));
  RUNTIME_OK(cudaMallocAsync(&second, options.bytes, other));
  RUNTIME_OK(cudaMemsetAsync(second, 2, options.bytes, other));
  unsigned word = 0;
  RUNTIME_OK(cudaMemcpyAsync(&word, second, sizeof word, cudaMemcpyDeviceToHost, other));
  RUNTIME_OK(cudaStreamSynchronize(other));
  CHECK(word == 0x02020202, "%#x", word);
  RUNTIME_OK(cudaFreeAsync(second, other));
  RUNTIME_OK(cudaDeviceSynchronize());
  return apps::ok("memory that came late");
}
