#include "coherence/transport/faults/faulty_wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/format.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/core/reactor.h"

namespace olpager::transport {
namespace {

constexpr ssize_t kShort = 4096;

class Relay final : public FaultyWire {
 public:
  Relay(const SocketAddress& target, const WirePlan& plan, base::UniqueFd listener,
        std::string address)
      : target_(target), plan_(plan), listener_(std::move(listener)), address_(std::move(address)) {
    acceptor_ = std::thread([this] { accept(); });
  }
  ~Relay() override {
    stop_ = true;
    acceptor_.join();
    for (auto& pump : pumps_) pump.join();
  }
  const std::string& address() const override { return address_; }
  void freeze() override { frozen_ = true; }
  void thaw() override { frozen_ = dripping_ = false; }
  void drip() override { dripping_ = true; }
  void cut() override { ++cuts_; }
  uint64_t faults() const override { return faults_.load(); }

 private:
  struct Connection {
    base::UniqueFd near, far;
    uint64_t cuts = 0;  // that there had been
  };

  bool readable(int fd, const uint64_t* cuts = nullptr) const {
    while (!stop_ && (cuts == nullptr || *cuts == cuts_)) {
      pollfd waiting{fd, POLLIN, 0};
      if (poll(&waiting, 1, 20) > 0) return true;
    }
    return false;
  }

  void accept() {
    for (uint64_t number = 0; readable(listener_.get()); ++number) {
      base::UniqueFd near(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      auto far = connectSocket(target_, {nowMs() + 5000});
      if (!near || !far.ok()) continue;
      auto connection = std::make_shared<Connection>();
      connection->near = std::move(near);
      connection->far = std::move(far.value());
      connection->cuts = cuts_;
      pumps_.emplace_back([this, connection, number] {
        pump(*connection, connection->near.get(), connection->far.get(), 2 * number);
      });
      pumps_.emplace_back([this, connection, number] {
        pump(*connection, connection->far.get(), connection->near.get(), 2 * number + 1);
      });
    }
  }

  void pump(Connection& connection, int from, int into, uint64_t number) {
    std::mt19937_64 random(plan_.seed * 1000003 + number);
    const auto roll = [&](uint32_t chance) { return chance != 0 && random() % 1'000'000 < chance; };
    std::vector<char> bytes(64 << 10);
    uint64_t passed = 0;
    while (readable(from, &connection.cuts)) {
      if (frozen_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      const bool drips = dripping_ && recv(from, bytes.data(), bytes.size(), MSG_PEEK) > kShort;
      const ssize_t got = recv(from, bytes.data(), drips ? 1 : bytes.size(), 0);
      if (drips) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) break;
      auto length = static_cast<size_t>(got);
      bool cut = false;
      passed += length;
      if (passed > plan_.quiet_bytes) {
        if (roll(plan_.delay)) {
          ++faults_;
          std::this_thread::sleep_for(std::chrono::microseconds(random() % (plan_.delay_us + 1)));
        }
        if (roll(plan_.corrupt)) {
          ++faults_;
          bytes[random() % length] ^= static_cast<char>(1 << random() % 8);
        }
        if (roll(plan_.cut)) {
          ++faults_;
          cut = true;
          length = random() % length;
        }
      }
      for (size_t sent = 0; sent < length && !stop_ && connection.cuts == cuts_;) {
        const ssize_t put = send(into, bytes.data() + sent, length - sent, MSG_NOSIGNAL);
        if (put > 0) {
          sent += static_cast<size_t>(put);
        } else if (errno != EAGAIN) {
          cut = true;
          break;
        } else {
          pollfd waiting{into, POLLOUT, 0};
          poll(&waiting, 1, 20);
        }
      }
      if (cut) break;
    }
    shutdown(connection.near.get(), SHUT_RDWR);
    shutdown(connection.far.get(), SHUT_RDWR);
  }

  const SocketAddress target_;
  const WirePlan plan_;
  const base::UniqueFd listener_;
  const std::string address_;
  std::atomic<bool> stop_{false}, frozen_{false}, dripping_{false};
  std::atomic<uint64_t> faults_{0}, cuts_{0};
  std::list<std::thread> pumps_;  // the acceptor's thread adds; joined after it
  std::thread acceptor_;
};

}  // namespace

Result<std::unique_ptr<FaultyWire>> makeFaultyWire(const std::string& target,
                                                   const WirePlan& plan) {
  auto there = resolve(target, false);
  auto here = resolve("127.0.0.1:0", true);
  if (!there.ok()) return there.error();
  if (!here.ok()) return here.error();
  SocketAddress bound = here.value().front();
  base::UniqueFd listener = makeSocket(bound.family());
  if (!listener || bind(listener.get(), bound.get(), bound.length) != 0 ||
      ::listen(listener.get(), 64) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) !=
          0) {
    return Error{base::format("a relay: {}", std::strerror(errno))};
  }
  return std::unique_ptr<FaultyWire>(
      std::make_unique<Relay>(there.value().front(), plan, std::move(listener), bound.text()));
}

}  // namespace olpager::transport
