// Long: one loop waits for all of a gpunode's descriptors.
#include "gpunode/supervisor/supervisor.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/daemon_log.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process.h"
#include "base/size.h"
#include "base/version.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/making_room.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/visible_devices.h"
#include "forwarding/wire/wire.h"
#include "gpunode/supervisor/cache_folder.h"
#include "gpunode/supervisor/launch_worker.h"
#include "gpunode/worker/named_sockets.h"
#include "interpose/api/forward_functions.h"
#include "pager/counters/files.h"
#include "pager/residency/budgets.h"

namespace olpager::gpunode {
namespace {

using namespace std::chrono_literals;
using forward::SessionAsk;
using forward::SessionReply;
using forward::SessionRequest;

constexpr auto kRemembered = 60s;  // an ended session
constexpr auto kStart = 25s;       // of a worker
constexpr auto kLookAgain = 10s;   // for a driver that could not start
constexpr auto kWait = 20s;  // of a client for another's session to end: it waits 30 for the answer
constexpr auto kEnd = 1s;    // of workers that have been told to
constexpr auto kSocketAge = 3s;  // removeDeadSockets() leaves younger ones
constexpr auto kDivideRam = 500ms;
constexpr auto kTogether = 30s;  // in which a program opens its sessions
constexpr int kTickMs = 500;
constexpr auto kAsk = 10s;  // a client asks as soon as it is connected; one that asks now and then
                            // (olpagestat) is back in time, or connects anew
constexpr uint32_t kMostLinks = 1024;
constexpr uint32_t kMessageBytes = 4096;  // of a client's
constexpr const char* kKeepCounters = "OL_COUNTERS_KEEP";

// Two descriptors each: half of all are left for workers and what else there is.
uint32_t mostLinks() {
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMostLinks;
  return static_cast<uint32_t>(std::clamp<rlim_t>(descriptors.rlim_cur / 4, 16, kMostLinks));
}

// A peer's name for itself, as a log takes it.
std::string printable(const char* text, size_t most) {
  std::string out(text, strnlen(text, most));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return out;
}

void sayNo(const transport::LinkPtr& client, const std::string& why) {
  SessionReply reply;
  reply.refused = 1;
  std::strncpy(reply.text, why.c_str(), sizeof reply.text - 1);
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

std::string howItEnded(int status) {
  if (WIFSIGNALED(status))
    return base::format("its worker was killed by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0)
    return base::format("its worker ended with status {}", WEXITSTATUS(status));
  return "its program has ended, or was gone for longer than the grace time";
}

// The client's own version is told by its --version: what it sent can't be read for sure.
std::string otherVersion() {
  return base::format(
      "the gpunode is olpager {} and the client another version: install one version on both "
      "(olrun --version)",
      base::kVersion);
}

}  // namespace

Supervisor::Supervisor(const SupervisorOptions& options, std::string worker, std::string library,
                       std::string sim)
    : options_(options),
      worker_(std::move(worker)),
      library_(std::move(library)),
      sim_(std::move(sim)) {
  transport::randomBytes(secret_);
}

Supervisor::~Supervisor() {
  for (auto& [id, session] : sessions_) {
    if (session.pid > 0) kill(session.pid, SIGKILL);
  }
}

bool Supervisor::toldToEnd() {
  if (program_) return program_.ended();
  sigset_t pending;
  sigemptyset(&pending);
  return sigpending(&pending) == 0 &&
         (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

Status Supervisor::start() {
  transport::Options network;
  network.release = base::kVersion;
  network.tls = options_.tls;
  network.choice = transport::Choice::kTcp;  // a message each way
  network.io_threads = 1;
  network.lanes = 1;
  network.limits.message_bytes = kMessageBytes;
  network.requests = 4;
  network.notices = network.stream = 1;
  base::raiseLimit(RLIMIT_NOFILE);
  most_links_ = network.limits.links = mostLinks();
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
  const auto accept = [this](const transport::PeerInfo&) -> Result<transport::Accepted> {
    return transport::Accepted{transport::makeDomain(), queue_};
  };
  auto listener = node_->listen(options_.listen, accept, routes_);
  if (!listener.ok()) return listener.error();
  listener_ = std::move(listener).value();
  sigset_t mine;
  sigemptyset(&mine);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&mine, signal);
  signals_.reset(signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return Error{std::string("signalfd: ") + std::strerror(errno)};
  if (options_.cache != "none") {
    auto folder = makeCacheFolder(options_.cache);
    if (!folder.ok() && !options_.cache.empty()) return folder.error();
    if (folder.ok()) {
      cache_ = std::move(folder).value();
    } else {
      base::logWarn("%s: modules are sent by each program anew (--cache)",
                    folder.error().message.c_str());
    }
  }
  if (options_.prometheus.wanted()) {
    tellMetrics();
    auto served = status::serveMetricsAloud(options_.prometheus, [this] {
      std::lock_guard lock(metrics_mutex_);
      return metrics_text_;
    });
    if (!served.ok()) return served.error();
    metrics_endpoint_ = std::move(served).value();
  }
  // Workers of a gpunode that was killed went with it, and nobody else may ever look for their
  // counters: to read them removes those of the dead.
  (void)pager::readCounters(pager::countersFolders());
  findRam();
  if (auto found = findDevices(); !found.ok()) {
    if (program_) return Error{found.error().message + "; does nvidia-smi work here?"};
    if (!options_.devices.empty() && !toldToEnd()) return found;
    // The loader's may be installed later; a path that was named by hand is wrong.
    if (!options_.driver.empty() && devices_.noDriver())
      return Error{base::format("driver: {}; --driver takes the path of a libcuda.so.1, or sim",
                                found.error().message)};
    base::logWarn("%s; sessions are refused until it can", found.error().message.c_str());
  }
  return {};
}

int Supervisor::run() {
  for (;;) {
    std::vector<pollfd> fds{
        {signals_.get(), POLLIN, 0}, {queue_->eventFd(), POLLIN, 0}, {program_.fd(), POLLIN, 0}};
    const size_t first = fds.size();
    std::vector<uint64_t> heard, watched;
    for (auto& [id, session] : sessions_) {
      if (!session.socket) continue;
      fds.push_back({session.socket.get(), POLLIN, 0});
      heard.push_back(id);
    }
    for (auto& [id, session] : sessions_) {
      if (!session.process_ended) continue;
      fds.push_back({session.process_ended.get(), POLLIN, 0});
      watched.push_back(id);
    }
    if (poll(fds.data(), fds.size(), kTickMs) < 0 && errno != EINTR) return 1;
    signalfd_siginfo got{};
    while (read(signals_.get(), &got, sizeof got) == sizeof got) {
      if (got.ssi_signo != SIGCHLD && (!program_ || program_.ended())) {
        base::logInfo("ending: %zu session(s) end with it", running());
        endSessions();
        return 0;
      }
    }
    reap();
    for (size_t i = 0; i < heard.size(); ++i) {
      const auto found = sessions_.find(heard[i]);
      if (found == sessions_.end() || !found->second.socket) continue;
      Session& session = found->second;
      const bool late =
          session.starting && std::chrono::steady_clock::now() - session.since > kStart;
      if (fds[first + i].revents != 0) {
        session.starting ? ready(session) : hear(session);
      } else if (late) {
        kill(session.pid, SIGKILL);
      }
    }
    for (size_t i = 0; i < watched.size(); ++i) {
      const auto found = sessions_.find(watched[i]);
      if (found != sessions_.end() && fds[first + heard.size() + i].revents != 0)
        processEnded(found->second);
    }
    openWaiting();  // before those who have just come
    transport::Completion completions[16];
    while (const size_t count = queue_->poll(completions)) {
      for (size_t i = 0; i < count; ++i) take(completions[i]);
    }
    openWaiting();
    if (program_.ended() && running() == 0 && waiting_.empty() && program_.gone()) {
      base::logInfo("ending: the program that it was for has ended");
      return 0;
    }
    divideVram();
    if (ram_changed_ || std::chrono::steady_clock::now() - ram_divided_ > kDivideRam) divideRam();
    tellMetrics();
    closeIdle(false);
    forgetOld();
    removeSockets();
    if (!devices_.known() && std::chrono::steady_clock::now() - looked_ > kLookAgain)
      (void)findDevices();
  }
}

// A link that does not ask, or has been answered and stays, holds a place of others'.
void Supervisor::closeIdle(bool make_room) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<transport::LinkPtr> idle;
  std::vector<transport::Holder> holders;
  for (auto& [link, client] : clients_) {
    const auto waits = [&](const auto& one) { return one.client == link; };
    if (client.closed || std::ranges::any_of(waiting_, waits) ||
        std::ranges::any_of(sessions_, [&](const auto& one) { return waits(one.second); }))
      continue;
    if (now - client.heard > kAsk) {
      client.closed = true;
      link->close("it has not asked for anything for a while");
      continue;
    }
    idle.push_back(link);
    holders.push_back({&link->peer(), client.heard.time_since_epoch() / 1ms});
  }
  if (!make_room || holders.empty()) return;
  const transport::LinkPtr& which = idle[transport::whoMakesRoom(holders).which];
  clients_[which].closed = true;
  which->close("others want its place, and it asks for nothing");
}

void Supervisor::take(transport::Completion& completion) {
  if (completion.kind == transport::Completion::Kind::kUp)
    closeIdle(clients_.size() > most_links_ - most_links_ / 8);  // some are kept free
  if (completion.kind != transport::Completion::Kind::kDown)
    clients_[completion.link].heard = std::chrono::steady_clock::now();
  if (completion.kind == transport::Completion::Kind::kDown) {
    clients_.erase(completion.link);
    std::erase_if(waiting_, [&](const Waiting& one) { return one.client == completion.link; });
    for (auto& [id, session] : sessions_) {
      if (session.client != completion.link) continue;
      session.client.reset();
      // Nobody else can come to it: its worker would wait for a client, and hold a session.
      if (session.starting && session.pid > 0) {
        session.left = true;
        kill(session.pid, SIGKILL);
      }
    }
    return;
  }
  if (completion.kind != transport::Completion::Kind::kMessage) return;
  const auto bytes = completion.message.bytes();
  if (status::isQuestion(bytes)) return answer(completion.link, bytes);
  SessionRequest request;
  if (bytes.size() != sizeof request) {
    completion.link->close(
        "this is a gpunode (--gpunode), and what came is no request for a session");
    return;
  }
  std::memcpy(&request, bytes.data(), sizeof request);
  completion.message = {};
  if (request.magic != forward::kSessionMagic || request.version != forward::kSessionVersion) {
    completion.link->close(otherVersion());
    return;
  }
  if (request.ask == SessionAsk::kOpen) {
    open(completion.link, request);
  } else if (request.ask == SessionAsk::kWouldOpen) {
    wouldOpen(completion.link, request);
  } else {
    tell(completion.link, request);
  }
}

void Supervisor::refuse(const transport::LinkPtr& client, const std::string& why) {
  ++refused_;
  sayNo(client, why);
}

size_t Supervisor::running() const {
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(), [](const auto& one) {
    return one.second.ended.empty();
  }));
}

// A program opens its sessions at once. A session that has not come by then, or of which one is
// gone already, does not come any more. `coming`: is not among the sessions yet.
std::vector<Supervisor::Expected> Supervisor::expected(const Session* coming) const {
  std::vector<const Session*> all;
  for (const auto& [id, session] : sessions_) all.push_back(&session);
  if (coming != nullptr) all.push_back(coming);
  std::vector<Expected> found;
  for (const Session* const one : all) {
    const auto isWith = [one](const Session* other) {
      return one->process == other->process && one->node == other->node &&
             one->key_name == other->key_name;
    };
    const Session* const first = *std::find_if(all.begin(), all.end(), isWith);
    const auto here = static_cast<size_t>(std::count_if(all.begin(), all.end(), isWith));
    const bool comes = std::none_of(all.begin(), all.end(), [&](const Session* other) {
      return isWith(other) &&
             (!other->ended.empty() || std::chrono::steady_clock::now() - other->since > kTogether);
    });
    if (one == first && comes && one->beside + 1 > here)
      found.push_back({one, one->beside + 1 - here});
  }
  return found;
}

// "", or why there can be no session. A program that would have several has all or none.
std::string Supervisor::inTheWay(const SessionRequest& request,
                                 const transport::PeerInfo& peer) const {
  if (request.specification != forward::kSpecification) return otherVersion();
  const std::string& key_name = peer.key_name;
  size_t all = running(), of_key = 0;
  for (const auto& [id, session] : sessions_)
    of_key += session.ended.empty() && session.key_name == key_name ? 1 : 0;
  size_t more = 1 + besideOf(request);
  for (const Expected& one : expected()) {
    all += one.sessions;
    if (one.of->key_name != key_name) continue;
    of_key += one.sessions;
    if (one.of->process == request.process && one.of->node == peer.node) more = 0;
  }
  const std::string would =
      more > 1 ? base::format(", and the program would have {} more, one for each GPU", more) : "";
  if (all + more > options_.sessions)
    return base::format("it has {} of at most {} sessions (--sessions){}", all, options_.sessions,
                        would);
  if (options_.key_sessions != 0 && of_key + more > options_.key_sessions)
    return base::format("{} has {} of at most {} sessions of one key (--key-sessions){}",
                        key_name.empty() ? "who comes without a key" : "key " + key_name, of_key,
                        options_.key_sessions, would);
  return "";
}

// As many as there are GPUs: more would only take RAM of others'.
uint32_t Supervisor::besideOf(const SessionRequest& request) const {
  return std::min<uint32_t>(request.beside, std::max<uint32_t>(devices_.size(), 1) - 1);
}

// A client that has been there has called. A client that comes right after another of this machine
// has ended may be heard before that is.
bool Supervisor::hasLostClient(const Session& session) {
  pollfd ended{session.process_ended.get(), POLLIN, 0};
  if (session.client_dead || (session.process_ended && poll(&ended, 1, 0) > 0)) return true;
  return session.report.calls != 0 && session.report.link == kNoLink;
}

// True if there would be a place without the sessions that have lost their clients.
bool Supervisor::mayComeFree(const std::string& key_name) const {
  size_t all = 0, of_key = 0;
  for (const auto& [id, session] : sessions_) {
    if (!session.ended.empty() || hasLostClient(session)) continue;
    ++all;
    of_key += session.key_name == key_name ? 1 : 0;
  }
  return all < options_.sessions && (options_.key_sessions == 0 || of_key < options_.key_sessions);
}

void Supervisor::openWaiting() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Waiting> waiting;
  waiting.swap(waiting_);  // open() may put them there again
  for (Waiting& one : waiting) {
    const std::string& key_name = one.client->peer().key_name;
    const bool taken = !inTheWay(one.request, one.client->peer()).empty();
    if (taken && mayComeFree(key_name) && now < one.until) {
      waiting_.push_back(std::move(one));
    } else {
      open(one.client, one.request, true);
    }
  }
}

void Supervisor::wouldOpen(const transport::LinkPtr& client, const SessionRequest& request) {
  const std::string& key_name = client->peer().key_name;
  const std::string why = inTheWay(request, client->peer());
  if (!why.empty() && !(request.specification == forward::kSpecification && mayComeFree(key_name)))
    return sayNo(client, why);
  if (!devices_.known()) return sayNo(client, no_devices_);
  SessionReply reply;
  const std::string text =
      base::format("{} of at most {} sessions; {}", running(), options_.sessions, devices_.names());
  std::strncpy(reply.text, text.c_str(), sizeof reply.text - 1);
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

void Supervisor::open(const transport::LinkPtr& client, const SessionRequest& request,
                      bool has_waited) {
  if (const std::string why = inTheWay(request, client->peer()); !why.empty()) {
    if (has_waited || request.specification != forward::kSpecification ||
        !mayComeFree(client->peer().key_name))
      return refuse(client, why);
    base::logInfo("%s of %s waits for the place of a session that has lost its client",
                  printable(request.program, sizeof request.program).c_str(),
                  client->peer().address.c_str());
    waiting_.push_back({client, request, std::chrono::steady_clock::now() + kWait});
    return;
  }
  if (request.slots == 0 || request.slots > forward::kMostSlots || request.slot >= request.slots)
    return refuse(client,
                  base::format("a program has at most {} gpunodes, or GPUs of a unified view",
                               forward::kMostSlots));
  if (!forward::isValid(request.driver))
    return refuse(client, "its request has no meaning: settings of the driver");
  Session session;
  for (uint32_t i = 0; i < devices_.size(); ++i) session.devices.push_back(i);
  if (request.sees_some != 0 && devices_.known()) {
    const std::string wanted(request.visible, strnlen(request.visible, sizeof request.visible));
    session.devices = forward::visibleDevices(devices_.uuids(), wanted);
    if (session.devices.empty())
      return refuse(client, base::format("CUDA_VISIBLE_DEVICES={} names none of its {} device(s)",
                                         printable(wanted.c_str(), 64), devices_.size()));
  }
  session.budgets.resize(devices_.size());
  while (session.id == 0 || sessions_.contains(session.id)) {
    if (getrandom(&session.id, sizeof session.id, 0) != sizeof session.id) session.id = 0;
  }
  if (getrandom(session.reply.key, sizeof session.reply.key, 0) != sizeof session.reply.key)
    return refuse(client, "it has no random numbers");
  session.id_text = base::format("{:016x}", session.id);
  session.reply.session = session.id;
  session.reply.grace_ms = options_.grace_ms;
  session.number = next_number_;
  session.process = request.process;
  session.slot = request.slot;
  session.slots = request.slots;
  session.beside = besideOf(request);
  session.unified = request.unified != 0;
  session.exportable = request.exportable;
  session.driver = request.driver;
  session.program = printable(request.program, sizeof request.program);
  session.peer = client->peer().address;
  session.node = client->peer().node;
  session.key_name = client->peer().key_name;
  session.client = client;
  if (client->peer().same_host && request.processes != 0 &&
      request.processes == base::processNamespace())
    session.process_ended = base::watchProcess(static_cast<pid_t>(request.process));
  session.since = std::chrono::steady_clock::now();
  if (auto spawned = spawn(session); !spawned.ok()) {
    base::logError("%s", spawned.error().message.c_str());
    return refuse(client, spawned.error().message);
  }
  ++next_number_;
  {
    const base::LogAbout about(session.id_text, session.key_name);
    base::logDebug("%s of %s has worker %d, which starts", session.program.c_str(),
                   session.peer.c_str(), session.pid);
  }
  sessions_.emplace(session.id, std::move(session));
}

void Supervisor::tell(const transport::LinkPtr& client, const SessionRequest& request) {
  const auto found = sessions_.find(request.session);
  if (found == sessions_.end())
    return sayNo(client, "the gpunode knows of no such session: it was started anew");
  if (!found->second.ended.empty())
    return sayNo(client, "the session has ended: " + found->second.ended);
  SessionReply reply;
  reply.session = request.session;
  (void)client->send(transport::MessageClass::kReply, std::as_bytes(std::span(&reply, 1)));
}

std::vector<std::string> Supervisor::workerEnvironment() const {
  std::vector<std::string> environment = inheritedEnvironment();
  environment.emplace_back("OL_GPUNODE=none");  // the worker itself is local, whatever a file says
  environment.push_back(base::format("OL_LOG={}", base::logLevelName(workersLogLevel())));
  // As its program has it: to memservers, and of olrun that will print the counters.
  for (const char* const name : {"OL_TRANSPORT", "OL_RAILS", kKeepCounters}) {
    const char* const value = program_ ? std::getenv(name) : nullptr;
    if (value != nullptr) environment.push_back(base::format("{}={}", name, value));
  }
  if (std::getenv("CUDA_DEVICE_ORDER") == nullptr)
    environment.emplace_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");  // --device counts as nvidia-smi does
  return environment;
}

// A worker's lines at info are of one session: the log has its begin and its end. A gpunode for one
// program is asked for by --log info, and tells it all.
base::LogLevel Supervisor::workersLogLevel() const {
  if (options_.worker_log) return *options_.worker_log;
  return !program_ && options_.log == base::LogLevel::kInfo ? base::LogLevel::kWarn : options_.log;
}

Status Supervisor::findDevices() {
  const std::string driver = options_.driver == "sim"  ? sim_
                             : options_.driver.empty() ? std::string("libcuda.so.1")
                                                       : options_.driver;
  if (auto found = devices_.find(worker_, workerEnvironment(), driver, options_.devices,
                                 [this] { return toldToEnd(); });
      !found.ok()) {
    no_devices_ = found.error().message;
    looked_ = std::chrono::steady_clock::now();  // a driver that hangs has taken long: in between
                                                 // clients are answered
    return found;
  }
  for (size_t i = 0; i < devices_.size(); ++i)
    base::logInfo("GPU %zu: %s, %s of VRAM, %s", i, devices_.at(i).name.c_str(),
                  base::formatSize(devices_.at(i).total).c_str(), devices_.at(i).uuid.c_str());
  return {};
}

Status Supervisor::spawn(Session& session) {
  divideRam(&session);
  WorkerSetup setup;
  setup.session = session.id;
  setup.slot = session.slot;
  setup.slots = session.slots;
  setup.handle_slot = session.unified ? forward::kCommonSlot : session.slot;
  std::memcpy(setup.key, session.reply.key, sizeof setup.key);
  const std::string& name = session.key_name;
  const auto group =
      transport::mac(secret_, {reinterpret_cast<const uint8_t*>(name.data()), name.size()});
  static_assert(sizeof group == sizeof setup.key_group);
  std::memcpy(setup.key_group, group.data(), sizeof setup.key_group);
  setup.transport = static_cast<uint32_t>(options_.choice);
  std::string rails;
  for (const std::string& each : options_.rails) rails += (rails.empty() ? "" : ",") + each;
  if (rails.empty()) rails = "none";
  static_assert(sizeof setup.rails > base::kMostRails * INET6_ADDRSTRLEN);
  std::strncpy(setup.rails, rails.c_str(), sizeof setup.rails - 1);
  setup.tls = static_cast<uint32_t>(options_.key.empty() ? transport::Tls::kOff : options_.tls);
  setup.grace_ms = forward::workerGraceMs(options_.grace_ms);
  setup.straight = options_.straight ? 1 : 0;
  setup.confined = options_.confine ? 1 : 0;
  setup.pinned_bytes = most_ram_;
  setup.host_bytes = session.host_limit;
  std::strncpy(setup.program, session.program.c_str(), sizeof setup.program - 1);
  std::strncpy(setup.library, library_.c_str(), sizeof setup.library - 1);
  if (!cache_.empty()) {
    const std::string folder =
        cache_ + (session.key_name.empty() ? "/no-key" : "/key-" + session.key_name);
    if (folder.size() < sizeof setup.cache)
      std::strncpy(setup.cache, folder.c_str(), sizeof setup.cache - 1);
    setup.cache_bytes = options_.cache_bytes;
  }

  std::vector<std::string> environment = workerEnvironment();
  if (!program_)  // a program's own gpunode logs as that program does
    environment.push_back(base::daemonLogEntry(options_.log_format, "olgpunode-worker",
                                               session.id_text, session.key_name));
  forward::setDriverEnvironment(environment, session.driver);
  if (!options_.driver.empty())
    environment.push_back("OL_DRIVER=" + (options_.driver == "sim" ? sim_ : options_.driver));
  if (session.exportable != base::ExportableSetting::kUnset) {
    std::erase_if(environment,
                  [](const std::string& entry) { return entry.starts_with("OL_EXPORTABLE="); });
    environment.emplace_back(session.exportable == base::ExportableSetting::kPager
                                 ? "OL_EXPORTABLE=pager"
                                 : "OL_EXPORTABLE=driver");
  }
  if (options_.vram.given()) environment.push_back("OL_VRAM=" + base::exactBudget(options_.vram));
  environment.push_back("OL_HOST=" + base::exactBudget({most_ram_, 0}));
  // Some of them, or in another order than the driver's.
  if (session.devices.size() != devices_.size() ||
      !std::is_sorted(session.devices.begin(), session.devices.end()) ||
      !options_.devices.empty()) {
    std::erase_if(environment, [](const std::string& entry) {
      return entry.starts_with("CUDA_VISIBLE_DEVICES=");
    });
    std::string visible;
    for (const uint32_t index : session.devices)
      visible += (visible.empty() ? "" : ",") + devices_.at(index).uuid;
    environment.push_back("CUDA_VISIBLE_DEVICES=" + visible);
  }
  auto started = launchWorker(worker_, std::move(environment), setup);
  explicit_bzero(setup.key, sizeof setup.key);
  explicit_bzero(setup.key_group, sizeof setup.key_group);
  if (!started.ok()) return started.error();
  session.pid = started.value().pid;
  session.start_ticks = pager::processStartTicks(static_cast<uint64_t>(session.pid));
  session.socket = std::move(started.value().socket);
  routes_->add(session.id, std::move(started.value().connections));
  return {};
}

// The worker has said something for the first time, or is gone.
void Supervisor::ready(Session& session) {
  WorkerReady said;
  const ssize_t got = recv(session.socket.get(), &said, sizeof said, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  session.starting = false;
  const auto client = std::move(session.client);
  session.client.reset();
  if (got != sizeof said) {
    session.socket.reset();
    if (client) refuse(client, "its worker could not start; its log says why");
    return;
  }
  said.text[sizeof said.text - 1] = '\0';
  if (said.failed != 0) {
    session.socket.reset();
    if (client) refuse(client, said.text);
    return;
  }
  {
    const base::LogAbout about(session.id_text, session.key_name);
    base::logInfo("begins: %s of %s, worker %d", session.program.c_str(), session.peer.c_str(),
                  session.pid);
  }
  promiseVram(session);
  // The others have been asked for its part of RAM when its worker was started: what they have
  // given by now it is told of, too.
  for (auto& [id, other] : sessions_) {
    if (other.socket && !other.starting) hear(other);
  }
  divideRam();
  if (client)
    (void)client->send(transport::MessageClass::kReply,
                       std::as_bytes(std::span(&session.reply, 1)));
  explicit_bzero(session.reply.key, sizeof session.reply.key);
}

// Workers may not connect to anything by themselves; these sockets are none but workers'.
void Supervisor::introduce(const Session& session, const ConnectionWanted& wanted) {
  const base::UniqueFd connection =
      connectToNamed({wanted.name, strnlen(wanted.name, sizeof wanted.name)});
  const WorkerOrder order{Order::kConnection, 0, wanted.number};
  (void)sendWith(session.socket.get(), &order, sizeof order, connection.get(), MSG_DONTWAIT);
}

void Supervisor::hear(Session& session) {
  WorkerReport report;
  for (int i = 0; i < 8; ++i) {  // the newest counts; the others wait no longer than that
    const ssize_t got = recv(session.socket.get(), &report, sizeof report, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (ConnectionWanted wanted; got == sizeof wanted) {
      std::memcpy(static_cast<void*>(&wanted), &report, sizeof wanted);
      introduce(session, wanted);
      continue;
    }
    if (got != sizeof report) {
      session.socket.reset();
      return;
    }
    report.device_count =
        std::min<uint32_t>(report.device_count, static_cast<uint32_t>(session.devices.size()));
    if (report.link > static_cast<uint32_t>(transport::LinkKind::kVerbs)) report.link = kNoLink;
    report.host_limit = std::min(report.host_limit, most_ram_);
    report.pinned = std::min(report.pinned, most_ram_);
    ram_changed_ |= session.report.host_limit != report.host_limit;
    session.report = report;
  }
}

// The worker sees the end of the link by itself, and waits no longer once it knows that it is for
// good.
void Supervisor::processEnded(Session& session) {
  session.process_ended.reset();
  session.client_dead = true;
  const WorkerOrder order{Order::kClientIsDead, 0, 0};
  if (session.socket)
    (void)!send(session.socket.get(), &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// Each client is told by its worker; what is left after a moment dies with this process.
void Supervisor::endSessions() {
  for (const Waiting& one : waiting_) refuse(one.client, "the gpunode has been told to end");
  waiting_.clear();
  for (auto& [id, session] : sessions_) {
    const WorkerOrder order{Order::kEnd, 0, 0};
    if (session.starting && session.pid > 0) {
      if (session.client) refuse(session.client, "the gpunode has been told to end");
      session.client.reset();
      kill(session.pid, SIGKILL);
    } else if (session.socket) {
      (void)!send(session.socket.get(), &order, sizeof order, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  const auto end = std::chrono::steady_clock::now() + kEnd;
  for (reap(); running() != 0 && std::chrono::steady_clock::now() < end; reap()) {
    constexpr int kTick = 10;
    (void)poll(nullptr, 0, kTick);
  }
}

void Supervisor::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (auto& [id, session] : sessions_) {
      if (session.pid != pid) continue;
      session.ended = session.left ? "its client left while it started" : howItEnded(status);
      // A worker ends without its exit handlers, or is killed: nobody else may ever look for its
      // counters.
      const bool kept = program_ && std::getenv(kKeepCounters) != nullptr;
      for (const std::string& folder : pager::countersFolders()) {
        if (!kept)
          pager::removeCountersFile(folder, static_cast<uint64_t>(pid), session.start_ticks);
      }
      if (WIFSIGNALED(status))  // nor for its socket
        sockets_due_ = std::chrono::steady_clock::now() + kSocketAge;
      session.pid = 0;
      session.since = std::chrono::steady_clock::now();
      if (session.starting) ready(session);
      if (session.socket) hear(session);  // its last report
      session.socket.reset();
      session.process_ended.reset();
      routes_->remove(id);
      ++ended_;
      failed_ += status != 0 && !session.left ? 1 : 0;
      ended_calls_ += session.report.calls;
      ended_moved_ += session.report.moved;
      const base::LogAbout about(session.id_text, session.key_name);
      base::log(
          WIFSIGNALED(status) && !session.left ? base::LogLevel::kError : base::LogLevel::kInfo,
          "ends: %s: %s; %llu calls, %s of them and their answers", session.program.c_str(),
          session.ended.c_str(), static_cast<unsigned long long>(session.report.calls),
          base::formatSize(session.report.moved).c_str());
    }
  }
}

// Removes the sockets of workers that were killed, when they are old enough to be known for dead.
void Supervisor::removeSockets() {
  if (!sockets_due_ || std::chrono::steady_clock::now() < *sockets_due_) return;
  sockets_due_.reset();
  if (const auto folder = transport::socketFolder(); folder.ok())
    transport::removeDeadSockets(folder.value());
}

void Supervisor::forgetOld() {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(sessions_, [&](const auto& one) {
    return !one.second.ended.empty() && now - one.second.since > kRemembered;
  });
}

}  // namespace olpager::gpunode
