// libFuzzer target: the beginning of connections. The first byte chooses: to an endpoint without a
// key, to one with a key (TLS), a lane of a link that is on its way whose ticket is altered, or its
// Unix socket for shared memory, or to one that hands connections over to another by their route
// (Victim::kRoute leads there). The rest is said there. The endpoint has to close what breaks a
// rule, and to be done with all of it when the peer goes.
#include <sys/un.h>

#include <algorithm>

#include "tests/fuzz/rig/transport_victim.h"

using namespace olpager::transport;

namespace {

/// An honest beginning, up to the acceptor's Hello; then a lane or a Unix socket that says
/// `altered`.
void alteredTicket(fuzz::Victim& victim, bool shared, fuzz::Bytes data) {
  const fuzz::Peer honest(victim, shared);
  struct {
    wire::Preamble preamble;
    wire::Ticket ticket;
  } opening;
  opening.preamble.kind = wire::Preamble::Kind::kLane;
  opening.ticket = makeTicket(honest.secrets, honest.id, 0);
  std::vector<uint8_t> said(reinterpret_cast<const uint8_t*>(&opening),
                            reinterpret_cast<const uint8_t*>(&opening) + sizeof opening);
  for (size_t i = 0; i < std::min(data.size(), said.size()); ++i) said[i] ^= data[i];
  if (data.size() > said.size())
    said.insert(said.end(), data.begin() + static_cast<ptrdiff_t>(said.size()), data.end());
  if (!shared) {
    const auto fd = fuzz::connectTo(victim);
    fuzz::say(fd.get(), said);
    return;
  }
  const auto address = unixAddress(honest.hello.unix_path);
  if (!address.ok()) return;
  const olpager::base::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), address.value().get(), address.value().length) == 0)
    fuzz::say(fd.get(), said);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  static fuzz::Victim& open = *new fuzz::Victim(false);
  static fuzz::Victim& keyed = *new fuzz::Victim(true);
  static fuzz::Victim& behind = *new fuzz::Victim(false, true);
  if (size == 0) return 0;
  const fuzz::Bytes rest(data + 1, size - 1);
  const int how = data[0] % 5;
  switch (how) {
    case 0:
    case 1:
    case 4: {
      fuzz::Victim& victim = how == 0 ? open : how == 1 ? keyed : behind;
      const auto fd = fuzz::connectTo(victim);
      fuzz::say(fd.get(), rest);
      victim.settle();
      break;
    }
    default:
      alteredTicket(open, how == 3, rest);
      open.settle();
  }
  return 0;
}
