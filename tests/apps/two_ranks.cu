// The memory use of collective libraries with one process for each of two devices: memory of
// cuMemCreate, exported as a descriptor when the other process asks, sent over a socket, imported
// there and mapped for its device. Each one's kernels write data and flags into the other's memory
// and wait for flags in their own, round after round, while other memory presses on VRAM. Flags in
// host memory that both processes share (a POSIX segment, registered by each) go the same way;
// where a kernel can't see what another process writes there, its device pointer is refused. Before
// all that, one process with both devices maps one's memory for the other.
#include "between_processes.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = 4 * kMiB;  // a rank's buffer: data, and flags in the last page
constexpr size_t kData = 2 * kMiB;
constexpr uint32_t kRounds = 6;
constexpr uint32_t kLimit = 400'000'000;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

uint32_t valueOf(uint32_t rank, uint32_t round, uint32_t index) {
  return apps::word(index, rank * 100 + round);
}

/// Writes this rank's data of a round into the other's buffer, then the flag behind it.
__global__ void give(uint32_t* data, volatile uint32_t* flag, uint32_t words, uint32_t seed,
                     uint32_t round) {
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) data[i] = apps::word(i, seed);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *flag = round;
}

/// Waits for the flag of a round, then adds up what has come.
__global__ void take(const uint32_t* data, const volatile uint32_t* flag, uint32_t words,
                     uint32_t round, uint32_t limit, uint32_t* sum, uint32_t* outcome) {
  if (threadIdx.x == 0) {
    uint32_t tries = 0;
    while (*flag < round && ++tries < limit) {
    }
    *outcome = *flag >= round ? 1 : 2;
    __threadfence_system();
  }
  __syncthreads();
  uint32_t mine = 0;
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) mine += data[i];
  atomicAdd(sum, mine);
}

__global__ void raise(volatile uint32_t* flag, uint32_t value) {
  *flag = value;
  __threadfence_system();
}

__global__ void await(const volatile uint32_t* flag, uint32_t value, uint32_t limit,
                      uint32_t* outcome) {
  uint32_t tries = 0;
  while (*flag < value && ++tries < limit) {
  }
  *outcome = *flag >= value ? 1 : 2;
}

/// A rank's memory as such a library makes it.
class Buffer {
 public:
  explicit Buffer(int device) : device_(device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    properties.requestedHandleTypes = kDescriptor;
    int rdma = 0;
    DRIVER_OK(cuDeviceGetAttribute(
        &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device));
    properties.allocFlags.gpuDirectRDMACapable = rdma != 0;
    DRIVER_OK(cuMemCreate(&handle_, kBytes, &properties, 0));
    map();
  }
  /// Maps a descriptor's memory for `device`.
  Buffer(int device, int descriptor) : device_(device) {
    DRIVER_OK(cuMemImportFromShareableHandle(
        &handle_, reinterpret_cast<void*>(intptr_t{descriptor}), kDescriptor));
    map();
  }
  /// The same memory as the other's, for another device of this process.
  Buffer(int device, const Buffer& other) : device_(device) {
    DRIVER_OK(cuMemRetainAllocationHandle(&handle_, reinterpret_cast<void*>(other.address_)));
    map();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUmemGenericAllocationHandle again = 0;
    RUNTIME_OK(cudaSetDevice(device_));
    DRIVER_OK(cuMemGetAddressRange(&base, &bytes, address_ + kData));
    CHECK(base == address_ && bytes == kBytes,
          "a buffer at %#llx of %zu is told to be at %#llx, of %zu", address_, kBytes, base, bytes);
    DRIVER_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address_)));
    DRIVER_OK(cuMemRelease(again));
    DRIVER_OK(cuMemUnmap(address_, kBytes));
    DRIVER_OK(cuMemRelease(handle_));
    DRIVER_OK(cuMemAddressFree(address_, kBytes));
  }
  uint32_t* data() const { return reinterpret_cast<uint32_t*>(address_); }
  uint32_t* flag(unsigned index) const {
    return reinterpret_cast<uint32_t*>(address_ + kBytes - 4096) + index * 32;
  }
  int descriptor() const {
    int made = -1;
    DRIVER_OK(cuMemExportToShareableHandle(&made, handle_, kDescriptor, 0));
    return made;
  }

 private:
  void map() {
    CUmemAllocationProp properties{};
    DRIVER_OK(cuMemGetAllocationPropertiesFromHandle(&properties, handle_));
    CHECK(properties.requestedHandleTypes == kDescriptor,
          "its properties have the types of handles %d", int(properties.requestedHandleTypes));
    DRIVER_OK(cuMemAddressReserve(&address_, kBytes, 0, 0, 0));
    DRIVER_OK(cuMemMap(address_, kBytes, 0, handle_, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_OK(cuMemSetAccess(address_, kBytes, &access, 1));
  }

  int device_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
};

/// Checks a kernel's report of its wait.
void expectCame(const uint32_t* outcome, cudaStream_t stream, const char* what, uint32_t round) {
  uint32_t how = 0;
  RUNTIME_OK(cudaMemcpyAsync(&how, outcome, 4, cudaMemcpyDeviceToHost, stream));
  RUNTIME_OK(cudaStreamSynchronize(stream));
  CHECK(how == 1, "round %u: %s did not come", round, what);
}

uint32_t sumOf(uint32_t rank, uint32_t round) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < kData / 4; ++i) sum += valueOf(rank, round, i);
  return sum;
}

