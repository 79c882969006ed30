// The cuts of an arena: what they are for, and random names against a model that keeps everything
// in plain lists.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <vector>

#include "pager/space/arena.h"
#include "tests/catch.h"
#include "tests/unit/pager_parts/seed.h"

using namespace olpager::pager;

namespace {
thread_local bool t_no_memory = false;
}  // namespace

void* operator new(size_t bytes) {
  void* const memory = t_no_memory ? nullptr : std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr uint64_t kPage = 2ull << 20;
constexpr uint64_t kBase = 0x2a5d'0000'0000;

// Pieces cover the arena without a gap, and no page has two cuts.
void checkShape(Arena& arena, const PieceTable& table) {
  uint64_t at = arena.begin();
  size_t count = 0;
  uint64_t pages = 0;
  std::set<uint32_t> ids;
  arena.overlapping(arena.begin(), arena.end() - arena.begin(), [&](Piece& piece) {
    REQUIRE(piece.begin == at);
    REQUIRE(piece.end > piece.begin);
    if (count > 0)
      REQUIRE(piece.begin / kPage !=
              (piece.begin == arena.begin() ? 0 : arena.at(piece.begin - 1).begin / kPage));
    REQUIRE(table.at(piece.id) == &piece);
    ids.insert(piece.id);
    pages += piece.pages();
    at = piece.end;
    ++count;
  });
  REQUIRE(at == arena.end());
  REQUIRE(count == arena.size());
  REQUIRE(ids.size() == count);
  REQUIRE(pages == (arena.end() - arena.begin()) / kPage);
}

struct Model {
  struct Cut {
    uint64_t begin, named, whole;
  };
  Arena::Options options;
  uint64_t begin, end, clock = 0;
  std::vector<Cut> cuts;  // ascending; the first is the arena's begin
  std::vector<std::pair<uint64_t, uint64_t>> candidates;  // in the order in which they came

  size_t holder(uint64_t address) const {
    size_t i = cuts.size();
    while (cuts[--i].begin > address) {
    }
    return i;
  }
  uint64_t endOf(size_t i) const { return i + 1 < cuts.size() ? cuts[i + 1].begin : end; }
  uint64_t window() const {
    return std::max(options.least_names, options.names_for_each_piece * cuts.size());
  }

  bool tryCut(uint64_t address) {
    const size_t i = holder(address);
    if (address / kPage == cuts[i].begin / kPage || address / kPage == endOf(i) / kPage ||
        address < cuts[i].whole)
      return false;
    const auto known = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const auto& entry) { return entry.first == address; });
    if (known == candidates.end()) {
      candidates.emplace_back(address, clock);
      return false;
    }
    if (clock - known->second < std::max<uint64_t>(Arena::kLeastGap, cuts.size() / 2)) return false;
    candidates.erase(known);
    cuts[i].whole = std::min(cuts[i].whole, address);
    cuts.insert(cuts.begin() + static_cast<ptrdiff_t>(i) + 1, {address, clock, 0});
    return true;
  }
  void renew(uint64_t address) {
    Cut& cut = cuts[holder(address)];
    if (address / kPage == cut.begin / kPage) cut.named = clock;
  }
  void expire() {
    for (;;) {
      size_t oldest = 0;
      for (size_t i = 1; i < cuts.size(); ++i)
        if (oldest == 0 || cuts[i].named < cuts[oldest].named) oldest = i;
      if (oldest == 0 || cuts[oldest].named + window() >= clock) break;
      cuts.erase(cuts.begin() + static_cast<ptrdiff_t>(oldest));
    }
    std::erase_if(candidates, [&](const auto& entry) { return entry.second + window() < clock; });
  }
  void name(uint64_t address) {
    ++clock;
    tryCut(address);
    renew(address);
    expire();
  }
  void nameRange(uint64_t address, uint64_t bytes) {
    ++clock;
    if (bytes >= kPage && bytes <= (end - begin) / Arena::kWholeShare) {
      const size_t i = holder(address);
      if (address / kPage == cuts[i].begin / kPage)
        cuts[i].whole = std::max(cuts[i].whole, std::min(address + bytes, endOf(i)));
    }
    renew(address);
    expire();
  }
};

}  // namespace

