// Memory handles between processes (cuIpcGetMemHandle): the contents of a handle, and the two
// processes' messages over a Unix socket (SOCK_SEQPACKET, abstract, so that nothing is left behind;
// both look at the other's user). One request for each connection:
//
//   importer  IpcRequest
//   exporter  IpcReply, then for its `pieces` packets of up to kIpcPieces sizes (uint64_t), each
//             with as many descriptors
//
// Processes of one build talk to each other; another version is refused by `magic`.
#pragma once

#include <cuda.h>
#include <sys/un.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace olpager::local {

inline constexpr uint64_t kIpcMagic =
    0x3163'7069'676c'6f00;                  // not what a driver's handle begins with
inline constexpr unsigned kIpcPieces = 64;  // descriptors in one packet
inline constexpr uint64_t kMostIpcPieces = 1u << 20;

/// In a CUipcMemHandle.
struct IpcName {
  uint64_t magic;
  uint64_t socket;  // of the exporter's, random
  uint32_t process;
  uint32_t user;
  uint64_t allocation;
  uint64_t nonce[2];  // of the allocation's: who has not got the handle can't ask for it
  uint64_t reserved[2];
};
static_assert(sizeof(IpcName) == sizeof(CUipcMemHandle));

struct IpcRequest {
  uint64_t magic;
  uint64_t allocation;
  uint64_t nonce[2];
};

enum class IpcStatus : uint32_t { kFound, kGone, kOtherUser };

struct IpcReply {
  uint64_t magic;
  IpcStatus status;
  uint32_t pieces;
  uint64_t offset;  // of the allocation in them, in bytes
  uint64_t bytes;   // of the allocation
};

/// The exporter's address. Returns its length.
inline socklen_t ipcAddress(uint32_t process, uint64_t socket, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  // sun_path[0] stays 0: abstract.
  const int written =
      std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "olpager-ipc-%u-%016llx",
                    process, static_cast<unsigned long long>(socket));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
}

}  // namespace olpager::local
