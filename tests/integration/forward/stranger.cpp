// Gets a session of its own and knocks at another's worker with its key: stranger GPUNODE SESSION.
// A line for each answer: "another's: REASON", "nobody's: REASON" and "own: connected"; else what
// went wrong. And at where nobody is. stranger GPUNODE: connects and says nothing; a line when it
// hears why its link has ended.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "base/settings.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/ask.h"
#include "interpose/api/forward_functions.h"

using namespace olpager;

namespace {

int run(const std::string& gpunode, uint64_t others) {
  forward::SessionRequest request;
  request.process = static_cast<uint32_t>(getpid());
  request.specification = forward::kSpecification;
  std::strncpy(request.program, "stranger", sizeof request.program - 1);
  const auto reply = forward::askGpunode({}, gpunode, request, 5000, 20000);
  if (!reply.ok() || reply.value().refused != 0) {
    std::printf("no session: %s\n", reply.ok() ? forward::textOf(reply.value()).c_str()
                                               : reply.error().message.c_str());
    return 1;
  }
  transport::NamedKey key{forward::kSessionKeyName, {}};
  std::memcpy(key.secret.data(), reply.value().key, sizeof reply.value().key);
  transport::Options options;
  options.tls = transport::Tls::kOff;
  options.keys = std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{key});
  auto node = transport::makeEndpoint(options);
  if (!node.ok()) {
    std::printf("no endpoint: %s\n", node.error().message.c_str());
    return 1;
  }
  const uint64_t own = reply.value().session;
  for (const auto& [whose, route] :
       {std::pair("another's", others), std::pair("nobody's", ~others), std::pair("own", own)}) {
    const auto link = node.value()->connect(
        gpunode, {transport::makeDomain(), node.value()->makeQueue(), "", route});
    std::printf("%s: %s\n", whose, link.ok() ? "connected" : link.error().message.c_str());
  }
  return 0;
}

int saysNothing(const std::string& gpunode) {
  auto node = transport::makeEndpoint({});
  if (!node.ok()) return 1;
  const auto queue = node.value()->makeQueue();
  const auto link = node.value()->connect(gpunode, {transport::makeDomain(), queue, ""});
  if (!link.ok()) {
    std::printf("no link: %s\n", link.error().message.c_str());
    return 1;
  }
  transport::Completion completion;
  do {
    if (queue->wait({&completion, 1}, std::chrono::seconds(60)) == 0) return 1;
  } while (completion.kind != transport::Completion::Kind::kDown);
  std::printf("%s\n", link.value()->reason().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  try {
    if (argc == 2) return saysNothing(argv[1]);
    return run(argv[1], std::strtoull(argv[2], nullptr, 16));
  } catch (const std::exception& failure) {
    std::printf("%s\n", failure.what());
    return 1;
  }
}
