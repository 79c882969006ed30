// Pinned memory of both sides: exactly the bytes that changed go across.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "forwarding/wire/runs.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/host_memory.h"
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
  REQUIRE(memory.apply({kBlock + 100, sizeof word, {}, word}));  // the client's
  *at(104) = std::byte{9};                                       // a kernel's, right beside it
  *at(4095) = std::byte{8}, *at(4096) = std::byte{7};
  std::vector<std::byte> runs;
  CHECK_FALSE(memory.changes(kBlock + 4096, 0, 8192, runs));
  CHECK_FALSE(memory.changes(kBlock, 8192, 1, runs));
  CHECK(
      memory.changes(kBlock, 0, 4096, runs));  // in parts, the last one shorter than was asked for
  CHECK(memory.changes(kBlock, 4096, 8192, runs));
  std::vector<std::pair<uint64_t, std::vector<std::byte>>> found;
  for (forward::Reader reader(runs); reader.left() > 0;) {
    forward::Run run;
    REQUIRE(forward::readRun(reader, &run));
    REQUIRE(run.mask.empty());
    found.emplace_back(run.address, std::vector<std::byte>(run.bytes.begin(), run.bytes.end()));
  }
  REQUIRE(found.size() == 3);
  CHECK(found[0] == std::pair{kBlock + 104, std::vector{std::byte{9}}});
  CHECK(found[1] == std::pair{kBlock + 4095, std::vector{std::byte{8}}});
  CHECK(found[2] == std::pair{kBlock + 4096, std::vector{std::byte{7}}});
  runs.clear();
  CHECK(memory.changes(kBlock, 0, 8192, runs));
  CHECK(runs.empty());                                                // agreed on
  CHECK_FALSE(memory.apply({kBlock + 8190, sizeof word, {}, word}));  // beyond its end
  CHECK(memory.unmap(kBlock));
}

TEST_CASE("variables are exchanged where they are, and their memory stays when they go",
          "[gpunode]") {
  HostMemory memory;
  memory.setLimit(4096);
  std::vector<std::byte> driver(3 * 4096);
  const auto first = reinterpret_cast<uint64_t>(driver.data()) + 13, second = first + 100;
  CHECK_FALSE(memory.adopt(first, 0));
  CHECK_FALSE(memory.adopt(first, UINT64_MAX));
  REQUIRE(memory.adopt(first, 100));
  REQUIRE(memory.adopt(second, 9000));  // beside it, and above the limit: it is not the client's
  CHECK(memory.adopt(second, 9000));
  for (const auto& [address, bytes] :
       {std::pair{first, 99ull}, {first + 50, 10ull}, {first - 1, 2ull}, {second, 8999ull}})
    CHECK_FALSE(memory.adopt(address, bytes));
  CHECK(memory.bytes() == 0);
  CHECK(memory.isAdopted(first));
  CHECK_FALSE(memory.isAdopted(first + 1));
  driver[13] = std::byte{5}, driver[112] = std::byte{6}, driver[113] = std::byte{7};
  std::vector<std::byte> runs;
  REQUIRE(memory.changes(first, 0, 100, runs));  // from zeros on
  forward::Reader reader(runs);
  forward::Run run;
  uint64_t changed = 0;
  while (reader.left() > 0 && forward::readRun(reader, &run)) changed = run.address + run.length;
  CHECK(changed == second);
  const std::byte word[] = {std::byte{1}, std::byte{2}};
  CHECK(memory.apply({second + 8998, sizeof word, {}, word}));
  CHECK(driver[113 + 8999] == std::byte{2});
  CHECK_FALSE(memory.apply({second + 8999, sizeof word, {}, word}));
  CHECK_FALSE(memory.unmap(first));  // it is nobody's to unmap
  CHECK_FALSE(memory.release(first + 1));
  CHECK(memory.release(first));
  CHECK_FALSE(memory.release(first));
  CHECK_FALSE(memory.changes(first, 0, 100, runs));
  REQUIRE(memory.map(kBlock, 4096));
  CHECK_FALSE(memory.release(kBlock));
  CHECK_FALSE(memory.adopt(kBlock, 4096));
  CHECK(memory.unmap(kBlock));
  CHECK(memory.release(second));
  CHECK(driver[113 + 8999] == std::byte{2});
}

TEST_CASE("a shared block is the client's memory and is never compared", "[gpunode]") {
  constexpr uint64_t kOffset = 4096, kBytes = 8192;
  const base::UniqueFd memfd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(memfd.get(), kOffset + kBytes) == 0);
  const auto clients = [&](int fd, uint64_t offset, uint64_t length) {
    return transport::PeerMemory{base::UniqueFd(fd >= 0 ? dup(fd) : -1), offset, length};
  };
  HostMemory memory;
  CHECK_FALSE(memory.share(kBlock, kBytes, clients(-1, 0, kBytes)));
  CHECK_FALSE(
      memory.share(kBlock, kBytes, clients(memfd.get(), kOffset, kBytes - 4096)));  // too short
  CHECK_FALSE(memory.share(kBlock, kBytes, clients(memfd.get(), 100, kBytes)));     // not at a page
  CHECK_FALSE(
      memory.share(0x10000, kBytes, clients(memfd.get(), kOffset, kBytes)));  // not in the window
  memory.setLimit(4096);
  CHECK_FALSE(memory.share(kBlock, kBytes, clients(memfd.get(), kOffset, kBytes)));
  memory.setLimit(kBytes);
  CHECK(memory.bytes() == 0);
  REQUIRE(memory.share(kBlock, kBytes, clients(memfd.get(), kOffset, kBytes)));
  CHECK(memory.bytes() == kBytes);
  CHECK_FALSE(memory.map(kBlock + kBytes + (4ull << 20), 4096));  // the limit is for both kinds
  CHECK(memory.has(kBlock, kBytes));
  *at(5) = std::byte{7};
  std::byte got{};
  REQUIRE(pread(memfd.get(), &got, 1, kOffset + 5) == 1);
  CHECK(got == std::byte{7});
  std::vector<std::byte> runs;
  CHECK_FALSE(memory.changes(kBlock, 0, kBytes, runs));
  CHECK(runs.empty());
  const std::byte word[] = {std::byte{1}};
  CHECK_FALSE(memory.apply({kBlock, sizeof word, {}, word}));  // the client has no changes to send
  CHECK(memory.unmap(kBlock));
  CHECK(memory.bytes() == 0);
  // Read-only memory is no memory for a GPU to write.
  const base::UniqueFd read_only(
      open(("/proc/self/fd/" + std::to_string(memfd.get())).c_str(), O_RDONLY | O_CLOEXEC));
  CHECK_FALSE(memory.share(kBlock, kBytes, clients(read_only.get(), kOffset, kBytes)));
  CHECK_FALSE(memory.has(kBlock, 1));
}
