// Does as it is told, for tests that export memory from one program to another
// (tests/integration/forward/node.py): a line in, a line out.
//
//   make VALUE    memory of 2 MiB, full of VALUE          -> ok
//   send PATH     its descriptor, to whoever connects      -> ok, and once it is sent: sent
//   take PATH     such a descriptor                        -> ok
//   import        what the descriptor names                -> ok, or error NUMBER
//   read          the first word of what was imported      -> ok VALUE
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <string>

#include "between_processes.h"
#include "driver_program.h"

namespace {

constexpr size_t kBytes = size_t{2} << 20;
constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUdeviceptr map(CUmemGenericAllocationHandle handle) {
  CUdeviceptr address = 0;
  DRIVER_OK(cuMemAddressReserve(&address, kBytes, 0, 0, 0));
  DRIVER_OK(cuMemMap(address, kBytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRIVER_OK(cuMemSetAccess(address, kBytes, &access, 1));
  return address;
}

sockaddr_un addressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK(path.size() < sizeof address.sun_path, "a path too long");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

void say(const std::string& text) { std::cout << text << std::endl; }

void send(const std::string& path, int descriptor) {
  const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = addressOf(path);
  CHECK(bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
            listen(listening, 1) == 0,
        "no socket at %s", path.c_str());
  say("ok");
  const int peer = accept(listening, nullptr, nullptr);
  apps::sendDescriptor(peer, descriptor);
  close(peer), close(listening);
  say("sent");
}

int take(const std::string& path) {
  const int peer = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = addressOf(path);
  CHECK(connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
        "nobody at %s", path.c_str());
  const int descriptor = apps::receiveDescriptor(peer);
  CHECK(descriptor >= 0, "nothing came");
  close(peer);
  return descriptor;
}

}  // namespace

int main() {
  const CUdevice device = apps::usePrimaryContext();
  CUmemGenericAllocationHandle made = 0, imported = 0;
  int taken = -1;
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what, path;
    words >> what;
    if (what == "make") {
      unsigned value = 0;
      words >> value;
      CUmemAllocationProp prop{};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      prop.location.id = device;
      prop.requestedHandleTypes = kDescriptor;
      DRIVER_OK(cuMemCreate(&made, kBytes, &prop, 0));
      DRIVER_OK(cuMemsetD32(map(made), value, kBytes / 4));
      DRIVER_OK(cuCtxSynchronize());
      say("ok");
    } else if (what == "send") {
      words >> path;
      int descriptor = -1;
      DRIVER_OK(cuMemExportToShareableHandle(&descriptor, made, kDescriptor, 0));
      send(path, descriptor);
      close(descriptor);
    } else if (what == "take") {
      words >> path;
      taken = take(path);
      say("ok");
    } else if (what == "import") {
      const CUresult result = cuMemImportFromShareableHandle(
          &imported, reinterpret_cast<void*>(intptr_t{taken}), kDescriptor);
      say(result == CUDA_SUCCESS ? "ok" : "error " + std::to_string(int(result)));
    } else if (what == "read") {
      uint32_t word = 0;
      DRIVER_OK(cuMemcpyDtoH(&word, map(imported), sizeof word));
      say("ok " + std::to_string(word));
    } else {
      say("unknown: " + what);
    }
  }
}
