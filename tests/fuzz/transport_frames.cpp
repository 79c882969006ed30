// libFuzzer target: frames on a link over TCP that an honest peer would have made. The first byte's
// lowest bit chooses the connection: the first one, or the lane. The endpoint has to end the link
// for what breaks a rule, write nowhere but where it granted, and be done when the peer goes.
#include "tests/fuzz/rig/transport_victim.h"

using namespace olpager::transport;

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  static fuzz::Victim& victim = *new fuzz::Victim(false);
  if (size == 0) return 0;
  {
    fuzz::Peer peer(victim, false);
    if (!peer.up) std::abort();
    std::vector<uint8_t> said;
    fuzz::forFrames({data + 1, size - 1}, victim.key(), [&](std::vector<uint8_t>& frame) {
      said.insert(said.end(), frame.begin(), frame.end());
    });
    fuzz::say((data[0] & 1) == 0 ? peer.control.get() : peer.lane.get(), said);
  }
  victim.settle();
  return 0;
}
