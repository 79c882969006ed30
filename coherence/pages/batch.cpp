#include "coherence/pages/batch.h"

#include <cassert>

#include "coherence/codec.h"

namespace olpager::pages {
namespace {

using namespace directory;
using codec::Is;
using codec::Reader;
using codec::Writer;

constexpr uint8_t kVersion = 2;
constexpr size_t kMostGroups = 1u << 13;
constexpr size_t kGroupBytes = 23, kRunBytes = 24;

struct Run {
  ExtentId first = 0;
  uint32_t count = 1;
  Number number = 0;
  Content content = 0;
};
struct Group {
  uint8_t kind = 0, mode = 0, from = 0, to = 0, taker = 0;
  Age age = 0, served = 0;
  std::vector<Run> runs;
};
static_assert(kMostBytes / kRunBytes < (1u << 16), "a count of runs has 16 bits");

template <typename Io>
void fields(Io& io, Is<Run> auto& m) {
  io(m.first), io(m.count), io(m.number), io(m.content);
}
template <typename Io>
void fields(Io& io, Is<Group> auto& m) {
  io(m.kind), io(m.mode), io(m.from), io(m.to), io(m.taker), io(m.age), io(m.served);
  io.list(m.runs, kMostBytes / kRunBytes, [&](auto& run) { fields(io, run); });
}

Group headOf(const Message& m) {
  return {.kind = static_cast<uint8_t>(m.kind),
          .mode = static_cast<uint8_t>(m.mode),
          .from = m.from,
          .to = m.to,
          .taker = m.taker,
          .age = m.age,
          .served = m.served,
          .runs = {}};
}

bool sameHead(const Message& a, const Message& b) {
  return a.kind == b.kind && a.mode == b.mode && a.from == b.from && a.to == b.to &&
         a.taker == b.taker && a.age == b.age && a.served == b.served;
}

bool ofExtent(MessageKind kind) {
  return kind != MessageKind::kCompleted && kind != MessageKind::kOver;
}

/// "" or what is wrong with it.
const char* wrongHead(const Group& group) {
  if (group.kind >= kMessageKinds || group.mode > 1) return "an unknown kind";
  const auto kind = static_cast<MessageKind>(group.kind);
  const bool from_agent = group.from < kMostAgents, to_agent = group.to < kMostAgents;
  const bool to_home = kind <= MessageKind::kCompleted, peers = kind == MessageKind::kReady;
  const bool right = to_home ? from_agent && group.to == kHome
                     : peers ? from_agent && to_agent
                             : group.from == kHome && to_agent;
  if (!right) return "a message that goes the wrong way";
  const bool names_taker = kind == MessageKind::kYield || kind == MessageKind::kReady;
  if (group.taker >= kMostAgents && (names_taker || group.taker != kNoAgent))
    return "an agent that can't be";
  if (group.runs.empty()) return "a group of nothing";
  return "";
}

const char* wrongRun(const Group& group, const Run& run, ExtentId extents) {
  constexpr uint64_t kLeast = uint64_t{1} << 48;
  if (run.count == 0) return "a run of nothing";
  if (run.number >= kLeast || run.content >= kLeast) return "a number that is too large";
  if (!ofExtent(static_cast<MessageKind>(group.kind)))
    return run.first == 0 && run.count == 1 ? "" : "extents where there are none";
  return run.first < extents && run.count <= extents - run.first ? "" : "an extent that is not";
}

}  // namespace

std::vector<std::byte> encode(std::span<const Message>& messages) {
  assert(!messages.empty());
  std::vector<Group> groups;
  size_t bytes = 3, taken = 0;
  for (; taken < messages.size() && taken < kMostMessages; ++taken) {
    const Message& m = messages[taken];
    if (groups.empty() || !sameHead(messages[taken - 1], m)) {
      bytes += kGroupBytes + kRunBytes;
      if (bytes > kMostBytes || groups.size() == kMostGroups) break;
      groups.push_back(headOf(m));
    } else {
      Run& run = groups.back().runs.back();
      if (ofExtent(m.kind) && m.extent == run.first + run.count && m.number == run.number &&
          m.content == run.content) {
        ++run.count;
        continue;
      }
      bytes += kRunBytes;
      if (bytes > kMostBytes) break;
    }
    groups.back().runs.push_back({m.extent, 1, m.number, m.content});
  }
  messages = messages.subspan(taken);
  Writer writer;
  writer(kVersion);
  writer.list(groups, kMostGroups, [&](const Group& group) { fields(writer, group); });
  return writer.take();
}

Result<void> decode(std::span<const std::byte> record, ExtentId extents, std::vector<Message>& to) {
  const auto refused = [](const std::string& why) {
    return Error{"the peer sends a record of the directory that is refused: " + why};
  };
  if (record.size() > kMostBytes) return refused("it is too long");
  Reader reader(record);
  uint8_t version = 0;
  reader(version);
  if (reader.wrong().empty() && version != kVersion) return refused("it is of another version");
  std::vector<Group> groups;
  reader.list(groups, kMostGroups, [&](Group& group) { fields(reader, group); });
  if (!reader.wrong().empty()) return refused(reader.wrong());
  if (reader.left() != 0) return refused("something follows it");
  // All of it is looked at before any of it is heard: it may be much longer spelt out.
  uint64_t count = 0;
  for (const Group& group : groups) {
    if (const char* const wrong = wrongHead(group); *wrong != 0) return refused(wrong);
    for (const Run& run : group.runs) {
      if (const char* const wrong = wrongRun(group, run, extents); *wrong != 0)
        return refused(wrong);
      count += run.count;
    }
  }
  if (count > kMostMessages) return refused("it has too many messages");
  to.reserve(to.size() + count);
  for (const Group& group : groups) {
    Message message{.kind = static_cast<MessageKind>(group.kind),
                    .from = group.from,
                    .to = group.to,
                    .mode = static_cast<Mode>(group.mode),
                    .taker = group.taker,
                    .age = group.age,
                    .served = group.served};
    for (const Run& run : group.runs) {
      message.number = run.number;
      message.content = run.content;
      for (uint32_t i = 0; i < run.count; ++i) {
        message.extent = run.first + i;
        to.push_back(message);
      }
    }
  }
  return {};
}

}  // namespace olpager::pages
