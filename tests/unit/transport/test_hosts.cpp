// Programs that are stopped, and hosts that are gone: the first keep their links, the second don't.
#include <linux/filter.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/unit/transport/rig.h"

using namespace olpager;
using namespace olpager::transport;
using namespace olpager::transport::test;

namespace {

constexpr uint32_t kDeadMs = 1000;
constexpr uint32_t kSlices = 8;
enum class When { kIdle, kBytesOnTheWay, kWindowFull };

/// As memservers and their sessions have it, with a shorter clock.
Options patient() {
  Options options = optionsFor(Choice::kTcp);
  options.silent_ms = 0;
  options.ping_ms = 100;
  options.dead_ms = kDeadMs;
  return options;
}

/// Bytes that arrive for this socket are lost, and so is every acknowledgement: its host has lost
/// its power.
void vanish(const base::UniqueFd& fd) {
  sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, nothing};
  REQUIRE(setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
}

wire::Header pullOf(const RegionPtr& region, uint32_t index) {
  wire::Header pull;
  pull.frame = wire::Frame::kPull;
  pull.klass = static_cast<uint8_t>(Class::kDemand);
  pull.index = index;
  pull.key = region->key().key;
  pull.offset = uint64_t{index} * wire::kMaxSlice;
  pull.bytes = wire::kMaxSlice;
  return pull;
}

void ask(const RawPeer& peer, const RegionPtr& region) {
  for (uint32_t i = 0; i < kSlices; ++i) {
    const wire::Header pull = pullOf(region, i);
    REQUIRE(send(peer.control.get(), &pull, sizeof pull, MSG_NOSIGNAL) == sizeof pull);
  }
}

}  // namespace

TEST_CASE("a peer that is stopped while its window is full keeps its link", "[hosts]") {
  Pair pair(patient());
  Buffer buffer(kSlices * wire::kMaxSlice);
  buffer.fill(5);
  const RegionPtr region = pair.server.add(buffer, kRemoteRead);
  RawPeer peer(pair.listener->address(), 4096);
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  ask(peer, region);
  std::this_thread::sleep_for(std::chrono::milliseconds(4 * kDeadMs));
  INFO(link->reason());
  REQUIRE(link->state() == LinkState::kUp);
  // The link goes on, and all is there.
  std::vector<std::byte> got(wire::kMaxSlice);
  for (uint32_t i = 0; i < kSlices; ++i) {
    wire::Header header;
    REQUIRE(recv(peer.lane.get(), &header, sizeof header, MSG_WAITALL) == sizeof header);
    REQUIRE(header.frame == wire::Frame::kData);
    REQUIRE(recv(peer.lane.get(), got.data(), got.size(), MSG_WAITALL) ==
            static_cast<ssize_t>(got.size()));
    REQUIRE(std::memcmp(got.data(), buffer.base + header.offset, got.size()) == 0);
  }
  // The link was asked whether it lives, and not again and again. (If this took long to begin, once
  // before it asked for anything.)
  char pings[4 * sizeof(wire::Header)];
  const ssize_t got_pings = recv(peer.control.get(), pings, sizeof pings, 0);
  REQUIRE((got_pings == sizeof(wire::Header) || got_pings == 2 * sizeof(wire::Header)));
  REQUIRE(link->state() == LinkState::kUp);
}

TEST_CASE("a host that is gone is found in its time", "[hosts]") {
  const auto when = GENERATE(When::kIdle, When::kBytesOnTheWay, When::kWindowFull);
  INFO("when: " << static_cast<int>(when));
  Options options = patient();
  if (when == When::kIdle) options.ping_ms = 600'000;  // a ping would be on its way
  Pair pair(options);
  Buffer buffer(kSlices * wire::kMaxSlice);
  const RegionPtr region = pair.server.add(buffer, kRemoteRead);
  RawPeer peer(pair.listener->address(), 4096);
  const LinkPtr link = pair.server.await(Kind::kUp).link;
  if (when == When::kBytesOnTheWay) vanish(peer.lane);
  if (when != When::kIdle) ask(peer, region);
  if (when == When::kWindowFull) {
    std::this_thread::sleep_for(500ms);
    vanish(peer.lane);
  }
  vanish(peer.control);
  // The system's own probes of a connection on which nothing is on its way need three seconds.
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(pair.server.await(Kind::kDown).link == link);
  CHECK(std::chrono::steady_clock::now() - begin < 6s);
  INFO(link->reason());
  const bool unacknowledged = link->reason().find("acknowledged nothing") != std::string::npos;
  const bool timed_out =
      link->reason().find("timed out") != std::string::npos;  // by the system, for its own probes
  CHECK((unacknowledged || (timed_out && when != When::kBytesOnTheWay)));
  CHECK(pair.up->state() == LinkState::kUp);
}