/// This rank's side of each round: gives, waits, adds up, and gives back that it has.
void exchange(uint32_t rank, const Buffer& own, const Buffer& others, size_t pressing) {
  const uint32_t other = 1 - rank;
  uint32_t* results;
  RUNTIME_OK(cudaMalloc(&results, 64));
  cudaStream_t giving, taking;
  RUNTIME_OK(cudaStreamCreateWithFlags(&giving, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&taking, cudaStreamNonBlocking));
  apps::Pressure pressure(pressing);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    RUNTIME_OK(cudaMemset(results, 0, 64));
    RUNTIME_OK(cudaDeviceSynchronize());
    take<<<1, 64, 0, taking>>>(own.data(), own.flag(0), kData / 4, round, kLimit, results,
                               results + 1);
    give<<<1, 64, 0, giving>>>(others.data(), others.flag(0), kData / 4, rank * 100 + round, round);
    RUNTIME_OK(cudaGetLastError());
    expectCame(results + 1, taking, "the other's data", round);
    uint32_t sum = 0;
    RUNTIME_OK(cudaMemcpy(&sum, results, 4, cudaMemcpyDeviceToHost));
    CHECK(sum == sumOf(other, round), "round %u: rank %u adds up to %#x, expected %#x", round, rank,
          sum, sumOf(other, round));
    // The other may write anew when this one has read.
    raise<<<1, 1, 0, giving>>>(others.flag(1), round);
    await<<<1, 1, 0, taking>>>(own.flag(1), round, kLimit, results + 2);
    RUNTIME_OK(cudaGetLastError());
    expectCame(results + 2, taking, "that the other has read", round);
    RUNTIME_OK(cudaStreamSynchronize(giving));
  }
  pressure.check();
  RUNTIME_OK(cudaStreamDestroy(giving));
  RUNTIME_OK(cudaStreamDestroy(taking));
  RUNTIME_OK(cudaFree(results));
}

/// Flags in memory that both processes have mapped. False where the driver says that kernels can't
/// use it.
bool hostFlags(uint32_t rank, uint32_t* segment, size_t bytes, int socket) {
  RUNTIME_OK(cudaHostRegister(segment, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable));
  uint32_t* flags = nullptr;
  const cudaError_t given = cudaHostGetDevicePointer(&flags, segment, 0);
  if (given == cudaErrorNotSupported) {
    (void)cudaGetLastError();
    RUNTIME_OK(cudaHostUnregister(segment));
    return false;
  }
  RUNTIME_OK(given);
  uint32_t* outcome;
  RUNTIME_OK(cudaMalloc(&outcome, 4));
  cudaStream_t waiting, raising;
  RUNTIME_OK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
  RUNTIME_OK(cudaStreamCreateWithFlags(&raising, cudaStreamNonBlocking));
  RUNTIME_OK(cudaDeviceSynchronize());
  apps::tell(socket), apps::hear(socket);
  for (uint32_t round = 1; round <= kRounds; ++round) {
    await<<<1, 1, 0, waiting>>>(flags + rank * 32, round, kLimit, outcome);
    raise<<<1, 1, 0, raising>>>(flags + (1 - rank) * 32, round);
    RUNTIME_OK(cudaGetLastError());
    expectCame(outcome, waiting, "the other's flag in host memory", round);
    RUNTIME_OK(cudaStreamSynchronize(raising));
  }
  // By the CPU of the other process.
  await<<<1, 1, 0, waiting>>>(flags + rank * 32, kRounds + 1, kLimit, outcome);
  RUNTIME_OK(cudaGetLastError());
  reinterpret_cast<volatile uint32_t*>(segment)[(1 - rank) * 32] = kRounds + 1;
  expectCame(outcome, waiting, "the flag that the other process has set", kRounds + 1);
  RUNTIME_OK(cudaHostUnregister(segment));
  RUNTIME_OK(cudaStreamDestroy(waiting));
  RUNTIME_OK(cudaStreamDestroy(raising));
  RUNTIME_OK(cudaFree(outcome));
  return true;
}

void loadKernels(uint32_t* flag) {
  uint32_t* results;
  RUNTIME_OK(cudaMalloc(&results, 64));
  give<<<1, 1>>>(results, results + 1, 1, 0, 0);
  take<<<1, 1>>>(results, results + 1, 1, 0, 1, results + 2, results + 3);
  raise<<<1, 1>>>(flag, 0);
  await<<<1, 1>>>(flag, 0, 1, results);
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaFree(results));
}

