// A memserver and sessions of it in one process, over real sockets or shared memory.
#pragma once

#include <oneapi/tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "coherence/transport/faults/faulty.h"
#include "coherence/transport/faults/faulty_wire.h"
#include "memserver/client.h"
#include "memserver/frame_pool.h"
#include "memserver/server/service.h"
#include "tests/catch.h"

namespace olpager::memserver::test {

using namespace std::chrono_literals;
using transport::Choice;
using transport::Class;

inline constexpr std::chrono::seconds kLong{20};  // what has to happen happens within
inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kSlab = 4 * kMiB;

struct Tcp {
  static constexpr Choice kChoice = Choice::kTcp;
};
struct Shm {
  static constexpr Choice kChoice = Choice::kShm;
};

transport::Options optionsFor(Choice choice);

/// A memserver that can be ended and started again at its address.
class Server {
 public:
  explicit Server(Choice choice, uint64_t bytes = 16 * kSlab, ServiceOptions options = {});
  ~Server();
  void stop();
  void start();
  const std::string& address() const { return address_; }

  ServiceOptions options;
  const Choice choice;
  const uint64_t bytes;
  tbb::global_control threads{tbb::global_control::max_allowed_parallelism, 8};
  tbb::task_arena arena{4, 0};
  std::unique_ptr<SlabStore> store;
  /// The domains of the links that were accepted, in their order; how many there are.
  transport::DomainPtr domain(size_t number) const;
  size_t accepted() const;
  std::unique_ptr<transport::Endpoint> endpoint;
  std::unique_ptr<Service> service;
  std::unique_ptr<transport::Listener> listener;

 private:
  std::string address_;
  mutable std::mutex domains_mutex_;  // the listener's thread adds
  std::vector<transport::DomainPtr> domains_;
};

/// Plain memory with a pattern that depends on a seed, registered at a session.
class Buffer {
 public:
  Buffer(const transport::DomainPtr& domain, uint64_t length);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void fill(uint64_t seed);
  bool holds(uint64_t seed) const;
  bool isZero() const;
  transport::LocalRange range() const { return {region.get(), 0, length}; }

  const uint64_t length;
  std::byte* base = nullptr;
  transport::RegionPtr region;
};

/// A session: a client and what it was told.
class Session : public Observer {
 public:
  explicit Session(const Server& server) : Session(server.address(), server.choice) {}
  Session(std::string address, Choice choice, const transport::FaultPlan* faults = nullptr);
  ~Session() override;
  void open();
  void close() { client.reset(); }

  void transferDone(uint64_t context, TransferResult result) override;
  void happened(const Event& event) override;

  /// The result of the transfer with this context; fails the test when none comes.
  TransferResult await(uint64_t context);
  Event await(Event::Kind kind);
  bool saw(Event::Kind kind);
  uint64_t lastRecall() const { return last_recall_.load(); }  // bytes of the last kRecall
  TransferResult read(const Buffer& into, const FrameRange& from, Class klass = Class::kDemand);
  TransferResult write(const Buffer& from, const FrameRange& into, Class klass = Class::kWriteBack);
  std::vector<Slab> lease(uint64_t bytes);

  const std::string address;
  std::unique_ptr<transport::Endpoint> endpoint;
  transport::DomainPtr domain = transport::makeDomain();
  ClientOptions options;
  std::unique_ptr<Client> client;
  std::atomic<uint64_t> next_context{1};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, TransferResult> results_;
  std::deque<Event> events_;
  std::atomic<uint64_t> last_recall_{0};
};

/// Fails the test when it does not become true.
template <typename Condition>
void eventually(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(2ms);
  }
}

std::mt19937_64 seededRandom(const char* test);

}  // namespace olpager::memserver::test
