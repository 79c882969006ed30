// Where connections come from, and what share of the handshakes each place has: one that opens them
// without end shuts itself out before others. Nothing is known of a place but its address, so that
// all who share one share its share.
//
// Memory: one entry for each place that has a handshake under way or has begun one in this second;
// both are bounded by Limits. Thread-safety: none; the acceptor's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "base/format.h"

namespace olpager::transport {

class Sources {
 public:
  struct Source {
    uint64_t id = 0;
    uint32_t under_way = 0;
    uint32_t begun = 0;  // in this second
  };

  explicit Sources(uint32_t most_a_second) : most_(most_a_second) {}

  /// A connection from the place `id` (SocketAddress::source()) is there. Stays valid until
  /// leave().
  Source* enter(uint64_t id) {
    Source& source = all_[id];
    source.id = id;
    ++source.under_way;
    return &source;
  }
  void leave(Source* source) {
    --source->under_way;
    if (source->under_way == 0 && source->begun == 0) all_.erase(source->id);
  }

  /// A connection from there begins a handshake: "", or why it may not.
  std::string begin(Source* source, int64_t now_ms) {
    if (now_ms / 1000 != second_) {
      second_ = now_ms / 1000;
      begun_ = 0;
      for (auto& [id, each] : all_) each.begun = 0;
      std::erase_if(all_, [](const auto& item) { return item.second.under_way == 0; });
    }
    const uint32_t share = std::max(1u, most_ / kShare);
    if (source->begun >= share)
      return base::format("more than {} handshakes a second from one address", share);
    if (begun_ >= most_) return base::format("more than {} handshakes a second", most_);
    ++source->begun;
    ++begun_;
    return "";
  }

  /// The part of all that one of them may have: a quarter.
  static constexpr uint32_t kShare = 4;

 private:
  const uint32_t most_;
  std::unordered_map<uint64_t, Source> all_;
  int64_t second_ = 0;
  uint32_t begun_ = 0;
};

}  // namespace olpager::transport
