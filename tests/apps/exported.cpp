// Memory of cuMemCreate that goes to another process as a file descriptor, and to the process
// itself: both write and read it by kernels and copies, it outlives the exporter's own handle and
// mapping, and whoever has the descriptor can have it. Memory that nobody has any more is free
// again.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "between_processes.h"
#include "driver_program.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = 4 * kMiB;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUresult create(CUmemGenericAllocationHandle* handle, CUdevice device, size_t bytes) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = kDescriptor;
  return cuMemCreate(handle, bytes, &prop, 0);
}

CUdeviceptr map(CUmemGenericAllocationHandle handle, CUdevice device) {
  CUdeviceptr address = 0;
  DRIVER_OK(cuMemAddressReserve(&address, kBytes, 0, 0, 0));
  DRIVER_OK(cuMemMap(address, kBytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER_OK(cuMemSetAccess(address, kBytes, &access, 1));
  return address;
}

void unmap(CUdeviceptr address) {
  DRIVER_OK(cuCtxSynchronize());
  DRIVER_OK(cuMemUnmap(address, kBytes));
  DRIVER_OK(cuMemAddressFree(address, kBytes));
}

CUresult import(int descriptor, CUmemGenericAllocationHandle* handle) {
  return cuMemImportFromShareableHandle(handle, reinterpret_cast<void*>(intptr_t{descriptor}),
                                        kDescriptor);
}

// The other process knows nothing of this one's streams.
void fill(CUdeviceptr address, uint32_t value) {
  DRIVER_OK(cuMemsetD32(address, value, kBytes / 4));
  DRIVER_OK(cuCtxSynchronize());
}

void check(CUdeviceptr address, uint32_t value, const char* what) {
  std::vector<uint32_t> words(kBytes / 4);
  DRIVER_OK(cuMemcpyDtoH(words.data(), address, kBytes));
  for (size_t i = 0; i < words.size(); ++i)
    CHECK(words[i] == value, "%s: word %zu is %#x, not %#x", what, i, words[i], value);
}

// One program alone: a second handle of its own memory, and what is refused.
void alone(CUdevice device, const apps::Bump& bump) {
  CUmemGenericAllocationHandle made = 0, again = 0;
  DRIVER_OK(create(&made, device, kBytes));
  const CUdeviceptr at = map(made, device);
  fill(at, 5);
  int descriptor = -1;
  const CUresult exported = cuMemExportToShareableHandle(&descriptor, made, kDescriptor, 0);
  if (exported == CUDA_ERROR_NOT_SUPPORTED) apps::skip("memory is not exported here");
  CHECK(exported == CUDA_SUCCESS && descriptor >= 0, "cuMemExportToShareableHandle: CUresult %d",
        int(exported));
  char fabric[64]{};
  CHECK(cuMemExportToShareableHandle(fabric, made, CU_MEM_HANDLE_TYPE_FABRIC, 0) != CUDA_SUCCESS,
        "for a fabric");
  CHECK(cuMemExportToShareableHandle(nullptr, made, kDescriptor, 0) != CUDA_SUCCESS, "to nowhere");
  DRIVER_OK(import(descriptor, &again));
  CHECK(again != made, "one handle for two");
  const CUdeviceptr also_at = map(again, device);
  bump(also_at, kBytes / 4, 2);
  DRIVER_OK(cuCtxSynchronize());
  check(at, 7, "the first mapping");
  CUmemAllocationProp prop{};
  DRIVER_OK(cuMemGetAllocationPropertiesFromHandle(&prop, again));
  CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == device,
        "it is of device %d", prop.location.id);
  // The handle that it was exported from, and what it was mapped at, go; the descriptor stays good.
  unmap(at);
  DRIVER_OK(cuMemRelease(made));
  check(also_at, 7, "what is left of two");
  unmap(also_at);
  DRIVER_OK(cuMemRelease(again));
  DRIVER_OK(import(descriptor, &again));
  const CUdeviceptr later = map(again, device);
  check(later, 7, "what the descriptor alone has kept");
  unmap(later);
  DRIVER_OK(cuMemRelease(again));
  const int copy = dup(descriptor);
  close(descriptor);
  DRIVER_OK(import(copy, &again));
  DRIVER_OK(cuMemRelease(again));
  close(copy);
  CHECK(import(copy, &again) != CUDA_SUCCESS, "a closed descriptor");
  int ends[2];
  CHECK(pipe(ends) == 0, "no pipe");
  CHECK(import(ends[0], &again) != CUDA_SUCCESS, "a pipe");
  close(ends[0]), close(ends[1]);
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "no sockets");
  char nonsense[40]{};
  CHECK(send(ends[0], nonsense, sizeof nonsense, 0) == sizeof nonsense, "no sockets");
  CHECK(import(ends[1], &again) != CUDA_SUCCESS, "a socket with something in it");
  CHECK(recv(ends[1], nonsense, sizeof nonsense, MSG_DONTWAIT) == sizeof nonsense,
        "what was in a socket is gone");
  close(ends[0]), close(ends[1]);
}

