#include "tools/olbench/memserver.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/format.h"
#include "memserver/client.h"
#include "tools/olbench/daemon.h"

namespace olpager::tools::bench {
namespace {

using namespace olpager::memserver;
using Clock = std::chrono::steady_clock;
using nlohmann::json;
using transport::Choice;
using transport::Class;
using transport::Completion;

constexpr uint64_t kPage = 2ull << 20;
constexpr uint64_t kFlight = 16;  // pages on their way

void must(bool fine, const std::string& what) {
  if (!fine) throw std::runtime_error(what);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Pinned memory as the pager has it: plain, no memfd.
struct Frames {
  explicit Frames(const transport::DomainPtr& domain) {
    base = mmap(nullptr, kFlight * kPage, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    must(base != MAP_FAILED, "no memory");
    auto made =
        transport::registerMemory(domain, {base, kFlight * kPage, -1, 0}, transport::kLocalOnly);
    must(made.ok(), "memory can't be registered");
    region = std::move(made.value());
  }
  ~Frames() {
    region.reset();
    munmap(base, kFlight * kPage);
  }
  transport::LocalRange page(uint64_t which) const { return {region.get(), which * kPage, kPage}; }
  void* base = nullptr;
  transport::RegionPtr region;
};

/// A session that does without the client: its link, and the key of one slab.
class Bare {
 public:
  Bare(transport::Endpoint& endpoint, const std::string& address) : frames(domain_) {
    queue_ = endpoint.makeQueue();
    auto link = endpoint.connect(address, {domain_, queue_, ""});
    must(link.ok(), link.ok() ? "" : link.error().message);
    link_ = link.value();
    ask(protocol::Hello{"olbench"});
    const auto leased = std::get<protocol::LeaseReply>(ask(protocol::Lease{64ull << 20}));
    must(!leased.slabs.empty(), "nothing was leased");
    key_ = {leased.slabs[0].key, leased.slabs[0].bytes, transport::kRemoteReadWrite, 0};
  }
  ~Bare() {
    link_->close("measured");
    for (Completion last; last.kind != Completion::Kind::kDown || !last.link;) {
      if (queue_->wait({&last, 1}, std::chrono::seconds(5)) == 0) break;
    }
  }
  /// Bytes per second, `flight` pages on their way at a time.
  double rate(bool write, uint64_t flight, double seconds) {
    const auto begun = Clock::now();
    const auto end = begun + std::chrono::duration<double>(seconds);
    for (uint64_t i = 0; i < flight; ++i) post(write, i);
    uint64_t moved = 0, under_way = flight;
    while (under_way != 0) {
      Completion done;
      must(queue_->wait({&done, 1}, std::chrono::seconds(20)) == 1 &&
               done.outcome == transport::Outcome::kOk,
           "a transfer failed: " + link_->reason());
      moved += done.bytes;
      --under_way;
      if (Clock::now() < end) {
        post(write, done.context);
        ++under_way;
      }
    }
    return static_cast<double>(moved) / std::chrono::duration<double>(Clock::now() - begun).count();
  }

 private:
  protocol::Body ask(protocol::Body body) {
    const auto bytes = protocol::encode({1, std::move(body)});
    Completion completion;
    must(link_->send(transport::MessageClass::kRequest, bytes) == transport::Outcome::kOk &&
             queue_->wait({&completion, 1}, std::chrono::seconds(20)) == 1 &&
             completion.kind == Completion::Kind::kMessage,
         "no answer");
    auto reply = protocol::decode(completion.message.bytes());
    must(reply.ok(), "an answer that can't be");
    return reply.value().body;
  }
  void post(bool write, uint64_t which) {
    const transport::LocalRange local = frames.page(which);
    const transport::RemoteRange remote{key_, which * kPage, kPage};
    const auto outcome = write ? link_->write({&local, 1}, remote, Class::kWriteBack, which)
                               : link_->read({&local, 1}, remote, Class::kDemand, which);
    must(outcome == transport::Outcome::kOk, transport::outcomeName(outcome));
  }

  transport::DomainPtr domain_ = transport::makeDomain();

 public:
  Frames frames;

 private:
  transport::QueuePtr queue_;
  transport::LinkPtr link_;
  transport::RemoteKey key_;
};

class Session final : public Observer {
 public:
  Session(transport::Endpoint& endpoint, const std::string& address) : frames_(domain_) {
    ClientOptions options;
    options.endpoint = &endpoint;
    options.domain = domain_;
    options.address = address;
    options.label = "olbench";
    auto made = Client::connect(options, *this);
    must(made.ok(), made.ok() ? "" : made.error().message);
    client_ = std::move(made.value());
    const auto leased = client_->lease(64ull << 20);
    must(leased.ok(), leased.ok() ? "" : leased.error().message);
    slab_ = leased.value()[0];
  }
  double rate(bool write, uint64_t flight, double seconds) {
    const auto begun = Clock::now();
    write_ = write;
    end_ =
        begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    moved_ = 0;
    under_way_ = flight;
    for (uint64_t i = 0; i < flight; ++i) post(i);
    std::unique_lock lock(mutex_);
    must(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return under_way_ == 0; }),
         "transfers hang");
    must(!failed_, "a transfer failed");
    return static_cast<double>(moved_) /
           std::chrono::duration<double>(Clock::now() - begun).count();
  }
  void transferDone(uint64_t context, TransferResult result) override {
    if (result != TransferResult::kOk) failed_ = true;
    moved_ += kPage;
    if (Clock::now() < end_ && !failed_) {
      post(context);
    } else {
      std::lock_guard lock(mutex_);
      if (--under_way_ == 0) changed_.notify_all();
    }
  }
  void happened(const Event&) override {}

 private:
  void post(uint64_t which) {
    const transport::LocalRange local = frames_.page(which);
    const FrameRange frame{slab_.id, which * kPage, kPage};
    if (write_) {
      client_->write({&local, 1}, frame, Class::kWriteBack, which);
    } else {
      client_->read({&local, 1}, frame, Class::kDemand, which);
    }
  }

  transport::DomainPtr domain_ = transport::makeDomain();
  Frames frames_;
  Slab slab_;
  bool write_ = false;
  Clock::time_point end_;
  std::atomic<uint64_t> moved_{0}, under_way_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<Client> client_;  // ends first
};

json row(const char* name, Choice choice, const MemserverOptions& options) {
  const Daemon daemon(choice == Choice::kShm ? "shm" : "tcp", 128ull << 20, 64ull << 20);
  transport::Options network;
  network.choice = choice;
  auto endpoint = transport::makeEndpoint(sessionTransport(network));
  must(endpoint.ok(), "no endpoint");
  json result = {{"path", name}};
  Bare bare(*endpoint.value(), daemon.address());
  Session session(*endpoint.value(), daemon.address());
  const struct {
    const char* name;
    bool write;
    uint64_t flight;
  } kParts[] = {{"read", false, kFlight}, {"write", true, kFlight}, {"single_read", false, 1}};
  for (const auto& part : kParts) {
    std::vector<double> link, client;
    for (unsigned round = 0; round < options.rounds;
         ++round) {  // in turns: a drift of the machine meets both
      link.push_back(bare.rate(part.write, part.flight, options.seconds));
      client.push_back(session.rate(part.write, part.flight, options.seconds));
    }
    const std::string prefix = part.name;
    result[prefix + "_link_gigabytes_per_second"] = median(link) / 1e9;
    result[prefix + "_client_gigabytes_per_second"] = median(client) / 1e9;
    result[prefix + "_ratio"] = median(client) / median(link);
  }
  return result;
}

}  // namespace

json measureMemserver(const MemserverOptions& options) {
  return {{"rows", json::array({row("tcp, loopback", Choice::kTcp, options),
                                row("shm", Choice::kShm, options)})}};
}

void printMemserver(const json& result) {
  base::print("{:<16}{:>22}{:>22}{:>26}\n", "2 MiB, GB/s", "16 reads at a time",
              "16 writes at a time", "one read after the other");
  for (const json& each : result["rows"]) {
    base::print("{:<16}", each["path"].get<std::string>());
    for (const std::string part : {"read", "write", "single_read"}) {
      base::print("{:>8.2f} of {:>5.2f} {:>4.2f} ",
                  each[part + "_client_gigabytes_per_second"].get<double>(),
                  each[part + "_link_gigabytes_per_second"].get<double>(),
                  each[part + "_ratio"].get<double>());
    }
    base::print("\n");
  }
  base::print("session of the bare link, share\n");
}

}  // namespace olpager::tools::bench
