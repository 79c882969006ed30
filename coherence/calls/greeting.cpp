#include "coherence/calls/greeting.h"

#include <algorithm>
#include <cstring>

namespace olpager::calls {
namespace {

using transport::Completion;

constexpr uint32_t kMagic = 0x6c6c6143;  // "Call"
constexpr uint32_t kVersion = 1;

struct Greeting {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t taken = 0;
};
static_assert(sizeof(Greeting) == 16);

Status say(transport::Link& link, uint64_t taken) {
  const Greeting greeting{.taken = taken};
  const auto sent =
      link.send(transport::MessageClass::kNotice, std::as_bytes(std::span(&greeting, 1)));
  if (sent != transport::Outcome::kOk)
    return Error{std::string("the greeting can't be sent: ") + outcomeName(sent)};
  return {};
}

Result<uint64_t> hear(transport::Link& link, transport::CompletionQueue& queue,
                      std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    Completion one[1];
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        end - std::chrono::steady_clock::now());
    // Completions that came while this thread did not run are there.
    if (queue.wait(one, std::max(left, left.zero())) == 0)
      return Error{"no greeting within the time"};
    if (one[0].link.get() != &link) continue;  // of a link before this one
    if (one[0].kind == Completion::Kind::kDown) return Error{link.reason()};
    if (one[0].kind != Completion::Kind::kMessage) continue;
    Greeting heard;
    if (one[0].message.bytes().size() != sizeof heard) return Error{"this is no greeting"};
    std::memcpy(&heard, one[0].message.bytes().data(), sizeof heard);
    if (heard.magic != kMagic) return Error{"this is no greeting"};
    if (heard.version != kVersion) return Error{"the other end speaks another version of calls"};
    return heard.taken;
  }
}

}  // namespace

Result<uint64_t> greet(transport::Link& link, transport::CompletionQueue& queue, uint64_t taken,
                       std::chrono::milliseconds timeout) {
  if (auto said = say(link, taken); !said.ok()) return said.error();
  return hear(link, queue, timeout);
}

Result<uint64_t> answerGreeting(transport::Link& link, transport::CompletionQueue& queue,
                                uint64_t taken, std::chrono::milliseconds timeout) {
  auto heard = hear(link, queue, timeout);
  if (!heard.ok()) return heard;
  if (auto said = say(link, taken); !said.ok()) return said.error();
  return heard;
}

}  // namespace olpager::calls
