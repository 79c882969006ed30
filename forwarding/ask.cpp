#include "forwarding/ask.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>

#include "base/text.h"
#include "coherence/status/ask.h"
#include "coherence/transport/from_settings.h"
#include "coherence/transport/transport.h"

namespace olpager::forward {
namespace {

// The Error for a daemon of another kind at a gpunode's address.
Error otherDaemon(const std::string& gpunode, const std::string& its_kind) {
  const std::string kind = base::printable(its_kind);
  return Error{"gpunode " + gpunode + ": it is no gpunode but a " + kind +
               (kind == "memserver" ? ": that is named by --memserver" : "")};
}

// The Error for a peer that has taken a connection and does not know what a gpunode does: a daemon
// of another kind says which. `lasts`: as askGpunode()'s.
Error noGpunode(const transport::Options& options, const std::string& gpunode, uint32_t answer_ms,
                const std::string& otherwise, bool& lasts) {
  const std::string name = "gpunode " + gpunode + ": ";
  auto asker = status::Asker::make(options, gpunode, answer_ms);
  const auto told = asker.ok() ? asker.value()->ask() : Result<status::Told>(asker.error());
  lasts |= told.ok();
  if (!told.ok() || told.value().status.kind == "gpunode") return Error{name + otherwise};
  return otherDaemon(gpunode, told.value().status.kind);
}

// A message each way: no shared memory for that, and no card.
transport::Options toAsk(transport::Options options, uint32_t connect_ms) {
  options.choice = transport::Choice::kTcp;
  options.rails.clear();
  options.connect_ms = connect_ms;
  return options;
}

}  // namespace

Result<SessionReply> askGpunode(const base::Settings& settings, const std::string& gpunode,
                                const SessionRequest& request, uint32_t connect_ms,
                                uint32_t answer_ms, bool* tells) {
  using Clock = std::chrono::steady_clock;
  const std::string name = "gpunode " + gpunode + ": ";
  bool nobody_asks = false;
  bool& lasts = tells != nullptr ? *tells : nobody_asks;
  lasts = true;  // what is said here
  const auto wanted = transport::optionsFrom(settings, gpunode);
  if (!wanted.ok()) return wanted.error();
  // A check for the session's own connection, before there is a session.
  if (auto status = transport::checkChoice(wanted.value(), gpunode); !status.ok())
    return Error{"gpunode " + status.error().message};  // which names the address
  const transport::Options options = toAsk(wanted.value(), connect_ms);
  auto node = transport::makeEndpoint(options);
  if (!node.ok()) return node.error();
  lasts = false;
  auto queue = node.value()->makeQueue();
  auto link = node.value()->connect(
      gpunode,
      {.domain = transport::makeDomain(), .queue = queue, .replaces = "", .lasts = &lasts});
  if (!link.ok()) return Error{"gpunode " + link.error().message};  // which names the address
  if (link.value()->send(transport::MessageClass::kRequest,
                         std::as_bytes(std::span(&request, 1))) != transport::Outcome::kOk)
    return Error{name + link.value()->reason()};
  const auto end = Clock::now() + std::chrono::milliseconds(answer_ms);
  for (;;) {
    transport::Completion one[1];
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now());
    // Completions that came while this thread did not run are there.
    if (queue->wait(one, std::max(left, left.zero())) == 0)
      return Error{name + "it did not answer in time"};
    if (one[0].kind == transport::Completion::Kind::kDown)
      return noGpunode(options, gpunode, answer_ms, link.value()->reason() + "; is it a gpunode?",
                       lasts);
    if (one[0].kind != transport::Completion::Kind::kMessage) continue;
    SessionReply reply;
    const auto bytes = one[0].message.bytes();
    if (bytes.size() != sizeof reply)
      return noGpunode(options, gpunode, answer_ms, "it is no gpunode", lasts);
    std::memcpy(&reply, bytes.data(), sizeof reply);
    lasts = reply.magic != kSessionMagic;
    if (lasts) return Error{name + "it is no gpunode"};
    one[0] = {};
    link.value()->close("done");
    return reply;
  }
}

Result<std::vector<std::string>> askForGpus(const base::Settings& settings,
                                            const std::string& gpunode, uint32_t connect_ms,
                                            uint32_t answer_ms, bool* tells) {
  bool nobody_asks = false;
  bool& lasts = tells != nullptr ? *tells : nobody_asks;
  lasts = true;  // what is said here
  const auto wanted = transport::optionsFrom(settings, gpunode);
  if (!wanted.ok()) return wanted.error();
  auto asker = status::Asker::make(toAsk(wanted.value(), connect_ms), gpunode, answer_ms);
  if (!asker.ok()) return asker.error();
  const auto told = asker.value()->ask();
  if (!told.ok()) {
    lasts = asker.value()->lasts();
    return Error{"gpunode " + told.error().message};  // which names the address
  }
  if (told.value().status.kind != "gpunode") return otherDaemon(gpunode, told.value().status.kind);
  std::vector<std::string> uuids;
  for (const status::Device& device : told.value().status.devices) uuids.push_back(device.uuid);
  return uuids;
}

std::string textOf(const SessionReply& reply) {
  return base::printable({reply.text, strnlen(reply.text, sizeof reply.text)});
}

}  // namespace olpager::forward
