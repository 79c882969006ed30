// The sources of connections, and each one's share of the handshakes: a source that opens them
// without end shuts itself out before others. All connections from one address share its share, but
// those whose greeting has the tag of a key (greetingTag()) have one for themselves: a stranger
// without the key takes nothing of theirs.
//
// Memory: one entry for each place that has a handshake under way or has begun one in this second;
// both are bounded by Limits. Thread-safety: none; the acceptor's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/format.h"

namespace olpager::transport {

class Sources {
 public:
  struct Source {
    uint64_t id = 0;
    std::string key;  // its name; "": of no key that is known here
    uint32_t under_way = 0;
    uint32_t begun = 0;  // in this second
  };

  /// `keyed`: whether there are keys at all. Without them nobody is told from others.
  Sources(uint32_t most_a_second, bool keyed) : most_(most_a_second), keyed_(keyed) {}

  /// A connection from the place `id` (SocketAddress::source()) is there. Stays valid until
  /// leave().
  Source* enter(uint64_t id, const std::string& key = "") {
    Source& source = all_[{id, key}];
    source.id = id;
    source.key = key;
    ++source.under_way;
    return &source;
  }
  void leave(Source* source) {
    --source->under_way;
    if (source->under_way == 0 && source->begun == 0) all_.erase({source->id, source->key});
  }
  /// The connection counts among those of the key from now on. Stays valid likewise.
  Source* recognise(Source* source, const std::string& key) {
    if (source->key == key) return source;
    Source* const other = enter(source->id, key);
    leave(source);
    return other;
  }

  /// A connection from there begins a handshake: "", or why it may not.
  std::string begin(Source* source, int64_t now_ms) {
    if (now_ms / 1000 != second_) {
      second_ = now_ms / 1000;
      of_keys_ = 0;
      begun_.clear();
      for (auto& [id, each] : all_) each.begun = 0;
      std::erase_if(all_, [](const auto& item) { return item.second.under_way == 0; });
    }
    const bool known = !source->key.empty();
    const uint32_t share = std::max(1u, most_ / kShare);
    const uint32_t of_key = keyed_ ? std::max(share, most_ / kKeyShare) : most_;
    uint32_t& begun = begun_[source->key];
    if (source->begun >= share)
      return base::format("more than {} handshakes a second from one address{}", share,
                          known ? " with one key" : "");
    if (begun >= of_key)
      return base::format("more than {} handshakes a second{}", of_key,
                          known ? " with one key" : "");
    if (known && of_keys_ >= most_) return base::format("more than {} handshakes a second", most_);
    ++source->begun;
    ++begun;
    if (known) ++of_keys_;
    return "";
  }

  /// The part of all that one of them may have: a quarter.
  static constexpr uint32_t kShare = 4;
  /// And all who have one key, or none: half.
  static constexpr uint32_t kKeyShare = 2;

 private:
  const uint32_t most_;
  const bool keyed_;
  std::map<std::pair<uint64_t, std::string>, Source> all_;
  int64_t second_ = 0;
  std::map<std::string, uint32_t> begun_;  // by the key's name
  uint32_t of_keys_ = 0;                   // with any
};

}  // namespace olpager::transport
