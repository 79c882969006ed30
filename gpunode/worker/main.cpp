// olgpunode-worker: one session's GPU work. Started by olgpunode, never by hand.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#include "base/daemon_log.h"
#include "base/log.h"
#include "base/log_reader.h"
#include "base/process.h"
#include "base/settings.h"
#include "base/size.h"
#include "base/space/pages.h"
#include "coherence/calls/greeting.h"
#include "coherence/transport/trust/keys.h"
#include "forwarding/control.h"
#include "forwarding/wire/peer_keys.h"
#include "forwarding/wire/session_protocol.h"
#include "gpunode/worker/address_space.h"
#include "gpunode/worker/confine.h"
#include "gpunode/worker/describe.h"
#include "gpunode/worker/introductions.h"
#include "gpunode/worker/reporter.h"
#include "gpunode/worker/setup.h"
#include "gpunode/worker/text.h"
#include "gpunode/worker/worker.h"

namespace {

using namespace olpager;
using namespace std::chrono_literals;
using gpunode::WorkerReady;
using gpunode::WorkerSetup;

constexpr auto kFirstLink = 15s;  // of a client that has its address: it gives up before
constexpr auto kGreeting = 1s;
constexpr auto kTurn = 100ms;
constexpr auto kLook = 2ms;

/// Links that the client has made, each with a queue of its own, until one is taken.
class Arrivals {
 public:
  void add(transport::QueuePtr queue) {
    std::lock_guard lock(mutex_);
    queues_.push_back(std::move(queue));
    arrived_.notify_one();
  }

  /// Joins the first link that is up and answers to the channel; false when none did in time. One
  /// that is lost during its handshake never says anything: the others are not kept waiting for it.
  bool join(calls::Channel& channel, std::chrono::milliseconds timeout) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mutex_);
    while (std::chrono::steady_clock::now() < end) {
      for (size_t i = 0; i < queues_.size(); ++i) {
        transport::Completion up[1];
        if (queues_[i]->poll(up) == 0) continue;
        const auto queue = queues_[i];
        queues_.erase(queues_.begin() + static_cast<ptrdiff_t>(i));
        lock.unlock();
        if (up[0].kind == transport::Completion::Kind::kUp && take(channel, up[0].link, queue))
          return true;
        lock.lock();
        break;
      }
      constexpr size_t kMost = 64;  // of what never came up
      if (queues_.size() > kMost) queues_.pop_front();
      arrived_.wait_for(lock, kLook);
    }
    return false;
  }

 private:
  static bool take(calls::Channel& channel, const transport::LinkPtr& link,
                   const transport::QueuePtr& queue) {
    const auto heard = calls::answerGreeting(*link, *queue, channel.taken(), kGreeting);
    if (!heard.ok()) return false;
    const auto attached = channel.attach(link, queue, heard.value());
    if (!attached.ok()) base::logWarn("%s", attached.error().message.c_str());
    return attached.ok();
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<transport::QueuePtr> queues_;
};

void say(uint32_t failed, const std::string& text) {
  WorkerReady ready{failed, {}};
  std::strncpy(ready.text, text.c_str(), sizeof ready.text - 1);
  (void)!send(gpunode::kSetupFd, &ready, sizeof ready, MSG_NOSIGNAL);
}

int fail(const std::string& why) {
  base::logError("%s", why.c_str());
  say(1, why);
  return 1;
}

