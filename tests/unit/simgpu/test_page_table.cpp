#include "gpunode/simgpu/page_table.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/catch.h"

using olpager::simgpu::kPageBytes;
using olpager::simgpu::kSmallPageBytes;
using olpager::simgpu::PageTable;
using olpager::simgpu::Translation;

namespace {

std::byte* host(uint64_t value) { return reinterpret_cast<std::byte*>(value); }

}  // namespace

TEST_CASE("large and small pages translate to their bytes", "[page_table]") {
  PageTable table;
  Translation at;
  constexpr uint64_t kBase = 0x2000'0000'0000ull;
  CHECK_FALSE(table.translate(kBase, &at));
  table.map(kBase, 3 * kPageBytes, host(0x10000000), true);
  REQUIRE(table.translate(kBase + kPageBytes + 5, &at));
  CHECK(at.host == host(0x10000000 + kPageBytes + 5));
  CHECK(at.bytes == kPageBytes - 5);
  CHECK(at.writable);
  // A hole of one small page inside a large one.
  table.unmap(kBase + kPageBytes + 2 * kSmallPageBytes, kSmallPageBytes);
  CHECK_FALSE(table.translate(kBase + kPageBytes + 2 * kSmallPageBytes + 1, &at));
  REQUIRE(table.translate(kBase + kPageBytes + 3 * kSmallPageBytes, &at));
  CHECK(at.host == host(0x10000000 + kPageBytes + 3 * kSmallPageBytes));
  CHECK(at.bytes == kSmallPageBytes);
  table.map(kBase, kPageBytes, host(0x30000000), false);
  REQUIRE(table.translate(kBase, &at));
  CHECK_FALSE(at.writable);
  table.unmap(kBase, 3 * kPageBytes);
  for (uint64_t i = 0; i < 3; ++i) CHECK_FALSE(table.translate(kBase + i * kPageBytes, &at));
  CHECK_FALSE(table.translate(0x5a5a'0000'0000'0000ull, &at));
  CHECK_FALSE(table.translate(~0ull, &at));
}

TEST_CASE("whoever changes a mapping can wait for those who still use it", "[page_table]") {
  PageTable table;
  constexpr uint64_t kBase = 0x7000'0000'0000ull;
  std::vector<std::atomic<int>> pages(2);  // what is mapped: 1 while it may be used
  pages[0] = pages[1] = 1;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  table.map(kBase, kPageBytes, host(kPageBytes), true);
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      while (!stop) {
        table.enterSlice();
        Translation at;
        if (table.translate(kBase, &at)) {
          const size_t which = reinterpret_cast<uint64_t>(at.host) / kPageBytes - 1;
          if (pages[which] != 1) ++wrong;
        }
        table.leaveSlice();
      }
    });
  }
  for (int round = 0; round < 2000; ++round) {
    const size_t next = (round + 1) % 2, old = round % 2;
    pages[next] = 1;
    table.map(kBase, kPageBytes, host((next + 1) * kPageBytes), true);
    table.waitForReaders();
    pages[old] = 0;
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  CHECK(wrong == 0);
}
