#include "gpunode/supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/log.h"
#include "coherence/transport/trust/keys.h"
#include "gpunode/worker/setup.h"
#include "interpose/api/forward_functions.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using forward::SessionAsk;
using forward::SessionReply;
using forward::SessionRequest;

constexpr auto kRemembered = 60s;  // an ended session
constexpr auto kStart = 25s;       // of a worker
constexpr int kTickMs = 500;

// What a peer calls itself, as a log takes it.
std::string printable(const char* text, size_t most) {
  std::string out(text, strnlen(text, most));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

std::string hostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

uint32_t portOf(const std::string& address) {
  const auto colon = address.rfind(':');
  return colon == std::string::npos ? 0 : static_cast<uint32_t>(std::strtoul(address.c_str() + colon + 1, nullptr, 10));
}

std::string howItEnded(int status) {
  if (WIFSIGNALED(status)) return fmt::format("its worker was killed by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return fmt::format("its worker ended with status {}", WEXITSTATUS(status));
  return "its worker has ended it";
}

}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, std::string worker, std::string library, std::string sim)
    : options_(options), worker_(std::move(worker)), library_(std::move(library)), sim_(std::move(sim)) {}

Supervisor::~Supervisor() {
  for (auto& [id, session] : sessions_) {
    if (session.pid > 0) kill(session.pid, SIGKILL);
  }
}

Status Supervisor::start() {
  transport::Options network;
  network.tls = options_.tls;
  network.choice = transport::Choice::kTcp;  // a message each way
  network.io_threads = 1;
  if (!options_.key.empty()) {
    auto keys = transport::loadKeys(options_.key);
    if (!keys.ok()) return keys.error();
    network.keys = std::move(keys).value();
    // A session's key travels here: never in clear where there is a key to encrypt it with.
    if (network.tls == transport::Tls::kOff) network.tls = transport::Tls::kControl;
  }
  auto node = transport::makeEndpoint(network);
  if (!node.ok()) return node.error();
  node_ = std::move(node).value();
  queue_ = node_->makeQueue();
  auto listener = node_->listen(options_.listen, [this](const transport::PeerInfo&) -> Result<transport::Accepted> {
    return transport::Accepted{transport::makeDomain(), queue_};
  });
  if (!listener.ok()) return listener.error();
  listener_ = std::move(listener).value();
  sigset_t mine;
  sigemptyset(&mine);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&mine, signal);
  signals_.reset(signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return Error{std::string("signalfd: ") + std::strerror(errno)};
  return {};
}

int Supervisor::run() {
  for (;;) {
    std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}, {queue_->eventFd(), POLLIN, 0}};
    std::vector<uint64_t> starting;
    for (auto& [id, session] : sessions_) {
      if (!session.setup) continue;
      fds.push_back({session.setup.get(), POLLIN, 0});
      starting.push_back(id);
    }
    if (poll(fds.data(), fds.size(), kTickMs) < 0 && errno != EINTR) return 1;
    signalfd_siginfo got{};
    while (read(signals_.get(), &got, sizeof got) == sizeof got) {
      if (got.ssi_signo != SIGCHLD) {
        base::logInfo("ending: %zu session(s) end with it", sessions_.size());
        return 0;
      }
    }
    reap();
    for (size_t i = 0; i < starting.size(); ++i) {
      const auto found = sessions_.find(starting[i]);
      if (found == sessions_.end() || !found->second.setup) continue;
      const bool late = std::chrono::steady_clock::now() - found->second.since > kStart;
      if (fds[2 + i].revents != 0)
        ready(found->second);
      else if (late)
        kill(found->second.pid, SIGKILL);
    }
    transport::Completion completions[16];
    while (const size_t count = queue_->poll(completions)) {
      for (size_t i = 0; i < count; ++i) take(completions[i]);
    }
    forgetOld();
  }
}

