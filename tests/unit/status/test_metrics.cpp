#include "coherence/status/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

namespace olpager::status {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSoon = 15s;  // a second, on a machine that does other things

class Client {
 public:
  explicit Client(const std::string& address)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    there.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    REQUIRE(connect(socket_.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) == 0);
    const timeval limit{20, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  bool say(const std::string& text) const {
    return send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }
  // All that comes until the connection ends.
  std::string hear() const {
    std::string all;
    char bytes[4096];
    for (ssize_t got = 0; (got = recv(socket_.get(), bytes, sizeof bytes, 0)) > 0;)
      all.append(bytes, static_cast<size_t>(got));
    return all;
  }

 private:
  base::UniqueFd socket_;
};

std::unique_ptr<MetricsEndpoint> serve(std::function<std::string()> text) {
  auto served = serveMetrics({.address = "127.0.0.1:0"}, std::move(text));
  REQUIRE(served.ok());
  return std::move(served).value();
}

// Sends a byte of a request now and then, until it is cut off.
class Drip {
 public:
  explicit Drip(const std::string& address)
      : client_(address), thread_([this] {
          while (!stop_ && client_.say("a")) std::this_thread::sleep_for(100ms);
        }) {}
  ~Drip() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  const Client client_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("each figure has its help and type once, and the daemon's name") {
  const std::vector<Metric> metrics = {{"sessions", "gauge", "Sessions.", 3},
                                       {"links", "gauge", "Links.", 2, R"({transport="tcp"})"},
                                       {"links", "gauge", "Links.", 1, R"({transport="shm"})"}};
  CHECK(metricsText("oldaemon", metrics) ==
        "# HELP oldaemon_sessions Sessions.\n# TYPE oldaemon_sessions gauge\noldaemon_sessions 3\n"
        "# HELP oldaemon_links Links.\n# TYPE oldaemon_links "
        "gauge\noldaemon_links{transport=\"tcp\"} 2\n"
        "oldaemon_links{transport=\"shm\"} 1\n");
  CHECK(figuresOf(metrics) == std::vector<Figure>{{"sessions", 3},
                                                  {R"(links{transport="tcp"})", 2},
                                                  {R"(links{transport="shm"})", 1}});
}

TEST_CASE("figures are served, and nothing else, on loopback only") {
  const auto endpoint = serve([] { return std::string("oldaemon_sessions 3\n"); });
  const Client good(endpoint->address());
  CHECK(good.say("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"));
  const std::string told = good.hear();
  CHECK(told.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(told.ends_with("\r\n\r\noldaemon_sessions 3\n"));
  const Client other(endpoint->address());
  CHECK(other.say("GET /secret HTTP/1.1\r\n\r\n"));
  CHECK(other.hear().starts_with("HTTP/1.1 404 "));
  // A node that takes it for a daemon's port says no HTTP, and is told what this is before it has
  // said all.
  const Client node(endpoint->address());
  CHECK(node.say("1PLO"));
  CHECK(node.hear().starts_with("HTTP/1.1 400 "));
  const auto again = serveMetrics({.address = endpoint->address()}, {});
  REQUIRE(!again.ok());
  CHECK(again.error().message.find("ss -ltnp 'sport = :") != std::string::npos);
  for (const char* wrong : {"0.0.0.0:0", "[::]:0", "nonsense", "127.0.0.1:port"})
    CHECK(!serveMetrics({.address = wrong}, {}).ok());
}

TEST_CASE("a token is needed beyond loopback, and from who asks") {
  const test::TemporaryFolder folder;
  const std::string token = "0123456789abcdef0123456789abcdef", file = folder.path + "/token";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(file, std::ios::trunc) << text;
    REQUIRE(chmod(file.c_str(), mode) == 0);
  };
  const auto why = [&](const std::string& address) {
    const auto served =
        serveMetrics({.address = address, .token = file}, [] { return std::string(); });
    return served.ok() ? "" : served.error().message;
  };
  write(token + "\n", 0644);
  CHECK(why("127.0.0.1:0").find("others can read or change it") != std::string::npos);
  for (const char* wrong : {"", "short\n", "0123456789abcdef 0123456789abcdef\n",
                            "0123456789abcdef\n0123456789abcdef\n"}) {
    write(wrong, 0600);
    CHECK(why("127.0.0.1:0").find("not a token") != std::string::npos);
  }
  write(token + "\n", 0600);
  auto served = serveMetrics({.address = "0.0.0.0:0", .token = file},
                             [] { return std::string("figures\n"); });
  REQUIRE(served.ok());
  CHECK(served.value()->warning().find("in the clear") != std::string::npos);
  const auto answer = [&](const std::string& header) {
    const Client client(served.value()->address());
    CHECK(client.say("GET /metrics HTTP/1.1\r\n" + header + "\r\n"));
    return client.hear();
  };
  for (const std::string& good : {"Authorization: Bearer " + token + "\r\n",
                                  "Host: here\r\naUTHORIZATION:  bearer  " + token + " \r\n"})
    CHECK(answer(good).ends_with("\r\n\r\nfigures\n"));
  for (const std::string& bad :
       {std::string(), "Authorization: Bearer " + token.substr(1) + "\r\n",
        "Authorization: Bearer " + token + "0\r\n", "Authorization: Basic " + token + "\r\n",
        "Authorization: Bearer" + token + "\r\n", "X: Authorization: Bearer " + token + "\r\n"}) {
    const std::string told = answer(bad);
    CHECK(told.starts_with("HTTP/1.1 401 "));
    CHECK(told.find("WWW-Authenticate: Bearer\r\n") != std::string::npos);
    CHECK(told.find("figures\n") == std::string::npos);
  }
}

TEST_CASE("a token whose file changes is another one from then on") {
  const test::TemporaryFolder folder;
  const std::string file = folder.path + "/token", first(32, 'a'), second(32, 'b'), third(32, 'c');
  // Put in place whole, as a Secret's file is.
  const auto place = [&](const std::string& text, mode_t mode = 0600) {
    const std::string beside = file + ".new";
    std::ofstream(beside, std::ios::trunc) << text;
    REQUIRE(chmod(beside.c_str(), mode) == 0);
    REQUIRE(rename(beside.c_str(), file.c_str()) == 0);
  };
  place(first + "\n");
  auto served = serveMetrics({.address = "127.0.0.1:0", .token = file},
                             [] { return std::string("figures\n"); });
  REQUIRE(served.ok());
  const auto may = [&](const std::string& token) {
    const Client client(served.value()->address());
    CHECK(client.say("GET /metrics HTTP/1.1\r\nAuthorization: Bearer " + token + "\r\n\r\n"));
    return client.hear().starts_with("HTTP/1.1 200 ");
  };
  CHECK(may(first));
  CHECK_FALSE(may(second));
  place(second + "\n");
  CHECK_FALSE(may(first));
  CHECK(may(second));
  // A text that is no token, or a file that others can read, changes nothing; nor does a file that
  // is away.
  place("short\n");
  CHECK(may(second));
  CHECK_FALSE(may("short"));
  place(third + "\n", 0644);
  CHECK(may(second));
  CHECK_FALSE(may(third));
  REQUIRE(unlink(file.c_str()) == 0);
  CHECK(may(second));
  CHECK_FALSE(may(""));
  place(third + "\n");
  CHECK(may(third));
  CHECK_FALSE(may(second));
}

TEST_CASE("who drips a request, or does not take the reply, does not hold up the next for long") {
  // More than the sockets between the two take.
  const auto endpoint = serve([] { return std::string(64 << 20, 'x'); });
  const bool drips = GENERATE(true, false);
  const Client deaf(endpoint->address());
  std::unique_ptr<Drip> drip;
  if (drips) {
    drip = std::make_unique<Drip>(endpoint->address());
  } else {
    CHECK(deaf.say("GET /metrics HTTP/1.1\r\n\r\n"));
  }
  const auto begun = Clock::now();
  const Client next(endpoint->address());
  CHECK(next.say("GET /secret HTTP/1.1\r\n\r\n"));
  CHECK(next.hear().starts_with("HTTP/1.1 404 "));
  CHECK(Clock::now() - begun < kSoon);
}

TEST_CASE("who connects without end and says little keeps nobody out") {
  const auto endpoint = serve([] { return std::string("figures\n"); });
  std::vector<Client> little;
  for (int i = 0; i < 200; ++i) CHECK(little.emplace_back(endpoint->address()).say("G"));
  const auto begun = Clock::now();
  const Client good(endpoint->address());
  CHECK(good.say("GET /metrics HTTP/1.1\r\n\r\n"));
  CHECK(good.hear().ends_with("\r\n\r\nfigures\n"));
  CHECK(Clock::now() - begun < kSoon);
}

TEST_CASE("the end waits for nobody who asks") {
  auto quickest = Clock::duration::max();
  for (int i = 0; i < 5 && quickest >= 500ms; ++i) {  // a machine may do other things
    auto endpoint = serve([] { return std::string(); });
    const Drip drip(endpoint->address());
    std::this_thread::sleep_for(200ms);  // it is being heard
    const auto begun = Clock::now();
    endpoint.reset();
    quickest = std::min(quickest, Clock::now() - begun);
  }
  CHECK(quickest < 500ms);  // else the rest of a second
}

}  // namespace olpager::status