TEST_CASE("an arena ends where there is no memory", "[arena]") {
  PieceTable table;
  std::vector<std::unique_ptr<Arena>> arenas;
  for (uint64_t i = 0; i < 100; ++i)
    arenas.push_back(std::make_unique<Arena>(table, nullptr, kBase + i * 16 * kPage,
                                             kBase + (i + 1) * 16 * kPage));
  t_no_memory = true;
  arenas.clear();  // throws from a destructor, else
  t_no_memory = false;
  CHECK(table.used() == 0);
  const Arena next(table, nullptr, kBase, kBase + kPage);
  CHECK(table.used() == 1);
}

TEST_CASE("one pass after the first shows an arena's tensors", "[arena]") {
  PieceTable table;
  Arena arena(table, nullptr, kBase, kBase + 100 * kPage);
  CHECK(arena.size() == 1);
  std::vector<uint64_t> tensors;
  for (uint64_t i = 0; i < 12; ++i) tensors.push_back(kBase + i * 8 * kPage + i * 4096);
  for (const uint64_t tensor : tensors) arena.name(tensor);
  CHECK(arena.size() == 1);
  for (const uint64_t tensor : tensors) arena.name(tensor);
  CHECK(arena.size() == 12);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Piece& piece = arena.name(tensors[i]);
    CHECK(piece.begin == tensors[i]);
    CHECK(piece.end == (i + 1 < tensors.size() ? tensors[i + 1] : arena.end()));
  }
  checkShape(arena, table);
}

TEST_CASE("an address that moves on makes no cut", "[arena]") {
  PieceTable table;
  Arena arena(table, nullptr, kBase, kBase + 400 * kPage);
  // A model's tensors, and a cache to whose end two kernels of each layer go.
  const uint64_t cache = kBase + 200 * kPage;
  uint64_t position = cache + 64;
  for (int round = 0; round < 300; ++round) {
    for (uint64_t i = 0; i < 50; ++i) {
      arena.name(kBase + i * 4 * kPage);
      if (i % 10 != 0) continue;
      arena.name(cache);
      arena.name(position);
      arena.name(position);
      position += kPage / 8;
    }
  }
  CHECK(arena.size() == 51);
  CHECK(arena.at(cache + 100 * kPage).begin == cache);
  CHECK(arena.candidates() < 4000);
}

TEST_CASE("cuts that nobody names go", "[arena]") {
  std::vector<uint32_t> gone;
  PieceTable table([&](uint32_t id) { gone.push_back(id); });
  Arena arena(table, nullptr, kBase, kBase + 64 * kPage,
              {.least_names = 500, .names_for_each_piece = 10});
  for (int round = 0; round < 3; ++round)
    for (uint64_t i = 0; i < 16; ++i) arena.name(kBase + i * 4 * kPage);
  CHECK(arena.size() == 16);
  const uint32_t id = arena.at(kBase + 8 * kPage).id;
  for (int i = 0; i < 600; ++i) arena.name(kBase + 4 * kPage);
  CHECK(arena.size() == 2);
  CHECK(std::find(gone.begin(), gone.end(), id) != gone.end());
  CHECK(table.used() == 2);
  CHECK(arena.at(kBase + 60 * kPage).begin == kBase + 4 * kPage);
  checkShape(arena, table);
}

TEST_CASE("an address inside what copies name whole makes no cut", "[arena]") {
  PieceTable table;
  Arena arena(table, nullptr, kBase, kBase + 200 * kPage);
  const uint64_t tensor = kBase + 20 * kPage;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t part = 0; part < 5; ++part) arena.nameRange(tensor + part * 2 * kPage, 2 * kPage);
  }
  CHECK(arena.size() == 1);  // loaded in parts
  for (int i = 0; i < 20; ++i) arena.name(tensor);
  for (int round = 0; round < 20; ++round) {
    arena.nameRange(tensor, 10 * kPage);
    arena.name(tensor + 4 * kPage);
    arena.name(tensor + 10 * kPage);
  }
  CHECK(arena.at(tensor + 5 * kPage).begin == tensor);
  CHECK(arena.at(tensor + 5 * kPage).end == tensor + 10 * kPage);
  CHECK(arena.size() == 3);
  // One copy of nearly everything says nothing about what is in it.
  Arena other(table, nullptr, kBase, kBase + 200 * kPage);
  for (int round = 0; round < 20; ++round) {
    other.nameRange(kBase, 190 * kPage);
    other.name(tensor);
  }
  CHECK(other.size() == 2);
}