int run() {
  WorkerSetup setup;
  if (recv(gpunode::kSetupFd, &setup, sizeof setup, 0) != sizeof setup) {
    std::fprintf(stderr, "olgpunode-worker is started by olgpunode\n");
    return 2;
  }
  // The supervisor may have died before the kernel was told to end this process with it. The
  // parent's pid is compared with the supervisor's, not with 1: the supervisor may be pid 1 itself.
  if (getppid() != setup.supervisor) return 1;
  setup.library[sizeof setup.library - 1] = '\0';
  for (const int fd : {gpunode::kSetupFd, gpunode::kConnectionsFd})
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (setup.task == gpunode::WorkerTask::kDescribe) {
    const gpunode::NodeDescription node = gpunode::describeNode(setup.library);
    return send(gpunode::kSetupFd, &node, sizeof node, MSG_NOSIGNAL) == sizeof node ? 0 : 1;
  }
  // The worker's counters carry the program's name (olpagestat): the pager takes the process's
  // name.
  setup.program[sizeof setup.program - 1] = '\0';
  static char name[sizeof setup.program + 10];
  snprintf(name, sizeof name, "worker: %s", setup.program);
  if (setup.program[0] != '\0') program_invocation_short_name = name;
  const auto settings = base::loadSettings();
  if (!settings.ok()) return fail(settings.error().message);
  base::setLogLevel(settings.value().log);

  gpunode::WorkerOptions options;
  options.library = setup.library;
  options.client = setup.program;
  options.memservers = !settings.value().memservers.empty();
  options.va_base =
      settings.value().va_base != 0 ? settings.value().va_base : space::kDefaultVaBase;
  options.va_size =
      settings.value().va_size != 0 ? settings.value().va_size : space::kDefaultVaSize;
  options.slot = setup.slot;
  options.handle_slot = setup.handle_slot;
  // In the unified view a page has its address at every executor: each has all of the range.
  const bool unified = setup.handle_slot == forward::kCommonSlot;
  if (setup.slots > 1 && !unified) {
    // The sessions of one program share the range, each has a part: an address says whose it is. So
    // the driver gets none in the others'.
    const uint64_t begin = options.va_base, end = begin + options.va_size;
    options.va_size = options.va_size / setup.slots / space::kPageBytes * space::kPageBytes;
    options.va_base += setup.slot * options.va_size;
    gpunode::keepFree(begin, options.va_base - begin);
    gpunode::keepFree(options.va_base + options.va_size, end - options.va_base - options.va_size);
    (void)setenv("OL_VA_BASE", std::to_string(options.va_base).c_str(), 1);
    (void)setenv("OL_VA_SIZE", std::to_string(options.va_size).c_str(), 1);
  }
  // Streams wait for other sessions on the device (gates.h): with few hardware queues they would
  // hold up others.
  if (setup.slots > 1) (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  gpunode::divideAddresses();
  auto* const worker = new gpunode::Worker(options);  // its threads may outlive this function
  if (auto started = worker->start(); !started.ok()) return fail(started.error().message);

  transport::Options network;
  network.choice = static_cast<transport::Choice>(setup.transport);
  network.tls = static_cast<transport::Tls>(setup.tls);
  if (auto rails = base::parseRails(setup.rails); rails.ok())
    network.rails = std::move(rails.value());
  network.limits.links = 16 + setup.slots;
  network.spin_us = forward::awakeMicroseconds();
  forward::setLanes(network);
  transport::NamedKey key{forward::kSessionKeyName, {}};
  std::memcpy(key.secret.data(), setup.key, sizeof setup.key);
  explicit_bzero(setup.key, sizeof setup.key);
  transport::Secret group{};
  std::memcpy(group.data(), setup.key_group, sizeof setup.key_group);
  explicit_bzero(setup.key_group, sizeof setup.key_group);
  worker->exports().configure(group);
  std::vector<transport::NamedKey> keys{key};
  const bool executor = unified && setup.slots > 1;  // one among several
  if (executor) keys.push_back(forward::pagesKey(key.secret));
  const bool straight = setup.straight != 0 && setup.slots > 1;
  worker->peers().configure({setup.slot, straight, network.choice, network.tls, network.rails,
                             std::chrono::milliseconds(setup.grace_ms)});
  for (unsigned slot = 0; straight && slot < setup.slots; ++slot) {
    if (slot != setup.slot) keys.push_back(forward::peerKey(key.secret, slot));
  }
  network.keys = std::make_shared<const transport::KeyRing>(std::move(keys));
  auto node = transport::makeEndpoint(network);
  if (!node.ok()) return fail(node.error().message);
  auto *const arrivals = new Arrivals, *const of_pages = new Arrivals;
  if (executor) {
    const auto joins = [of_pages](calls::Channel& channel, std::chrono::milliseconds timeout) {
      return of_pages->join(channel, timeout);
    };
    if (auto started =
            worker->agent().start(setup.slot, joins, std::chrono::milliseconds(setup.grace_ms));
        !started.ok())
      return fail(started.error().message);
  }
  transport::Endpoint& endpoint = *node.value();
  const auto accept = [&](const transport::PeerInfo& peer) -> Result<transport::Accepted> {
    if (const auto slot = forward::peerSlot(peer.key_name))
      return worker->peers().accept(*slot, endpoint);
    auto queue = endpoint.makeQueue();
    if (forward::isPagesKey(peer.key_name)) {
      of_pages->add(queue);
      return transport::Accepted{transport::makeDomain(), queue};
    }
    arrivals->add(queue);
    return transport::Accepted{worker->staging().domain(), queue};
  };
  // The gpunode's port is the only one: connections are handed over by its listener.
  auto listener = endpoint.listenBehind(base::UniqueFd(gpunode::kConnectionsFd), accept);
  if (!listener.ok()) return fail(listener.error().message);
  worker->atLeave([&worker = *worker, &network = *listener.value()] {
    network.removeSocketFile();
    gpunode::report(worker, gpunode::kSetupFd);
  });
  if (setup.confined != 0) {
    // The driver has started, the sockets are open: what comes now is the client's.
    const gpunode::Confinement allowed{!settings.value().memservers.empty() || straight};
    if (auto confined = gpunode::confine(allowed); !confined.ok())
      return fail(confined.error().message);
  }
  worker->hostMemory().setLimit(setup.pinned_bytes);
  auto* const set_host =
      worker->library().function<decltype(olpager_set_host_limit)>("olpager_set_host_limit");
  if (set_host != nullptr) (void)set_host(setup.host_bytes);
  setup.cache[sizeof setup.cache - 1] = '\0';
  if (setup.cache[0] != '\0') {
    if (auto opened = worker->moduleCache().open(setup.cache, setup.cache_bytes); !opened.ok())
      base::logWarn("%s: modules are sent by each program", opened.error().message.c_str());
  }
  say(0, "");
  gpunode::introductions().askSupervisor(gpunode::kSetupFd);
  gpunode::startReporter(*worker, gpunode::kSetupFd);

  bool joined = false;
  const auto end = std::chrono::steady_clock::now() + kFirstLink;
  while (!joined && !worker->clientDead() && std::chrono::steady_clock::now() < end)
    joined = arrivals->join(worker->channel(), kTurn);
  if (!joined) {
    base::logWarn("the client did not come");
    worker->leave(1);
  }
  const std::chrono::milliseconds grace(setup.grace_ms);
  worker->endWithoutClient(grace);
  const std::string why = worker->serve([&] { return arrivals->join(worker->channel(), grace); });
  base::logInfo("the session has ended: %s", why.c_str());
  const uint64_t sent = worker->peers().sent.load(), taken = worker->peers().taken.load();
  if (sent != 0 || taken != 0)
    base::logInfo("%llu bytes of copies went straight to other gpunodes, %llu came from them",
                  static_cast<unsigned long long>(sent), static_cast<unsigned long long>(taken));
  if (const gpunode::Agent::Landed landed = worker->agent().landed(); landed.pages != 0)
    base::logInfo(
        "%llu pages came from other executors, %llu of them unchanged, %llu in "
        "part (%s of %s)",
        static_cast<unsigned long long>(landed.pages),
        static_cast<unsigned long long>(landed.unchanged),
        static_cast<unsigned long long>(landed.in_part),
        base::formatSize(landed.part_bytes).c_str(),
        base::formatSize(landed.in_part * space::kPageBytes).c_str());
  worker->channel().close("the session has ended");
  worker->leave(0);
}

}  // namespace

int main() {
  base::useDaemonLogOf(std::getenv(base::kDaemonLogVariable));
  // Before it has a key, and before the driver has threads.
  base::neverWaitForLogReader();
  base::keepFromOthers();
  gpunode::giveUpTracing();
  // Before run() looks whether the supervisor is still there.
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  (void)signal(SIGPIPE, SIG_IGN);
  (void)signal(SIGINT,
               SIG_IGN);  // of the terminal, to all: the gpunode ends its workers when it has told
                          // their clients
  int status = 1;
  try {
    status = run();
  } catch (const std::exception& error) {
    base::logError("olgpunode-worker: %s", error.what());
  }
  std::fflush(stderr);
  gpunode::keepLastWords();
  // Threads may be in the driver: memory goes with the process.
  _exit(status);
}