void Supervisor::take(transport::Completion& completion) {
  if (completion.kind == transport::Completion::Kind::kDown) {
    for (auto& [id, session] : sessions_) {
      if (session.client != completion.link) continue;
      session.client.reset();
      // Nobody else can come to it: its worker would wait for a client, and hold a session.
      if (session.setup && session.pid > 0) {
        session.left = true;
        kill(session.pid, SIGKILL);
      }
    }
    return;
  }
  if (completion.kind != transport::Completion::Kind::kMessage) return;
  const auto bytes = completion.message.bytes();
  SessionRequest request;
  if (bytes.size() != sizeof request) {
    completion.link->close("this is no request for a session");
    return;
  }
  std::memcpy(&request, bytes.data(), sizeof request);
  completion.message = {};
  if (request.magic != forward::kSessionMagic || request.version != forward::kSessionVersion) {
    completion.link->close("the client speaks another version");
    return;
  }
  if (request.ask == SessionAsk::kList) {
    list(completion.link, request);
  } else if (request.ask == SessionAsk::kOpen) {
    open(completion.link, request);
  } else if (request.ask == SessionAsk::kWouldOpen) {
    wouldOpen(completion.link, request);
  } else {
    tell(completion.link, request);
  }
}

void Supervisor::refuse(const transport::LinkPtr& client, const std::string& why) {
  SessionReply reply;
  reply.refused = 1;
  std::strncpy(reply.text, why.c_str(), sizeof reply.text - 1);
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

size_t Supervisor::running() const {
  return static_cast<size_t>(
      std::count_if(sessions_.begin(), sessions_.end(), [](const auto& one) { return one.second.ended.empty(); }));
}

// "", or why there can be no session.
std::string Supervisor::inTheWay(const SessionRequest& request) const {
  if (request.specification != forward::kSpecification)
    return "the client and the gpunode are of different versions of olpager";
  if (running() >= options_.sessions)
    return fmt::format("it has {} sessions already, the most (--sessions)", running());
  return "";
}

void Supervisor::wouldOpen(const transport::LinkPtr& client, const SessionRequest& request) {
  if (const std::string why = inTheWay(request); !why.empty()) return refuse(client, why);
  SessionReply reply;
  const std::string text = fmt::format("{} of at most {} sessions", running(), options_.sessions);
  std::strncpy(reply.text, text.c_str(), sizeof reply.text - 1);
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

void Supervisor::open(const transport::LinkPtr& client, const SessionRequest& request) {
  if (const std::string why = inTheWay(request); !why.empty()) return refuse(client, why);
  Session session;
  while (session.id == 0 || sessions_.contains(session.id)) {
    if (getrandom(&session.id, sizeof session.id, 0) != sizeof session.id) session.id = 0;
  }
  if (getrandom(session.reply.key, sizeof session.reply.key, 0) != sizeof session.reply.key)
    return refuse(client, "it has no random numbers");
  session.reply.session = session.id;
  // A client gives up before its worker does: what it could still resume is still there.
  session.reply.grace_ms = options_.grace_ms * 2 / 3;
  session.program = printable(request.program, sizeof request.program);
  session.peer = client->peer().address;
  session.key_name = client->peer().key_name;
  session.client = client;
  session.since = std::chrono::steady_clock::now();
  if (auto spawned = spawn(session, hostOf(listener_->address())); !spawned.ok()) {
    base::logError("%s", spawned.error().message.c_str());
    return refuse(client, spawned.error().message);
  }
  base::logInfo("session %016llx: %s of %s%s%s, worker %d", static_cast<unsigned long long>(session.id),
                session.program.c_str(), session.peer.c_str(), session.key_name.empty() ? "" : " with key ",
                session.key_name.c_str(), session.pid);
  sessions_.emplace(session.id, std::move(session));
}

// One line for each session, as many as a message holds; a key's holder sees its own.
void Supervisor::list(const transport::LinkPtr& client, const SessionRequest& /*request*/) {
  std::string text;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& [id, session] : sessions_) {
    if (session.key_name != client->peer().key_name) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - session.since).count();
    std::string line = fmt::format("{:016x}  {:<8} {:>8} s  {:<24} {}\n", id,
                                   !session.ended.empty() ? "ended"
                                   : session.setup        ? "starting"
                                                          : "running",
                                   seconds, session.program, session.ended.empty() ? session.peer : session.ended);
    if (text.size() + line.size() > client->maxMessageBytes()) break;
    text += line;
  }
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(text.data(), text.size())));
}

void Supervisor::tell(const transport::LinkPtr& client, const SessionRequest& request) {
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end()) return refuse(client, "the gpunode knows of no such session: it was started anew");
  if (!found->second.ended.empty()) return refuse(client, "the session has ended: " + found->second.ended);
  SessionReply reply;
  reply.session = request.session;
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

