// libFuzzer target: records of the directory's messages (coherence/pages). Any bytes are either
// refused, with nothing heard, or messages that, encoded and decoded again, are the same. Agents
// and the home take any message that is heard without harm.
#include <cstdlib>

#include "coherence/directory/agent.h"
#include "coherence/directory/directory.h"
#include "coherence/pages/batch.h"

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  using namespace olpager;
  using namespace olpager::directory;
  constexpr ExtentId kExtents = 64;
  std::vector<Message> messages;
  if (!pages::decode({reinterpret_cast<const std::byte*>(data), size}, kExtents, messages).ok()) {
    if (!messages.empty()) std::abort();
    return 0;
  }
  std::vector<Message> again;
  for (std::span<const Message> left = messages; !left.empty();) {
    const std::vector<std::byte> record = pages::encode(left);
    if (!pages::decode(record, kExtents, again).ok()) std::abort();
  }
  if (again != messages) std::abort();
  // Three agents and a home that have heard nothing before.
  Directory home;
  std::vector<Agent> agents;
  for (AgentId id = 0; id < 3; ++id) {
    home.join(id);
    agents.emplace_back(id);
    agents.back().resize(kExtents);
  }
  home.allocate(0, kExtents);
  for (Age age = 0; age < 4; ++age) home.sent(home.operation(), static_cast<AgentId>(age % 2));
  Actions actions;
  if (messages.size() > 4096) return 0;
  for (const Message& message : messages) {
    if (message.to == kHome) {
      home.receive(message, actions);
    } else if (message.to < agents.size()) {
      agents[message.to].receive(message, actions);
    }
    actions.clear();
  }
  return 0;
}
