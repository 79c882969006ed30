// Pinned memory of both sides: exactly the bytes that changed go across.
#include <cstring>

#include "gpunode/worker/host_memory.h"
#include "interpose/forward/runs.h"
#include "interpose/forward/wire.h"
#include "tests/catch.h"

namespace {

using namespace olpager;
using gpunode::HostMemory;

constexpr uint64_t kBlock = forward::kWindow + (64ull << 20);
std::byte* at(uint64_t offset) { return reinterpret_cast<std::byte*>(kBlock + offset); }

}  // namespace

TEST_CASE("blocks lie in the window and nowhere else", "[gpunode]") {
  HostMemory memory;
  CHECK_FALSE(memory.map(0x10000, 4096));
  CHECK_FALSE(memory.map(forward::kWindow + 1, 4096));
  CHECK_FALSE(memory.map(forward::kWindow, 0));
  CHECK_FALSE(memory.map(forward::kWindow, forward::kWindowBytes + 4096));
  CHECK_FALSE(memory.map(forward::kWindow + forward::kWindowBytes - 4096, 8192));
  CHECK_FALSE(memory.map(UINT64_MAX - 4095, 4096));
  REQUIRE(memory.map(kBlock, 8192));
  CHECK_FALSE(memory.map(kBlock + 4096, 8192));  // taken
  CHECK(memory.has(kBlock, 8192));
  CHECK(memory.has(kBlock + 8191, 1));
  CHECK_FALSE(memory.has(kBlock + 8191, 2));
  CHECK_FALSE(memory.has(kBlock, UINT64_MAX));
  CHECK_FALSE(memory.has(kBlock - 1, 1));
  CHECK_FALSE(memory.unmap(kBlock + 4096));
  CHECK(memory.unmap(kBlock));
  CHECK_FALSE(memory.has(kBlock, 1));
}

TEST_CASE("what one side changed does not undo what the other did", "[gpunode]") {
  HostMemory memory;
  REQUIRE(memory.map(kBlock, 8192));
  const std::byte word[] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  REQUIRE(memory.apply(kBlock + 100, word));  // the client's
  *at(104) = std::byte{9};                    // a kernel's, right beside it
  *at(4095) = std::byte{8}, *at(4096) = std::byte{7};
  std::vector<std::byte> runs;
  memory.changes(kBlock, runs);
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> found;
  for (forward::Reader reader(runs); reader.left() > 0;) {
    const auto address = reader.value<uint64_t>();
    const auto bytes = reader.raw(reader.value<uint64_t>());
    REQUIRE(reader.ok());
    found.emplace_back(address, std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  REQUIRE(found.size() == 3);
  CHECK(found[0] == std::pair{kBlock + 104, std::vector{std::byte{9}}});
  CHECK(found[1] == std::pair{kBlock + 4095, std::vector{std::byte{8}}});
  CHECK(found[2] == std::pair{kBlock + 4096, std::vector{std::byte{7}}});
  runs.clear();
  memory.changes(kBlock, runs);
  CHECK(runs.empty());                             // agreed on
  CHECK_FALSE(memory.apply(kBlock + 8190, word));  // beyond its end
  CHECK(memory.unmap(kBlock));
}