// More than there is room for, each gone before the next. That nobody has a descriptor any more may
// be heard a moment late: until then there is no memory, or only such as is paged.
void inTurn(CUdevice device) {
  size_t free = 0, total = 0;
  DRIVER_OK(cuMemGetInfo(&free, &total));
  const size_t bytes = 64 * kMiB;
  const size_t turns = std::min<size_t>(2 * total / bytes + 1, 128);
  for (size_t turn = 0; turn < turns; ++turn) {
    int descriptor = -1;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < 2000 && descriptor < 0; ++i) {
      if (i > 0) usleep(5000);
      CUmemGenericAllocationHandle handle = 0;
      result = create(&handle, device, bytes);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) continue;
      CHECK(result == CUDA_SUCCESS, "turn %zu of %zu: CUresult %d", turn, turns, int(result));
      result = cuMemExportToShareableHandle(&descriptor, handle, kDescriptor, 0);
      DRIVER_OK(cuMemRelease(handle));
      CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED,
            "an export in turn %zu: CUresult %d", turn, int(result));
    }
    CHECK(descriptor >= 0, "turn %zu of %zu: CUresult %d", turn, turns, int(result));
    close(descriptor);
  }
}

int exporter(int socket) {
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump bump(4);
  alone(device, bump);
  inTurn(device);
  CUmemGenericAllocationHandle shared = 0, left = 0;
  DRIVER_OK(create(&shared, device, kBytes));
  const CUdeviceptr at = map(shared, device);
  fill(at, 100);
  int descriptor = -1;
  DRIVER_OK(cuMemExportToShareableHandle(&descriptor, shared, kDescriptor, 0));
  apps::sendDescriptor(socket, descriptor);
  close(descriptor);
  apps::hear(socket);  // the other one has added to it
  check(at, 110, "what the other process wrote");
  bump(at, kBytes / 4, 5);
  unmap(at);
  DRIVER_OK(cuMemRelease(shared));
  // Another one, of which nothing is left here but a descriptor on its way.
  DRIVER_OK(create(&left, device, kBytes));
  const CUdeviceptr left_at = map(left, device);
  fill(left_at, 300);
  DRIVER_OK(cuMemExportToShareableHandle(&descriptor, left, kDescriptor, 0));
  apps::sendDescriptor(socket, descriptor);
  close(descriptor);
  unmap(left_at);
  DRIVER_OK(cuMemRelease(left));
  apps::hear(socket);
  return 0;
}

int importer(int socket) {
  const CUdevice device = apps::usePrimaryContext();
  const apps::Bump bump(4);
  const int descriptor = apps::receiveDescriptor(socket);
  if (descriptor < 0) return 77;  // the other one has nothing to export
  CUmemGenericAllocationHandle shared = 0, left = 0;
  DRIVER_OK(import(descriptor, &shared));
  const CUdeviceptr at = map(shared, device);
  check(at, 100, "what the other process had written");
  bump(at, kBytes / 4, 10);
  DRIVER_OK(cuCtxSynchronize());
  apps::tell(socket);
  const int second = apps::receiveDescriptor(socket);
  check(at, 115, "memory that the other process has released");
  DRIVER_OK(import(second, &left));
  const CUdeviceptr left_at = map(left, device);
  check(left_at, 300, "memory that nobody had any more");
  DRIVER_OK(cuMemcpyDtoD(left_at, at, kBytes));
  apps::tell(socket);
  char byte = 0;
  while (recv(socket, &byte, 1, 0) > 0) {  // until the other process has ended
  }
  check(left_at, 115, "memory of a process that has ended");
  // Natively the descriptor alone has kept it; where the exporter has to be there to be asked, this
  // is refused.
  CUmemGenericAllocationHandle late = 0;
  const CUresult result = import(second, &late);
  CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_VALUE,
        "import from who has ended: %d", int(result));
  unmap(at), unmap(left_at);
  DRIVER_OK(cuMemRelease(shared));
  DRIVER_OK(cuMemRelease(left));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  (void)apps::parse(argc, argv);
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "no sockets");
  // Both begin with CUDA after the fork, in children, so that one can be seen to end before the
  // other.
  pid_t children[2];
  for (int c = 0; c < 2; ++c) {
    std::fflush(stdout);
    children[c] = fork();
    CHECK(children[c] >= 0, "no child process");
    if (children[c] != 0) continue;
    close(ends[1 - c]);
    std::exit(c == 0 ? exporter(ends[0]) : importer(ends[1]));
  }
  close(ends[0]), close(ends[1]);
  int statuses[2];
  for (int c = 0; c < 2; ++c)
    CHECK(waitpid(children[c], &statuses[c], 0) == children[c], "a child is lost");
  if (WIFEXITED(statuses[0]) && WEXITSTATUS(statuses[0]) == 77) return 77;
  CHECK(statuses[0] == 0 && statuses[1] == 0, "the exporter ended with %#x, the importer with %#x",
        unsigned(statuses[0]), unsigned(statuses[1]));
  return apps::ok("memory exported to another process and back");
}
