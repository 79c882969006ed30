#include "gpunode/supervisor/query.h"

#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"
#include "interpose/forward/session_protocol.h"

namespace olpager::gpunode {

Result<std::string> askState(const SupervisorOptions& options) {
  using namespace std::chrono_literals;
  transport::Options network;
  network.tls = options.tls;
  network.choice = transport::Choice::kTcp;
  if (!options.key.empty()) {
    auto keys = transport::loadKeys(options.key);
    if (!keys.ok()) return keys.error();
    network.keys = std::move(keys).value();
  }
  auto node = transport::makeEndpoint(network);
  if (!node.ok()) return node.error();
  auto queue = node.value()->makeQueue();
  auto link = node.value()->connect(options.listen, {transport::makeDomain(), queue, ""});
  if (!link.ok()) return link.error();
  forward::SessionRequest request;
  request.ask = forward::SessionAsk::kList;
  if (link.value()->send(transport::MessageClass::kRequest, std::as_bytes(std::span(&request, 1))) !=
      transport::Outcome::kOk)
    return Error{link.value()->reason()};
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (std::chrono::steady_clock::now() < end) {
    transport::Completion one[1];
    if (queue->wait(one, 100ms) == 0) continue;
    if (one[0].kind == transport::Completion::Kind::kDown) return Error{link.value()->reason()};
    if (one[0].kind != transport::Completion::Kind::kMessage) continue;
    const auto bytes = one[0].message.bytes();
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (char& c : text) {
      if (c != '\n' && (c < ' ' || c > '~')) c = '?';
    }
    one[0] = {};
    link.value()->close("done");
    return text;
  }
  return Error{options.listen + " did not answer in time"};
}

}  // namespace olpager::gpunode
