#include "interpose/forward/connection.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/process.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/from_settings.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/ask.h"
#include "forwarding/wire/peer_keys.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/read_environment.h"

namespace olpager::forward {
namespace {

using namespace std::chrono_literals;

constexpr auto kGreeting = 5s;
// To reach the worker, which is there: on a busy machine it may take several attempts. The worker
// waits somewhat longer.
constexpr auto kFirst = 12s;
constexpr std::chrono::milliseconds kRetry = 50ms;

}  // namespace

Status Connection::open(calls::Channel& channel) {
  SessionRequest request;
  request.process = static_cast<uint32_t>(getpid());
  request.processes = base::processNamespace();
  request.specification = kSpecification;
  std::strncpy(request.program, program_invocation_short_name, sizeof request.program - 1);
  request.slot = slot_;
  request.slots = slots_;
  request.beside = static_cast<uint8_t>(site_.beside);
  if (settings_.view == base::ViewSetting::kUnified) {
    request.unified = 1;
    request.exportable = base::ExportableSetting::kPager;  // what is the driver's moves nowhere
  } else {
    request.exportable = settings_.exportable;
  }
  request.driver = driverEnvironment(site_.gpunode == settings_.local_gpunode);
  // Among several gpunodes' devices the program's side chooses (devices.h).
  const char* const chosen = slots_ == 1 ? std::getenv("CUDA_VISIBLE_DEVICES") : nullptr;
  if (const char* const visible = site_.gpu.empty() ? chosen : site_.gpu.c_str();
      visible != nullptr) {
    if (std::strlen(visible) >= sizeof request.visible)
      return Error{"CUDA_VISIBLE_DEVICES is longer than the " +
                   std::to_string(sizeof request.visible - 1) + " characters that a gpunode takes"};
    request.sees_some = 1;
    std::strncpy(request.visible, visible, sizeof request.visible - 1);
  }
  auto reply = askPastOutage([&](bool* lasts) {
    return askGpunode(settings_, site_.gpunode, request, kConnectMs, kAnswerMs, lasts);
  });
  if (!reply.ok()) return reply.error();
  session_ = reply.value();
  if (session_.refused != 0)
    return Error{"gpunode " + site_.name + " refuses: " + textOf(session_)};
  auto network = transport::optionsFrom(settings_, site_.gpunode);
  if (!network.ok()) return network.error();
  transport::Options& options = network.value();
  transport::NamedKey key{kSessionKeyName, {}};
  static_assert(sizeof key.secret == sizeof session_.key);
  std::memcpy(key.secret.data(), session_.key, sizeof session_.key);
  // On loopback without keys nothing is encrypted either; the session's key only proves who is
  // there.
  if (!options.keys) options.tls = transport::Tls::kOff;
  tls_ = options.tls;
  options.keys = std::make_shared<const transport::KeyRing>(std::vector<transport::NamedKey>{key});
  // An answer that comes is progress.
  options.connect_answer_ms = connectMs();
  options.connect_ms = kConnectMs;
  options.silent_ms = silentMs(session_.grace_ms);
  options.ping_ms = std::min(options.ping_ms, options.silent_ms / 4);
  options.spin_us = awakeMicroseconds();
  setLanes(options);
  options_ = options;
  auto node = transport::makeEndpoint(options);
  if (!node.ok()) return node.error();
  node_ = std::move(node).value();
  // A worker that many connect to may be behind with taking connections for a moment.
  const auto end = std::chrono::steady_clock::now() + kFirst;
  for (;;) {
    bool lasts = false;
    Status joined = join(channel, kGreeting, &lasts);
    if (joined.ok() || lasts || std::chrono::steady_clock::now() > end) return joined;
    std::this_thread::sleep_for(kRetry);
  }
}

Status Connection::join(calls::Channel& channel, std::chrono::milliseconds greeting, bool* lasts) {
  auto queue = node_->makeQueue();
  auto link = node_->connect(site_.gpunode, {domain_, queue, link_, session_.session, lasts});
  if (!link.ok()) return Error{"worker at " + link.error().message};  // which names the address
  auto heard = calls::greet(*link.value(), *queue, channel.taken(), greeting);
  if (!heard.ok()) return Error{"worker at " + site_.gpunode + ": " + heard.error().message};
  link_ = link.value()->id();
  shares_memory_ = link.value()->peer().kind == transport::LinkKind::kShm;
  if (peer_address_.empty())
    peer_address_ = shares_memory_ ? site_.gpunode : link.value()->peer().address;
  return channel.attach(link.value(), queue, heard.value());
}

Status Connection::reopen(calls::Channel& channel) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(session_.grace_ms);
  const auto left = [&] {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()),
                    kRetry);
  };
  Status last = Error{"no time to connect again"};
  constexpr unsigned kAskAfter = 4;
  unsigned unanswered = 0;
  while (Clock::now() < end) {
    if (channel.closed()) return Error{channel.reason()};
    const auto begun = Clock::now();
    last = join(channel, std::min<std::chrono::milliseconds>(kGreeting, left()));
    if (last.ok()) return last;
    // Nobody answers at all: nor would the gpunode, and the time is better spent on the worker.
    const bool refused = Clock::now() - begun < std::chrono::milliseconds(connectMs()) / 2;
    if (!refused && ++unanswered % kAskAfter != 0) continue;
    SessionRequest request;
    request.ask = SessionAsk::kWhatBecameOf;
    request.session = session_.session;
    const auto most = static_cast<uint32_t>(left().count());
    if (auto reply = askGpunode(settings_, site_.gpunode, request, std::min(connectMs(), most),
                                std::min(kAnswerMs, most));
        reply.ok() && reply.value().refused != 0)
      return Error{textOf(reply.value())};
    std::this_thread::sleep_for(kRetry);
  }
  return last;
}

// For an attempt that nobody answers: while a network is out each is in vain, and the one after it
// finds that it is back.
uint32_t Connection::connectMs() const {
  return std::clamp(session_.grace_ms / 6, 500u, kConnectMs);
}

PageRoute Connection::pageRoute() const {
  transport::Secret session;
  std::memcpy(session.data(), session_.key, sizeof session_.key);
  PageRoute route{.gpunode = site_.gpunode,
                  .session = session_.session,
                  .key = pagesKey(session),
                  .options = options_,
                  .grace_ms = session_.grace_ms};
  route.options.keys = nullptr;
  route.options.lanes = 1;  // nothing of pages but messages goes over it
  route.options.io_threads = 1;
  return route;
}

void Connection::nameToPeer(unsigned slot, PeerLinkHead* head, std::string* address) const {
  transport::Secret session;
  std::memcpy(session.data(), session_.key, sizeof session_.key);
  const transport::NamedKey key = peerKey(session, slot);
  static_assert(sizeof head->key == sizeof key.secret);
  std::memcpy(head->key, key.secret.data(), sizeof head->key);
  head->slot = slot_;
  head->route = session_.session;
  head->tls = static_cast<uint32_t>(tls_);
  head->tcp_only = settings_.transport == base::TransportSetting::kTcp ? 1 : 0;
  *address = peer_address_;
}

}  // namespace olpager::forward