Status Supervisor::spawn(Session& session, const std::string& host) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error{fmt::format("a worker can't be started: {}", std::strerror(errno))};
  base::UniqueFd own(ends[0]), workers(ends[1]);
  WorkerSetup setup;
  setup.session = session.id;
  std::memcpy(setup.key, session.reply.key, sizeof setup.key);
  setup.transport = static_cast<uint32_t>(options_.choice);
  setup.tls = static_cast<uint32_t>(options_.key.empty() ? transport::Tls::kOff : options_.tls);
  setup.grace_ms = options_.grace_ms;
  std::strncpy(setup.listen, (host + ":0").c_str(), sizeof setup.listen - 1);
  std::strncpy(setup.library, library_.c_str(), sizeof setup.library - 1);

  std::vector<std::string> environment;
  const auto ours = [](std::string_view entry) {
    for (const std::string_view name : {"OL_GPUNODE=", "OL_TRANSPORT=", "OL_DRIVER=", "OL_VRAM=", "OL_HOST=", "OL_LOG=",
                                        "LD_PRELOAD=", "OL_COUNTERS_KEEP="}) {
      if (entry.starts_with(name)) return true;
    }
    return false;
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!ours(*entry)) environment.emplace_back(*entry);
  }
  environment.emplace_back("OL_GPUNODE=none");  // the worker itself is local, whatever a file says
  environment.push_back(fmt::format("OL_LOG={}", base::logLevelName(options_.log)));
  if (!options_.driver.empty())
    environment.push_back("OL_DRIVER=" + (options_.driver == "sim" ? sim_ : options_.driver));
  if (!options_.vram.empty()) environment.push_back("OL_VRAM=" + options_.vram);
  if (!options_.memory.empty()) environment.push_back("OL_HOST=" + options_.memory);
  std::vector<char*> envp;
  for (auto& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);
  const std::string name = fmt::format("olgpunode-worker");
  char* const argv[] = {const_cast<char*>(name.c_str()), nullptr};

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return Error{fmt::format("a worker can't be started: {}", std::strerror(errno))};
  if (child == 0) {
    // Only what is safe between fork and exec.
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (workers.get() == kSetupFd) {
      (void)fcntl(kSetupFd, F_SETFD, 0);
    } else if (dup2(workers.get(), kSetupFd) < 0) {
      _exit(1);
    }
    execve(worker_.c_str(), argv, envp.data());
    _exit(127);
  }
  session.pid = child;
  session.setup = std::move(own);
  if (send(session.setup.get(), &setup, sizeof setup, MSG_NOSIGNAL) != sizeof setup)
    return Error{fmt::format("a worker can't be started: {}", std::strerror(errno))};
  explicit_bzero(setup.key, sizeof setup.key);
  return {};
}

// The worker has said something, or is gone.
void Supervisor::ready(Session& session) {
  WorkerReady said;
  const ssize_t got = recv(session.setup.get(), &said, sizeof said, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  session.setup.reset();
  const auto client = std::move(session.client);
  session.client.reset();
  if (got != sizeof said) {
    if (client) refuse(client, "its worker could not start; its log says why");
    return;
  }
  said.text[sizeof said.text - 1] = '\0';
  if (said.failed != 0) {
    if (client) refuse(client, said.text);
    return;
  }
  const std::string address = said.text;
  session.reply.port = portOf(address);
  base::logInfo("session %016llx is at %s", static_cast<unsigned long long>(session.id), address.c_str());
  if (client) (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&session.reply, 1)));
  explicit_bzero(session.reply.key, sizeof session.reply.key);
}

void Supervisor::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (auto& [id, session] : sessions_) {
      if (session.pid != pid) continue;
      session.ended = session.left ? "its client left while it started" : howItEnded(status);
      session.pid = 0;
      session.since = std::chrono::steady_clock::now();
      if (session.setup) ready(session);
      if (WIFSIGNALED(status) && !session.left) {
        base::logError("session %016llx (%s): %s", static_cast<unsigned long long>(id), session.program.c_str(),
                       session.ended.c_str());
      } else {
        base::logInfo("session %016llx (%s): %s", static_cast<unsigned long long>(id), session.program.c_str(),
                      session.ended.c_str());
      }
    }
  }
}

void Supervisor::forgetOld() {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(sessions_,
                [&](const auto& one) { return !one.second.ended.empty() && now - one.second.since > kRemembered; });
}

}  // namespace olpager::gpunode
