// libFuzzer target: what sessions and memservers say to each other. Any bytes are either refused,
// or a message that, encoded and decoded again, is the same.
#include <cstdlib>

#include "memserver/protocol.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  using namespace olpager::memserver;
  const auto message = protocol::decode({reinterpret_cast<const std::byte*>(data), size});
  if (!message.ok()) return 0;
  const auto bytes = protocol::encode(message.value());
  const auto again = protocol::decode(bytes);
  if (!again.ok() || again.value() != message.value()) std::abort();
  return 0;
}
