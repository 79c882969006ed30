// Messages between the workers of one gpunode about exported memory, over a Unix socket
// (SOCK_SEQPACKET, abstract, so that nothing is left behind; both look at the other's user). One
// request for each connection:
//
//   exporter  ExportHello
//   importer  ExportRequest
//   exporter  ExportReply, and with kFound the descriptor
//
// Both prove that they serve the same key's programs, by what the supervisor has given them alike
// (WorkerSetup::key_group), and the importer that it has the token. Neither the token's secret nor
// the group's goes over. Workers of one supervisor are of one build.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>

#include "coherence/transport/trust/tls.h"
#include "forwarding/wire/export_token.h"

namespace olpager::gpunode {

inline constexpr uint64_t kExportWireMagic = 0x3177'7270'7865'6c6f;

struct ExportHello {
  uint64_t magic = kExportWireMagic;
  uint8_t challenge[16] = {};
};

struct ExportRequest {
  uint64_t magic = kExportWireMagic;
  uint32_t number = 0;
  uint32_t reserved = 0;
  uint8_t challenge[16] = {};
  transport::Secret proof{};
};

enum class ExportStatus : uint32_t { kFound = 1, kGone, kNotAllowed };

struct ExportReply {
  uint64_t magic = kExportWireMagic;
  ExportStatus status = ExportStatus::kGone;
  uint32_t reserved = 0;
  transport::Secret proof{};  // kFound
};

/// That who says it has the token and the group's secret, to who has made up the challenge.
inline transport::Secret exportProof(const transport::Secret& group,
                                     const forward::ExportToken& token,
                                     std::span<const uint8_t, 16> challenge, bool exporter) {
  struct {
    uint64_t side;
    forward::ExportToken token;
  } said{exporter ? 1u : 2u, token};
  return transport::mac(group, challenge, {reinterpret_cast<const uint8_t*>(&said), sizeof said});
}

/// The exporter's address. Returns its length.
inline socklen_t exportAddress(uint32_t process, uint64_t socket, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  // sun_path[0] stays 0: abstract.
  const int written =
      std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "olpager-export-%u-%016llx",
                    process, static_cast<unsigned long long>(socket));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
}

}  // namespace olpager::gpunode
