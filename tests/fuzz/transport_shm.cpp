// libFuzzer target: a peer on the same host that has mapped the rings. The first byte's lowest bit
// chooses: frames put into the ring as the protocol wants it, or bytes written anywhere into the
// shared memory (8 of the input each: where, and what), again and again while the endpoint reads.
// The endpoint has to end the link for what breaks a rule, and be done when the peer goes.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "tests/fuzz/rig/transport_victim.h"

using namespace olpager::transport;

namespace {

void scribble(const Channel& channel, fuzz::Bytes data) {
  struct stat about {};
  if (fstat(channel.memoryFd(), &about) != 0 || about.st_size < 4096) return;
  const auto length = static_cast<size_t>(about.st_size);
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, channel.memoryFd(), 0);
  if (memory == MAP_FAILED) return;
  for (; data.size() >= 8; data = data.subspan(8)) {
    uint32_t where = 0, what = 0;
    std::memcpy(&where, data.data(), 4);
    std::memcpy(&what, data.data() + 4, 4);
    // Half of them into the control words, which are in front.
    const size_t place = ((where & 1) != 0 ? where % length : where % 4096) / 4 * 4;
    std::memcpy(static_cast<char*>(memory) + std::min(place, length - 4), &what, 4);
    channel.ringPeer();
  }
  munmap(memory, length);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  static fuzz::Victim& victim = *new fuzz::Victim(false);
  if (size == 0) return 0;
  {
    fuzz::Peer peer(victim, true);
    if (!peer.up) std::abort();
    const fuzz::Bytes rest(data + 1, size - 1);
    if ((data[0] & 1) != 0) {
      scribble(*peer.channel, rest);
    } else {
      fuzz::forFrames(rest, victim.key(), [&](const std::vector<uint8_t>& frame) {
        if (!peer.channel->out.fits(frame.size())) return;
        peer.channel->out.put(frame.data(), frame.size());
        peer.channel->out.publish();
        peer.channel->ringPeer();
      });
    }
    fuzz::say(peer.control.get(), {});
  }
  victim.settle();
  return 0;
}
