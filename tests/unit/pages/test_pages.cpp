// Messages on the wire: the directory's, in records, and the blocks of an extent that differ.
#include <random>

#include "coherence/pages/batch.h"
#include "coherence/pages/blocks.h"
#include "tests/catch.h"

using namespace olpager;
using namespace olpager::directory;

namespace {

constexpr ExtentId kExtents = 1u << 20;

std::vector<Message> throughWire(const std::vector<Message>& messages, size_t* records = nullptr) {
  std::vector<Message> out;
  std::span<const Message> left = messages;
  while (!left.empty()) {
    const std::vector<std::byte> record = pages::encode(left);
    CHECK(record.size() <= pages::kMostBytes);
    REQUIRE(pages::decode(record, kExtents, out).ok());
    if (records != nullptr) ++*records;
  }
  return out;
}

Message get(ExtentId extent) {
  return {.kind = MessageKind::kGet,
          .from = 3,
          .to = kHome,
          .mode = Mode::kOwn,
          .extent = extent,
          .number = 5,
          .age = 1000};
}

std::vector<std::byte> recordOf(Message message) {
  std::span<const Message> one(&message, 1);
  return pages::encode(one);
}

bool refused(const Message& message, ExtentId extents = kExtents) {
  std::vector<Message> out;
  const bool ok = pages::decode(recordOf(message), extents, out).ok();
  CHECK(out.empty() == !ok);
  return !ok;
}

}  // namespace

TEST_CASE("what an operation needs is one record", "[pages]") {
  std::vector<Message> messages;
  for (ExtentId extent = 100; extent < 1100; ++extent) messages.push_back(get(extent));
  size_t records = 0;
  CHECK(throughWire(messages, &records) == messages);
  CHECK(records == 1);
  std::span<const Message> all = messages;
  CHECK(pages::encode(all).size() < 64);
}

TEST_CASE("messages of every kind come out as they went in, in order", "[pages]") {
  std::mt19937_64 random(1);
  std::vector<Message> messages;
  for (int i = 0; i < 20000; ++i) {
    Message m;
    m.kind = static_cast<MessageKind>(random() % kMessageKinds);
    const auto agent = [&] { return static_cast<AgentId>(random() % kMostAgents); };
    m.from = m.kind <= MessageKind::kCompleted || m.kind == MessageKind::kReady ? agent() : kHome;
    m.to = m.kind <= MessageKind::kCompleted ? kHome : agent();
    m.mode = random() % 2 == 0 ? Mode::kOwn : Mode::kShared;
    m.taker = agent();
    m.age = random();
    m.served = random() % 3 == 0 ? kNobody : random();
    const bool whole = m.kind == MessageKind::kCompleted || m.kind == MessageKind::kOver;
    const uint32_t count = whole ? 1 : 1 + random() % 5;
    m.extent = whole ? 0 : static_cast<ExtentId>(random() % (kExtents - 8));
    for (uint32_t j = 0; j < count; ++j) {
      m.number = random() % 4 == 0 ? random() >> 16 : m.number;
      m.content = random() % 4 == 0 ? random() >> 16 : m.content;
      messages.push_back(m);
      if (!whole) m.extent += 1 + (random() % 4 == 0 ? 1 : 0);
    }
  }
  size_t records = 0;
  CHECK(throughWire(messages, &records) == messages);
  CHECK(records > 1);  // they are too many for one
}

TEST_CASE("a record that is not right is refused as a whole", "[pages]") {
  REQUIRE_FALSE(refused(get(5)));
  CHECK(refused(get(5), 5));
  Message m = get(5);
  m.from = kMostAgents;
  CHECK(refused(m));
  m = get(5);
  m.to = 1;
  CHECK(refused(m));
  m = get(5);
  m.number = uint64_t{1} << 48;
  CHECK(refused(m));
  m = {.kind = MessageKind::kYield, .from = kHome, .to = 1, .taker = kNoAgent, .extent = 5};
  CHECK(refused(m));
  m.taker = 2;
  CHECK_FALSE(refused(m));
  m = {.kind = MessageKind::kReady, .from = kHome, .to = 1, .taker = 1, .extent = 5};
  CHECK(refused(m));
  m = {.kind = MessageKind::kCompleted, .from = 1, .to = kHome, .extent = 5};
  CHECK(refused(m));
  // Cut anywhere, or with something behind it.
  std::vector<Message> out;
  const std::vector<std::byte> record = recordOf(get(5));
  for (size_t size = 0; size < record.size(); ++size)
    CHECK_FALSE(pages::decode(std::span(record).first(size), kExtents, out).ok());
  std::vector<std::byte> longer = record;
  longer.push_back({});
  CHECK_FALSE(pages::decode(longer, kExtents, out).ok());
  // A short record of more messages than one may have.
  std::vector<Message> many;
  for (ExtentId extent = 0; extent < pages::kMostMessages; ++extent) many.push_back(get(extent));
  std::span<const Message> left = many;
  std::vector<std::byte> most = pages::encode(left);
  CHECK(left.empty());
  // The count of its only run, behind version, groups, head, runs, first.
  most[1 + 2 + 23 - 2 + 2 + 4] = std::byte{1};
  CHECK_FALSE(pages::decode(most, kExtents, out).ok());
  CHECK(out.empty());
}

TEST_CASE("only blocks that differ are fetched", "[pages]") {
  using namespace pages;
  std::vector<std::byte> page(kPageBytes);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  const BlockHashes kept = hashBlocks(page.data());
  CHECK(differing(kept, hashBlocks(page.data())).empty());
  // The last byte of one block, one in the middle of the next, the first and the last of all.
  const auto change = [&](size_t at) { page[at] ^= std::byte{1}; };
  change(4 * kBlockBytes - 1);
  change(4 * kBlockBytes + kBlockBytes / 2);
  CHECK(differing(kept, hashBlocks(page.data())) ==
        std::vector<Piece>{{3 * kBlockBytes, 2 * kBlockBytes}});
  change(0);
  change(kPageBytes - 1);
  CHECK(differing(kept, hashBlocks(page.data())) ==
        std::vector<Piece>{{0, kBlockBytes},
                           {3 * kBlockBytes, 2 * kBlockBytes},
                           {kPageBytes - kBlockBytes, kBlockBytes}});
  for (size_t b = 0; b < kBlocks; ++b) change(b * kBlockBytes + 77);
  CHECK(differing(kept, hashBlocks(page.data())) == std::vector<Piece>{{0, kPageBytes}});
  // Blocks that change places differ.
  BlockHashes swapped = kept;
  std::swap(swapped[5], swapped[6]);
  CHECK(differing(kept, swapped) == std::vector<Piece>{{5 * kBlockBytes, 2 * kBlockBytes}});
}