int runRank(uint32_t rank, int socket, const std::string& segment_name, size_t pressing) {
  const int segment_file = shm_open(segment_name.c_str(), O_RDWR, 0);
  CHECK(segment_file >= 0, "no segment %s", segment_name.c_str());
  void* const segment = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment_file, 0);
  CHECK(segment != MAP_FAILED, "the segment can't be mapped");
  close(segment_file);
  RUNTIME_OK(cudaSetDevice(int(rank)));
  RUNTIME_OK(cudaFree(nullptr));
  bool host_flags = false;
  {
    const Buffer own{int(rank)};
    RUNTIME_OK(cudaMemset(own.data(), 0, kBytes));
    RUNTIME_OK(cudaDeviceSynchronize());
    loadKernels(own.flag(2));
    // Each asks, and each is asked.
    apps::tell(socket), apps::hear(socket);
    const int mine = own.descriptor();
    apps::sendDescriptor(socket, mine);
    close(mine);
    const int others_descriptor = apps::receiveDescriptor(socket);
    CHECK(others_descriptor >= 0, "the other process is gone");
    const Buffer others{int(rank), others_descriptor};
    close(others_descriptor);
    apps::tell(socket), apps::hear(socket);
    exchange(rank, own, others, pressing);
    host_flags = hostFlags(rank, static_cast<uint32_t*>(segment), 4096, socket);
    apps::tell(socket),
        apps::hear(socket);  // nobody takes memory away while the other's kernels use it
    RUNTIME_OK(cudaDeviceSynchronize());
  }
  munmap(segment, 4096);
  return host_flags ? 0 : 3;
}

/// Host memory that processes could share: where it can be made, the CPU can use it.
void hostMemory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  properties.requestedHandleTypes = kDescriptor;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = cuMemCreate(&handle, kBytes, &properties, 0);
  CHECK(made == CUDA_SUCCESS || made == CUDA_ERROR_NOT_SUPPORTED,
        "exportable host memory: CUresult %d", int(made));
  if (made != CUDA_SUCCESS) return;
  CUdeviceptr address = 0;
  DRIVER_OK(cuMemAddressReserve(&address, kBytes, 0, 0, 0));
  DRIVER_OK(cuMemMap(address, kBytes, 0, handle, 0));
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER_OK(cuMemSetAccess(address, kBytes, &access, 1));
  std::memset(reinterpret_cast<void*>(address), 1, kBytes);
  DRIVER_OK(cuMemUnmap(address, kBytes));
  DRIVER_OK(cuMemRelease(handle));
  DRIVER_OK(cuMemAddressFree(address, kBytes));
}

/// One process with both devices: each has the other's memory mapped once more, for itself.
int bothInOne() {
  int can = 0;
  RUNTIME_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (can == 0) return 77;
  RUNTIME_OK(cudaSetDevice(1));
  RUNTIME_OK(cudaFree(nullptr));
  hostMemory();
  const Buffer theirs(1);
  RUNTIME_OK(cudaMemset(theirs.data(), 0, kBytes));
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaSetDevice(0));
  const Buffer here(0, theirs);
  apps::fill(here.data(), kData, 5);
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaSetDevice(1));
  apps::add(theirs.data(), kData, 9);
  RUNTIME_OK(cudaDeviceSynchronize());
  RUNTIME_OK(cudaSetDevice(0));
  apps::verify(here.data(), kData, 5, 9, "memory of device 1, mapped for device 0");
  return 0;
}

int statusOf(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "a child is lost");
  CHECK(WIFEXITED(status), "a process ended with %#x", unsigned(status));
  return WEXITSTATUS(status);
}

template <typename Work>
pid_t inChild(Work work) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0, "no child process");
  if (child == 0) std::exit(work());
  return child;
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  // CUDA begins in children only: this process has none.
  const int devices = statusOf(inChild([] {
    int count = 0;
    RUNTIME_OK(cudaGetDeviceCount(&count));
    return count;
  }));
  if (devices < 2) apps::skip("one device only");
  const int both = statusOf(inChild(bothInOne));
  if (both == 77) apps::skip("no access between the devices");
  CHECK(both == 0, "one process with both devices ended with %d", both);
  const std::string name = "/olpager-two-ranks-" + std::to_string(getpid());
  const int segment = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  CHECK(segment >= 0 && ftruncate(segment, 4096) == 0, "no shared segment");
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "no sockets");
  pid_t ranks[2];
  for (uint32_t rank = 0; rank < 2; ++rank)
    ranks[rank] = inChild([&] {
      close(ends[1 - rank]);
      return runRank(rank, ends[rank], name, options.bytes);
    });
  close(ends[0]), close(ends[1]);
  int statuses[2];
  for (int rank = 0; rank < 2; ++rank) statuses[rank] = statusOf(ranks[rank]);
  shm_unlink(name.c_str());
  CHECK(statuses[0] == statuses[1] && (statuses[0] == 0 || statuses[0] == 3),
        "the ranks ended with %d and %d", statuses[0], statuses[1]);
  return apps::ok("two ranks, %u rounds; flags in host memory: %s", kRounds,
                  statuses[0] == 0 ? "seen by kernels" : "refused");
}
