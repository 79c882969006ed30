// A client of a gpunode that writes its records by itself: for tests of what a worker makes of
// them. Failures are thrown. Thread-safety: none.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/settings.h"
#include "coherence/calls/channel.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/ask.h"
#include "forwarding/wire/wire.h"
#include "interpose/api/driver_symbols.h"
#include "interpose/api/forward_functions.h"

namespace olpager::test {

using namespace std::chrono_literals;
using forward::Operation;

/// A session with a gpunode whose records its user writes.
class RawSession {
 public:
  /// As the program's session number `slot` of `slots`.
  void open(const std::string& gpunode, const char* program, uint32_t slot = 0, uint32_t slots = 1,
            bool unified = false) {
    context_ = forward::primaryHandle(unified ? forward::kCommonSlot : slot, 0);
    forward::SessionRequest request;
    request.process = static_cast<uint32_t>(getpid());
    request.processes = base::processNamespace();
    request.specification = forward::kSpecification;
    std::strncpy(request.program, program, sizeof request.program - 1);
    request.slot = slot;
    request.slots = slots;
    request.unified = unified ? 1 : 0;
    const auto reply = need(forward::askGpunode({}, gpunode, request, 5000, 20000));
    if (reply.refused != 0) throw std::runtime_error(forward::textOf(reply));
    transport::NamedKey key{forward::kSessionKeyName, {}};
    std::memcpy(key.secret.data(), reply.key, sizeof reply.key);
    transport::Options options;
    options.tls = transport::Tls::kOff;
    options.keys =
        std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{key});
    options.silent_ms = 0;  // it does not mind when it hears nothing
    key_ = key.secret;
    session_ = reply.session;
    gpunode_ = gpunode;
    grace_ms_ = reply.grace_ms;
    if (const char* const choice = std::getenv("OL_TRANSPORT"); choice != nullptr)
      options.choice =
          std::string(choice) == "tcp" ? transport::Choice::kTcp : transport::Choice::kShm;
    options_ = options;
    node_ = need(transport::makeEndpoint(options));
    auto queue = node_->makeQueue();
    const auto link =
        need(node_->connect(gpunode, {transport::makeDomain(), queue, "", reply.session}));
    const uint64_t taken = need(calls::greet(*link, *queue, 0, 5s));
    if (auto attached = channel_.attach(link, queue, taken); !attached.ok())
      throw std::runtime_error(attached.error().message);
  }

  /// The arguments' place.
  forward::Writer begin(uint16_t function, bool waits, uint16_t flags = 0) {
    forward::Writer call;
    call.value(forward::CallHead{function, flags, waits ? ++number_ : 0, context_, 1, 0});
    return call;
  }
  forward::Writer begin(Operation operation, bool waits, uint16_t flags = 0) {
    return begin(static_cast<uint16_t>(operation), waits, flags);
  }
  forward::Writer begin(api::Symbol symbol, bool waits, uint16_t flags = 0) {
    return begin(static_cast<uint16_t>(symbol), waits, flags);
  }
  void send(const forward::Writer& call, bool flush = false) {
    if (!channel_.write({call.bytes}, flush)) throw std::runtime_error(channel_.reason());
  }
  /// Sends it and waits for its answer, whose body is returned.
  std::vector<std::byte> ask(const forward::Writer& call) {
    send(call, true);
    std::vector<std::byte> record;
    for (int i = 0; i < 100; ++i) {
      if (channel_.read(record, 300ms) == calls::Channel::Read::kDown)
        throw std::runtime_error(channel_.reason());
      forward::Reader reader(record);
      const auto head = reader.value<forward::AnswerHead>();
      if (reader.ok() && head.kind == forward::Answer::kFailed) ++failures_;
      if (reader.ok() && head.kind == forward::Answer::kEnds)
        throw std::runtime_error(
            std::string(reinterpret_cast<const char*>(record.data()) + sizeof head,
                        record.size() - sizeof head));
      if (!reader.ok() || head.kind != forward::Answer::kReply || head.number != number_) continue;
      if (head.result != CUDA_SUCCESS)
        throw std::runtime_error("a call failed: " + std::to_string(head.result));
      return {record.begin() + sizeof head, record.end()};
    }
    throw std::runtime_error("no answer");
  }

  /// Calls that nobody waited for and that have failed, as far as ask() has heard.
  unsigned failures() const { return failures_; }
  /// The session's key and number, and the way to its worker.
  const transport::Secret& key() const { return key_; }
  uint64_t session() const { return session_; }
  const std::string& gpunode() const { return gpunode_; }
  uint32_t graceMs() const { return grace_ms_; }
  const transport::Options& options() const { return options_; }

 private:
  template <typename T>
  static T need(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message);
    return std::move(result).value();
  }

  std::unique_ptr<transport::Endpoint> node_;
  calls::Channel channel_;
  uint64_t context_ = 0;  // that calls are made in
  uint32_t number_ = 0;
  unsigned failures_ = 0;
  transport::Secret key_{};
  uint64_t session_ = 0;
  std::string gpunode_;
  uint32_t grace_ms_ = 0;
  transport::Options options_;
};

/// The handle at the end of an answer.
inline uint64_t lastWord(const std::vector<std::byte>& body) {
  uint64_t word = 0;
  if (body.size() >= sizeof word)
    std::memcpy(&word, body.data() + body.size() - sizeof word, sizeof word);
  return word;
}

}  // namespace olpager::test
