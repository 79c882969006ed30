// Records of messages as executors send them to the home. Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "coherence/pages/batch.h"
#include "forwarding/wire/pages_wire.h"

namespace olpager::unified::test {

/// A record of the first messages, as many as go into one. Further messages stay in `messages`.
inline std::vector<std::byte> takeRecord(std::span<const directory::Message>& messages) {
  const forward::PagesHead head;
  std::vector<std::byte> record(sizeof head);
  std::memcpy(record.data(), &head, sizeof head);
  const auto body = pages::encode(messages);
  record.insert(record.end(), body.begin(), body.end());
  return record;
}
/// A record of a few messages.
inline std::vector<std::byte> recordOf(std::span<const directory::Message> messages) {
  return takeRecord(messages);
}

}  // namespace olpager::unified::test