TEST_CASE("what is named more often is hotter", "[arena]") {
  PieceTable table;
  Arena arena(table, nullptr, kBase, kBase + 64 * kPage);
  for (int round = 0; round < 200; ++round)
    for (uint64_t i = 0; i < 16; ++i)
      if (i % 4 == 0 || round % 4 == 0) arena.name(kBase + i * 4 * kPage);
  for (uint64_t i = 1; i < 16; ++i)
    if (i % 4 != 0)
      CHECK(arena.heat(arena.at(kBase + i * 4 * kPage)) * 2 <
            arena.heat(arena.at(kBase + i / 4 * 16 * kPage)));
}

TEST_CASE("pieces and candidates are bounded", "[arena]") {
  std::mt19937_64 random = seededRandom("bounded arena");
  PieceTable table;
  {
    Arena arena(table, nullptr, kBase, kBase + 4096 * kPage,
                {.most_pieces = 32, .most_candidates = 64});
    std::vector<uint64_t> some;
    some.reserve(50);
    for (int i = 0; i < 50; ++i) some.push_back(kBase + random() % (4096 * kPage));
    for (int i = 0; i < 20000; ++i) {
      const uint64_t address =
          random() % 4 == 0 ? kBase + random() % (4096 * kPage) : some[random() % some.size()];
      const Piece& piece = arena.name(address);
      REQUIRE(piece.begin <= address);
      REQUIRE(piece.end > address);
      REQUIRE(arena.size() <= 33);
      REQUIRE(arena.candidates() <= 64);
    }
    checkShape(arena, table);
  }
  CHECK(table.used() == 0);
}

TEST_CASE("random names cut as the model does", "[arena]") {
  std::mt19937_64 random = seededRandom("arena against its model");
  for (int run = 0; run < 20; ++run) {
    PieceTable table;
    Arena::Options options;
    options.least_names = 50 + random() % 1000;
    options.names_for_each_piece = random() % 30;
    const uint64_t pages = 8 + random() % 300;
    Arena arena(table, nullptr, kBase, kBase + pages * kPage, options);
    Model model{options, kBase, kBase + pages * kPage, 0, {{kBase, 0, 0}}, {}};
    std::vector<uint64_t> tensors;
    for (uint64_t i = 0; i < 4 + random() % 60; ++i)
      tensors.push_back(kBase + random() % (pages * kPage / 256) * 256);
    size_t at = 0;
    for (int step = 0; step < 4000; ++step) {
      uint64_t address = tensors[at++ % tensors.size()];
      if (random() % 8 == 0) address = kBase + random() % (pages * kPage);
      if (random() % 64 == 0)
        tensors[random() % tensors.size()] = kBase + random() % (pages * kPage);
      if (random() % 5 == 0) {
        const uint64_t bytes = 1 + random() % (kBase + pages * kPage - address);
        arena.nameRange(address, bytes);
        model.nameRange(address, bytes);
      } else {
        const Piece& piece = arena.name(address);
        model.name(address);
        REQUIRE(piece.begin == model.cuts[model.holder(address)].begin);
      }
      REQUIRE(arena.size() == model.cuts.size());
      REQUIRE(arena.candidates() == model.candidates.size());
      if (step % 50 != 0) continue;
      size_t i = 0;
      arena.overlapping(arena.begin(), arena.end() - arena.begin(), [&](const Piece& piece) {
        REQUIRE(piece.begin == model.cuts[i].begin);
        REQUIRE(piece.end == model.endOf(i));
        ++i;
      });
      checkShape(arena, table);
    }
  }
}
