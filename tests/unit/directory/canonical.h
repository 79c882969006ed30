// A world as a number: equal for worlds that go on alike. Transactions and contents are told by
// their order alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coherence/directory/types.h"

namespace olpager::directory::test {

class Canonical {
 public:
  template <typename World>
  uint64_t of(const World& world) {
    tokens_.clear();
    for (auto& list : known_) list.clear();
    world.describe(*this);
    for (auto& list : known_) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    uint64_t hash = 0x243F6A8885A308D3u;
    for (const Token& token : tokens_) {
      uint64_t value = token.value;
      if (token.list != kPlain) {
        const auto& list = known_[token.list];
        value = static_cast<uint64_t>(std::lower_bound(list.begin(), list.end(), value) -
                                      list.begin()) |
                uint64_t{1} << 40;
      }
      hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
      hash *= 0xBF58476D1CE4E5B9u;
      hash ^= hash >> 32;
    }
    return hash;
  }

  void value(uint64_t value) { tokens_.push_back({value, kPlain}); }
  void number(ExtentId extent, Number number) { named(extent * 2, number); }
  void content(ExtentId extent, Content content) { named(extent * 2, content); }
  void stamp(ExtentId extent, uint64_t stamp) { named(extent * 2 + 1, stamp); }
  void message(const Message& m) {
    value(static_cast<uint64_t>(m.kind) | uint64_t{m.from} << 8 | uint64_t{m.to} << 16 |
          static_cast<uint64_t>(m.mode) << 24 | uint64_t{m.taker} << 32);
    value(m.extent);
    value(m.age);
    // A Get tells no number that anybody looks at.
    number(m.extent, m.kind == MessageKind::kGet ? 0 : m.number);
    value(m.served);
    if (m.kind == MessageKind::kReady) content(m.extent, m.content);
  }

 private:
  static constexpr uint32_t kLists = 32;
  static constexpr uint32_t kPlain = kLists;
  struct Token {
    uint64_t value;
    uint32_t list;
  };
  void named(uint32_t list, uint64_t value) {
    tokens_.push_back({value, list});
    // Zero is none, and stays the least.
    known_[list].push_back(0);
    known_[list].push_back(value);
  }
  std::vector<Token> tokens_;
  std::vector<uint64_t> known_[kLists];
};

}  // namespace olpager::directory::test
