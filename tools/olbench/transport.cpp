#include "tools/olbench/transport.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "coherence/transport/transport.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::tools::bench {
namespace {

using namespace olpager::transport;
using nlohmann::json;
using Clock = std::chrono::steady_clock;
using base::UniqueFd;

constexpr uint64_t kPage = 2 << 20;
constexpr uint64_t kPages = 32;  // of each side's memory
constexpr std::chrono::seconds kStuck{30};

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double share(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(values.size())))];
}

void must(bool fine, const char* what) {
  if (!fine) throw std::runtime_error(base::format("{}: {}", what, std::strerror(errno)));
}

/// Pages that both sides of one host can map, all of them touched.
struct Pages {
  Pages() : fd(memfd_create("olbench", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    must(fd && ftruncate(fd.get(), kPages * kPage) == 0 &&
             fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0,
         "memfd");
    void* got = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    must(got != MAP_FAILED, "mmap");
    base = static_cast<std::byte*>(got);
    std::memset(got, 1, kPages * kPage);
  }
  ~Pages() { munmap(base, kPages * kPage); }
  Memory memory() const { return {base, kPages * kPage, fd.get(), 0}; }
  UniqueFd fd;
  std::byte* base = nullptr;
};

/// Another process for the other side: runs `body` with one end of a socket pair, killed when this
/// is destroyed.
class Other {
 public:
  explicit Other(const std::function<void(int)>& body) {
    int ends[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    own_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    child_ = fork();
    must(child_ >= 0, "fork");
    if (child_ == 0) {
      own_.reset();
      try {
        body(theirs.get());
      } catch (const std::exception& error) {
        base::print(stderr, "olbench: {}\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
  }
  ~Other() {
    own_.reset();  // its end is the child's sign to go
    waitpid(child_, nullptr, 0);
  }
  int channel() const { return own_.get(); }

 private:
  UniqueFd own_;
  pid_t child_ = -1;
};

void putText(int fd, const std::string& text) {
  const auto length = static_cast<uint32_t>(text.size());
  must(write(fd, &length, sizeof length) == sizeof length &&
           write(fd, text.data(), length) == length,
       "write");
}

std::string getText(int fd) {
  uint32_t length = 0;
  must(recv(fd, &length, sizeof length, MSG_WAITALL) == sizeof length && length < 4096,
       "the other side went away");
  std::string text(length, '\0');
  must(recv(fd, text.data(), length, MSG_WAITALL) == length, "the other side went away");
  return text;
}

void untilGone(int fd) {
  char byte = 0;
  while (read(fd, &byte, 1) > 0) {
  }
}

/// The result of `measure` in a process that has not used a card yet, and from which its other side
/// is forked.
json inOwnProcess(const std::function<json()>& measure) {
  const Other other([&](int channel) { putText(channel, measure().dump()); });
  return json::parse(getText(other.channel()));
}

/// The places of the two sides.
struct Place {
  std::string server = "127.0.0.1";
  std::string server_namespace, client_namespace;  // "": this one
};

void enter(const std::string& name) {
  if (name.empty()) return;
  const UniqueFd fd(open(base::format("/run/netns/{}", name).c_str(), O_RDONLY | O_CLOEXEC));
  must(fd && setns(fd.get(), CLONE_NEWNET) == 0, "setns");
}

Options optionsFor(Choice choice, const TransportOptions& options,
                   const std::shared_ptr<const KeyRing>& keys) {
  Options made;
  made.choice = choice;
  made.lanes = options.lanes;
  made.io_threads = options.io_threads;
  made.keys = keys;
  made.tls = options.encrypted ? Tls::kAll : Tls::kOff;
  if (options.spin_us != 0) made.spin_us = options.spin_us;
  return made;
}

/// The serving side: memory for reads and writes, an answer to each request.
void serve(int channel, Choice choice, const TransportOptions& options, const Place& place,
           const std::shared_ptr<const KeyRing>& keys) {
  enter(place.server_namespace);
  const Pages pages;
  auto endpoint = makeEndpoint(optionsFor(choice, options, keys));
  if (!endpoint.ok()) throw std::runtime_error(endpoint.error().message);
  const auto domain = makeDomain();
  const auto queue = endpoint.value()->makeQueue();
  auto region = registerMemory(domain, pages.memory(), kRemoteReadWrite);
  if (!region.ok()) throw std::runtime_error(region.error().message);
  auto listener =
      endpoint.value()->listen(place.server + ":0", [&](const PeerInfo&) -> Result<Accepted> {
        return Accepted{domain, queue};
      });
  if (!listener.ok()) throw std::runtime_error(listener.error().message);
  const RemoteKey key = region.value()->key();
  putText(channel, listener.value()->address());
  putText(channel, {reinterpret_cast<const char*>(&key), sizeof key});
  std::thread answers([&] {
    for (;;) {
      Completion one;
      if (queue->wait({&one, 1}, std::chrono::seconds(1)) == 0) continue;
      if (one.kind == Completion::Kind::kDown) return;
      if (one.kind == Completion::Kind::kMessage) {
        if (one.link->send(MessageClass::kReply, one.message.bytes()) != Outcome::kOk) return;
      }
    }
  });
  untilGone(channel);
  _exit(0);  // with the threads that are still waiting
}

/// The asking side of a link.
struct Client {
  Client(Choice choice, const TransportOptions& options, const Place& place,
         const std::shared_ptr<const KeyRing>& keys)
      : other([&](int channel) { serve(channel, choice, options, place, keys); }) {
    const std::string address = getText(other.channel());
    const std::string text = getText(other.channel());
    std::memcpy(&key, text.data(), sizeof key);
    enter(place.client_namespace);
    auto made = makeEndpoint(optionsFor(choice, options, keys));
    if (!made.ok()) throw std::runtime_error(made.error().message);
    endpoint = std::move(made.value());
    queue = endpoint->makeQueue();
    auto registered = registerMemory(domain, pages.memory(), kLocalOnly);
    if (!registered.ok()) throw std::runtime_error(registered.error().message);
    region = std::move(registered.value());
    auto connected = endpoint->connect(address, {domain, queue, ""});
    if (!connected.ok()) throw std::runtime_error(connected.error().message);
    link = connected.value();
  }
  ~Client() {
    link->close("measured");
    Completion one;
    while (queue->wait({&one, 1}, kStuck) != 0 && one.kind != Completion::Kind::kDown) {
    }
    link.reset();
    one = {};
    region.reset();
  }
  void post(bool write, Class klass, uint64_t page, uint64_t context) const {
    const LocalRange local{region.get(), page * kPage, kPage};
    const RemoteRange remote{key, page * kPage, kPage};
    const auto outcome = write ? link->write({&local, 1}, remote, klass, context)
                               : link->read({&local, 1}, remote, klass, context);
    if (outcome != Outcome::kOk) throw std::runtime_error(outcomeName(outcome));
  }
  Completion next() const {
    Completion one;
    if (queue->wait({&one, 1}, kStuck) == 0) throw std::runtime_error("the link is stuck");
    if (one.outcome != Outcome::kOk)
      throw std::runtime_error(base::format("{}: {}", outcomeName(one.outcome), link->reason()));
    return one;
  }

  Other other;
  Pages pages;
  RemoteKey key;
  std::unique_ptr<Endpoint> endpoint;
  DomainPtr domain = makeDomain();
  QueuePtr queue;
  RegionPtr region;
  LinkPtr link;
};

/// Bytes a second of 2 MiB reads or writes, several at a time, until the last has arrived: what is
/// under way may all arrive at once, and a slow card has a third of a second of it.
double rate(const Client& client, bool write, Class klass, double time) {
  constexpr uint64_t kDepth = 8;
  uint64_t posted = 0, done = 0;
  const auto begin = Clock::now();
  while (posted < kDepth) client.post(write, klass, posted++ % kPages, 0);
  while (seconds(Clock::now() - begin) < time) {
    client.next();
    ++done;
    client.post(write, klass, posted++ % kPages, 0);
  }
  for (; done < posted; ++done) client.next();
  return static_cast<double>(done * kPage) / seconds(Clock::now() - begin);
}

double readRate(const Client& client, Class klass, double time) {
  return rate(client, false, klass, time);
}

struct RawSockets {
  /// `paced`: as the system's congestion control likes; else as the transport does on loopback.
  explicit RawSockets(unsigned count, bool paced = false) {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    must(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
             listen(listener.get(), 64) == 0 &&
             getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
         "listen");
    for (unsigned i = 0; i < count; ++i) {
      UniqueFd near(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      must(connect(near.get(), reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
      UniqueFd far(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const int on = 1;
      setsockopt(near.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      setsockopt(far.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (!paced) {
        setsockopt(near.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
        setsockopt(far.get(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
      }
      client.push_back(std::move(near));
      server.push_back(std::move(far));
    }
  }
  std::vector<UniqueFd> client, server;
};

/// Bytes a second that `count` connections move when one side does nothing but send and the other
/// nothing but receive.
double rawRate(unsigned count, double time, bool paced) {
  auto sockets = std::make_unique<RawSockets>(count, paced);
  Other other([&](int) {
    sockets->client.clear();
    const Pages pages;
    std::vector<std::thread> threads;
    threads.reserve(count);
    for (unsigned i = 0; i < count; ++i) {
      threads.emplace_back([&, i, fd = sockets->server[i].get()] {
        for (uint64_t page = i * kPages / count;;
             page = (page + 1) % kPages) {  // each its own, as ours
          for (uint64_t sent = 0; sent < kPage;) {
            const ssize_t put =
                send(fd, pages.base + page * kPage + sent, kPage - sent, MSG_NOSIGNAL);
            if (put <= 0) return;
            sent += static_cast<uint64_t>(put);
          }
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
  sockets->server.clear();
  const Pages pages;
  std::vector<uint64_t> bytes(count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  const auto begin = Clock::now();
  for (unsigned i = 0; i < count; ++i) {
    threads.emplace_back([&, i, fd = sockets->client[i].get()] {
      uint64_t total = 0;
      for (uint64_t page = i * kPages / count; seconds(Clock::now() - begin) < time;
           page = (page + 1) % kPages) {
        for (uint64_t got = 0; got < kPage;) {
          const ssize_t part = recv(fd, pages.base + page * kPage + got, kPage - got, 0);
          if (part <= 0) return;
          got += static_cast<uint64_t>(part);
        }
        total += kPage;
      }
      bytes[i] = total;
    });
  }
  for (auto& thread : threads) thread.join();
  const double took = seconds(Clock::now() - begin);
  sockets->client.clear();
  uint64_t total = 0;
  for (const uint64_t each : bytes) total += each;
  return static_cast<double>(total) / took;
}

/// Bytes a second of one thread's memcpy between shared memory and its own, page by page.
double copyRate(double time) {
  const Pages from, into;
  uint64_t pages = 0;
  const auto begin = Clock::now();
  for (; seconds(Clock::now() - begin) < time; ++pages) {
    const uint64_t place = pages % kPages * kPage;
    std::memcpy(into.base + place, from.base + place, kPage);
  }
  return static_cast<double>(pages * kPage) / seconds(Clock::now() - begin);
}

/// Seconds of a 64-byte round trip; the median.
double rawRoundTrip(double time) {
  auto sockets = std::make_unique<RawSockets>(1);
  Other other([&](int) {
    sockets->client.clear();
    char bytes[64];
    while (recv(sockets->server[0].get(), bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes) {
      if (send(sockets->server[0].get(), bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes) return;
    }
  });
  sockets->server.clear();
  std::vector<double> times;
  const auto begin = Clock::now();
  char bytes[64] = {};
  while (seconds(Clock::now() - begin) < time) {
    const auto start = Clock::now();
    must(send(sockets->client[0].get(), bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes &&
             recv(sockets->client[0].get(), bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes,
         "ping-pong");
    times.push_back(seconds(Clock::now() - start));
  }
  sockets->client.clear();
  return median(times);
}

double roundTrip(const Client& client, double time) {
  std::vector<double> times;
  const auto begin = Clock::now();
  const std::byte bytes[64] = {};
  while (seconds(Clock::now() - begin) < time) {
    const auto start = Clock::now();
    if (client.link->send(MessageClass::kRequest, bytes) == Outcome::kOk) {
      while (client.next().kind != Completion::Kind::kMessage) {
      }
      times.push_back(seconds(Clock::now() - start));
    }
  }
  return median(times);
}

/// Seconds of each 2 MiB demand read, one after the other; `loaded`: with prefetch and write-back
/// as fast as they go.
std::vector<double> demandTimes(const Client& client, bool loaded, double time,
                                double& background) {
  constexpr uint64_t kDepth = 4;
  constexpr uint64_t kDemand = 1;
  std::vector<double> times;
  uint64_t outstanding = 0, bytes = 0;
  const auto begin = Clock::now();
  if (loaded) {
    for (uint64_t i = 0; i < kDepth; ++i) {
      client.post(false, Class::kPrefetch, i, 0);
      client.post(true, Class::kWriteBack, 8 + i, 0);
      outstanding += 2;
    }
  }
  // A demand every few page times, so that the background fills the link in between.
  double pause = 0;
  while (seconds(Clock::now() - begin) < time || times.size() < 20) {
    const auto start = Clock::now();
    client.post(false, Class::kDemand, 16 + times.size() % 16, kDemand);
    bool waits = true;
    const auto until = [&] { return waits || seconds(Clock::now() - start) < pause; };
    while (until()) {
      const auto one = client.next();
      if (one.kind == Completion::Kind::kMessage) continue;
      if (one.context == kDemand) {
        times.push_back(seconds(Clock::now() - start));
        waits = false;
        pause = loaded ? 4 * times.back() : 0;
        continue;
      }
      bytes += one.bytes;
      client.post(one.kind == Completion::Kind::kWrite,
                  one.kind == Completion::Kind::kWrite ? Class::kWriteBack : Class::kPrefetch,
                  (one.kind == Completion::Kind::kWrite ? 8 : 0) + bytes / kPage % 8, 0);
    }
  }
  background = static_cast<double>(bytes) / seconds(Clock::now() - begin);
  for (; outstanding != 0; --outstanding) client.next();
  return times;
}

json demandRow(const char* name, Choice choice, const TransportOptions& options, const Place& place,
               const std::shared_ptr<const KeyRing>& keys) {
  const Client client(choice, options, place, keys);
  double none = 0, background = 0;
  const auto alone = demandTimes(client, false, options.seconds * 2, none);
  const auto loaded = demandTimes(client, true, options.seconds * 4, background);
  return {{"path", name},
          {"alone_p50_us", median(alone) * 1e6},
          {"alone_p99_us", share(alone, 0.99) * 1e6},
          {"loaded_p50_us", median(loaded) * 1e6},
          {"loaded_p99_us", share(loaded, 0.99) * 1e6},
          {"background_gigabytes_per_second", background / 1e9},
          {"reads", loaded.size()},
          {"ratio", share(loaded, 0.99) / share(alone, 0.99)}};
}

/// Two namespaces with a veth pair between them, 1 Gbit/s in each direction.
class ShapedPair {
 public:
  ShapedPair() {
    const std::string own = base::format("olbench-{}", getpid());
    place.server = "10.213.77.1";
    place.server_namespace = own + "-a";
    place.client_namespace = own + "-b";
    const std::string a = place.server_namespace, b = place.client_namespace;
    const std::string commands = base::format(
        "exec 2>/dev/null; ip netns add {0} && ip netns add {1} && "
        "ip link add veth0 netns {0} type veth peer name veth0 netns {1} && "
        "ip -n {0} addr add 10.213.77.1/24 dev veth0 && ip -n {1} addr add 10.213.77.2/24 dev "
        "veth0 && "
        "ip -n {0} link set veth0 up && ip -n {1} link set veth0 up && "
        "ip netns exec {0} tc qdisc add dev veth0 root tbf rate 1gbit burst 128kb latency 20ms && "
        "ip netns exec {1} tc qdisc add dev veth0 root tbf rate 1gbit burst 128kb latency 20ms",
        a, b);
    made = std::system(commands.c_str()) == 0;
  }
  ~ShapedPair() {
    const std::string commands = base::format("exec 2>/dev/null; ip netns del {}; ip netns del {}",
                                              place.server_namespace, place.client_namespace);
    if (std::system(commands.c_str()) != 0 && made)
      base::print(stderr, "olbench: the namespaces could not be removed\n");
  }
  Place place;
  bool made = false;
};

// With a key, which a card's address needs; RDMA encrypts nothing.
json measureVerbs(const TransportOptions& options, const std::shared_ptr<const KeyRing>& keys) {
  TransportOptions clear = options;
  clear.encrypted = false;
  Place card;
  card.server = options.verbs;
  std::vector<double> demand, written, trip;
  uint64_t by_lane = 0;
  for (unsigned round = 0; round < options.rounds; ++round) {
    const json one = inOwnProcess([&] {
      const Client client(Choice::kVerbs, clear, card, keys);
      readRate(client, Class::kDemand, options.seconds / 4);
      const double read = readRate(client, Class::kDemand, options.seconds);
      const double wrote = rate(client, true, Class::kWriteBack, options.seconds);
      const double took = roundTrip(client, options.seconds);
      return json{{"read", read},
                  {"wrote", wrote},
                  {"trip", took},
                  {"by_lane", client.link->stats().bounced_bytes}};
    });
    demand.push_back(one["read"].get<double>());
    written.push_back(one["wrote"].get<double>());
    trip.push_back(one["trip"].get<double>());
    by_lane += one["by_lane"].get<uint64_t>();
  }
  json rows = json::array();
  rows.push_back(
      inOwnProcess([&] { return demandRow("verbs", Choice::kVerbs, clear, card, keys); }));
  return {{"measurement", "transport"},
          {"verbs_demand_gigabytes_per_second", median(demand) / 1e9},
          {"verbs_write_back_gigabytes_per_second", median(written) / 1e9},
          {"verbs_round_trip_us", median(trip) * 1e6},
          {"verbs_bytes_by_lane", by_lane},
          {"rows", rows}};
}

void printRows(const json& rows) {
  base::print("{:<24}{:>12}{:>12}{:>12}{:>12}{:>10}{:>12}\n", "2 MiB demand read, us", "alone p50",
              "alone p99", "loaded p50", "loaded p99", "ratio", "load GB/s");
  for (const json& row : rows) {
    base::print("{:<24}{:>12.0f}{:>12.0f}{:>12.0f}{:>12.0f}{:>10.2f}{:>12.2f}\n",
                row["path"].get<std::string>(), row["alone_p50_us"].get<double>(),
                row["alone_p99_us"].get<double>(), row["loaded_p50_us"].get<double>(),
                row["loaded_p99_us"].get<double>(), row["ratio"].get<double>(),
                row["background_gigabytes_per_second"].get<double>());
  }
}

}  // namespace

double rawSocketRate(unsigned connections, double seconds) {
  return rawRate(connections, seconds, false);
}
double memcpyRate(double seconds) { return copyRate(seconds); }

json measureTransport(const TransportOptions& options) {
  std::vector<NamedKey> named{{"olbench", {}}};
  randomBytes(named.front().secret);
  const auto keys = std::make_shared<const KeyRing>(named);
  if (!options.verbs.empty()) return measureVerbs(options, keys);
  const std::shared_ptr<const KeyRing> local_keys = options.encrypted ? keys : nullptr;
  const Place here;

  std::vector<double> raw, unpaced, demand, prefetch, copy, shm;
  std::vector<double> raw_trip, tcp_trip, shm_trip;
  // The sides take turns, so that a drift of the machine meets both.
  for (unsigned round = 0; round < options.rounds; ++round) {
    raw.push_back(rawRate(options.lanes, options.seconds, true));
    unpaced.push_back(rawRate(options.lanes, options.seconds, false));
    {
      const Client client(Choice::kTcp, options, here, local_keys);
      readRate(client, Class::kDemand, options.seconds / 4);
      demand.push_back(readRate(client, Class::kDemand, options.seconds));
      prefetch.push_back(readRate(client, Class::kPrefetch, options.seconds));
    }
    copy.push_back(copyRate(options.seconds));
    {
      const Client client(Choice::kShm, options, here, local_keys);
      readRate(client, Class::kDemand, options.seconds / 4);
      shm.push_back(readRate(client, Class::kDemand, options.seconds));
    }
    raw_trip.push_back(rawRoundTrip(options.seconds));
    tcp_trip.push_back(roundTrip(Client(Choice::kTcp, options, here, local_keys), options.seconds));
    shm_trip.push_back(roundTrip(Client(Choice::kShm, options, here, local_keys), options.seconds));
  }
  json result{{"measurement", "transport"},
              {"lanes", options.lanes},
              {"encrypted", options.encrypted},
              {"raw_gigabytes_per_second", median(raw) / 1e9},
              {"raw_unpaced_gigabytes_per_second", median(unpaced) / 1e9},
              {"tcp_demand_gigabytes_per_second", median(demand) / 1e9},
              {"tcp_prefetch_gigabytes_per_second", median(prefetch) / 1e9},
              {"tcp_demand_ratio", median(demand) / median(raw)},
              {"tcp_demand_ratio_unpaced", median(demand) / median(unpaced)},
              {"tcp_prefetch_ratio", median(prefetch) / median(raw)},
              {"memcpy_gigabytes_per_second", median(copy) / 1e9},
              {"shm_gigabytes_per_second", median(shm) / 1e9},
              {"shm_ratio", median(shm) / median(copy)},
              {"raw_round_trip_us", median(raw_trip) * 1e6},
              {"tcp_round_trip_us", median(tcp_trip) * 1e6},
              {"tcp_round_trip_ratio", median(tcp_trip) / median(raw_trip)},
              {"shm_round_trip_us", median(shm_trip) * 1e6},
              {"shm_round_trip_ratio", median(shm_trip) / median(raw_trip)}};
  json rows = json::array();
  rows.push_back(demandRow("tcp, loopback", Choice::kTcp, options, here, local_keys));
  rows.push_back(demandRow("shm", Choice::kShm, options, here, local_keys));
  if (options.shaped) {
    const ShapedPair shaped;
    if (shaped.made) {
      // A process of its own: a thread that has changed its namespace does not come back.
      Other other([&](int channel) {
        putText(
            channel,
            demandRow("tcp, veth at 1 Gbit/s", Choice::kTcp, options, shaped.place, keys).dump());
      });
      rows.push_back(json::parse(getText(other.channel())));
    } else {
      result["skipped"] = "veth at 1 Gbit/s: needs root, network namespaces, iproute2 and tbf";
    }
  }
  result["rows"] = rows;
  return result;
}

void printTransport(const json& result) {
  const auto number = [&](const char* name) { return result[name].get<double>(); };
  if (!result.contains("lanes")) {
    base::print(
        "verbs: 2 MiB reads {:.3f} GB/s, written back {:.3f} GB/s; 64-byte round trip {:.1f} us; "
        "{} bytes by the "
        "lane\n",
        number("verbs_demand_gigabytes_per_second"),
        number("verbs_write_back_gigabytes_per_second"), number("verbs_round_trip_us"),
        result["verbs_bytes_by_lane"].get<uint64_t>());
    printRows(result["rows"]);
    return;
  }
  base::print("2 MiB reads, {} connections{}\n", result["lanes"].get<unsigned>(),
              result["encrypted"].get<bool>() ? ", encrypted" : "");
  base::print("  raw sockets  {:>7.2f} GB/s\n", number("raw_gigabytes_per_second"));
  base::print(
      "  unpaced      {:>7.2f} GB/s  raw sockets with reno, as the transport sets its own on "
      "loopback\n",
      number("raw_unpaced_gigabytes_per_second"));
  base::print("  tcp demand   {:>7.2f} GB/s  {:.2f} of raw, {:.2f} of unpaced\n",
              number("tcp_demand_gigabytes_per_second"), number("tcp_demand_ratio"),
              number("tcp_demand_ratio_unpaced"));
  base::print("  tcp prefetch {:>7.2f} GB/s  {:.2f} of raw\n",
              number("tcp_prefetch_gigabytes_per_second"), number("tcp_prefetch_ratio"));
  base::print("  memcpy       {:>7.2f} GB/s\n", number("memcpy_gigabytes_per_second"));
  base::print("  shm          {:>7.2f} GB/s  {:.2f} of memcpy\n",
              number("shm_gigabytes_per_second"), number("shm_ratio"));
  base::print("64-byte round trip: raw {:.1f} us, tcp {:.1f} us ({:.2f}), shm {:.1f} us ({:.2f})\n",
              number("raw_round_trip_us"), number("tcp_round_trip_us"),
              number("tcp_round_trip_ratio"), number("shm_round_trip_us"),
              number("shm_round_trip_ratio"));
  printRows(result["rows"]);
  if (result.contains("skipped"))
    base::print("skipped: {}\n", result["skipped"].get<std::string>());
}

}  // namespace olpager::tools::bench
