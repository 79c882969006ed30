#include "tools/olbench/forward.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "tools/olbench/child.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/gpunode.h"
#include "tools/olbench/transport.h"

namespace olpager::tools::bench {
namespace {

using Clock = std::chrono::steady_clock;

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

/// Median of a blocking exchange of 32 bytes over loopback.
double pingPong() {
  constexpr int kTurns = 20000;
  const base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    throw std::runtime_error("no loopback socket");
  const int one = 1;
  std::thread echo([&] {
    const base::UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    setsockopt(peer.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char word[32];
    while (recv(peer.get(), word, sizeof word, MSG_WAITALL) == sizeof word) {
      if (send(peer.get(), word, sizeof word, MSG_NOSIGNAL) != sizeof word) break;
    }
  });
  double median = 0;
  {
    const base::UniqueFd near(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(near.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("no connection over loopback");
    setsockopt(near.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    std::vector<double> times;
    char word[32] = {};
    for (int i = 0; i < kTurns; ++i) {
      const auto begin = Clock::now();
      if (send(near.get(), word, sizeof word, MSG_NOSIGNAL) != sizeof word ||
          recv(near.get(), word, sizeof word, MSG_WAITALL) != sizeof word)
        break;
      times.push_back(microseconds(begin));
    }
    median = medianOf(times);
  }
  echo.join();
  return median;
}

struct Row {
  const char* key;
  const char* what;
  const char* unit;
};
constexpr Row kRows[] = {
    {"launch_sync", "launch + sync", "us"},
    {"launch_issue", "launch issue", "us"},
    {"launch_issue_pinned", "  with pinned memory about", "us"},
    {"sync", "sync of an idle stream", "us"},
    {"dtoh_4", "DtoH 4 bytes", "us"},
    {"malloc_free", "cuMemAlloc + cuMemFree 4 KiB", "us"},
    {"htod_4k", "HtoD pageable 4 KiB", "us"},
    {"htod_pinned", "HtoD pinned 256 MiB", "GB/s"},
    {"dtoh_pinned", "DtoH pinned 256 MiB", "GB/s"},
    {"htod_pageable", "HtoD pageable 256 MiB", "GB/s"},
    {"dtoh_pageable", "DtoH pageable 256 MiB", "GB/s"},
};

// Copies from one gpunode to another: straight over both transports, and through the program.
nlohmann::json measureCopiesBetween(Options options) {
  std::vector<double> rates[3], small[3];
  const char* const keys[3] = {"tcp", "shm", "through_program"};
  for (unsigned round = 0; round < options.rounds; ++round) {
    for (int way = 0; way < 3; ++way) {
      const std::vector<std::string> more = {"--straight", way == 2 ? "off" : "on"};
      const Gpunode one(options, more), other(options, more);
      options.gpunode = one.address() + "," + other.address();
      options.transport = way == 1 ? "shm" : "tcp";
      const nlohmann::json run = runChild(With::kForward, "between", options);
      rates[way].push_back(run["rate"].get<double>());
      small[way].push_back(run["small"].get<double>());
    }
  }
  nlohmann::json result;
  for (int way = 0; way < 3; ++way)
    result[keys[way]] = {{"gigabytes_per_second", medianOf(rates[way])},
                         {"us_4k", medianOf(small[way])}};
  return result;
}

}  // namespace

nlohmann::json measureForwarded(const Options& options) {
  const Driver driver(options.driver);
  CUstream stream = nullptr;
  driver.check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const CUfunction function = driver.function(emptyKernelPtx("empty", 1), "empty");
  constexpr size_t kLarge = 256u << 20;
  CUdeviceptr buffer = 0;
  driver.check(driver.cuMemAlloc(&buffer, kLarge), "cuMemAlloc");
  driver.check(driver.cuMemsetD8(buffer, 0, kLarge), "cuMemsetD8");
  driver.check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  void* parameters[] = {&buffer};
  const auto launch = [&] {
    driver.check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
                 "cuLaunchKernel");
  };
  const auto synchronize = [&] {
    driver.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
  const auto timed = [&](unsigned turns, const std::function<void()>& body) {
    for (unsigned i = 0; i < turns / 10 + 10; ++i) body();
    std::vector<double> times;
    for (unsigned i = 0; i < turns; ++i) {
      const auto begin = Clock::now();
      body();
      times.push_back(microseconds(begin));
    }
    return medianOf(times);
  };
  nlohmann::json result;
  result["device"] = driver.deviceName();
  const unsigned turns = std::max(options.launches / 10, 100u);
  result["launch_sync"] = timed(turns, [&] {
    launch();
    synchronize();
  });
  const auto issue = [&] {
    constexpr unsigned kBatch = 100;
    std::vector<double> times;
    for (unsigned i = 0; i < turns / 10 + 10; ++i) {
      const auto begin = Clock::now();
      for (unsigned k = 0; k < kBatch; ++k) launch();
      times.push_back(microseconds(begin) / kBatch);
      synchronize();
    }
    return medianOf(times);
  };
  result["launch_issue"] = issue();
  // As most programs launch: with pinned memory about that kernels are not given.
  void* small = nullptr;
  driver.check(driver.cuMemHostAlloc(&small, 4096, 0), "cuMemHostAlloc");
  result["launch_issue_pinned"] = issue();
  driver.check(driver.cuMemFreeHost(small), "cuMemFreeHost");
  result["sync"] = timed(turns, synchronize);  // a round trip and nothing more
  uint32_t word = 0;
  result["dtoh_4"] =
      timed(turns, [&] { driver.check(driver.cuMemcpyDtoH(&word, buffer, 4), "cuMemcpyDtoH"); });
  result["malloc_free"] = timed(turns, [&] {
    CUdeviceptr other = 0;
    driver.check(driver.cuMemAlloc(&other, 4096), "cuMemAlloc");
    driver.check(driver.cuMemFree(other), "cuMemFree");
  });
  std::vector<char> page(4096, 1);
  result["htod_4k"] = timed(turns, [&] {
    driver.check(driver.cuMemcpyHtoD(buffer, page.data(), page.size()), "cuMemcpyHtoD");
  });
  void* pinned = nullptr;
  driver.check(driver.cuMemHostAlloc(&pinned, kLarge, 0), "cuMemHostAlloc");
  std::memset(pinned, 7, kLarge);
  const auto rate = [&](const std::function<void()>& body) {
    std::vector<double> rates;
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      body();
      rates.push_back(static_cast<double>(kLarge) / microseconds(begin) / 1000);
    }
    return medianOf(rates);
  };
  result["htod_pinned"] = rate([&] {
    driver.check(driver.cuMemcpyHtoDAsync(buffer, pinned, kLarge, stream), "cuMemcpyHtoDAsync");
    synchronize();
  });
  result["dtoh_pinned"] =
      rate([&] { driver.check(driver.cuMemcpyDtoH(pinned, buffer, kLarge), "cuMemcpyDtoH"); });
  driver.check(driver.cuMemFreeHost(pinned), "cuMemFreeHost");
  std::vector<char> pageable(kLarge, 3);
  result["htod_pageable"] = rate(
      [&] { driver.check(driver.cuMemcpyHtoD(buffer, pageable.data(), kLarge), "cuMemcpyHtoD"); });
  result["dtoh_pageable"] = rate(
      [&] { driver.check(driver.cuMemcpyDtoH(pageable.data(), buffer, kLarge), "cuMemcpyDtoH"); });
  return result;
}

nlohmann::json measureForward(const Options& given) {
  Options options = given;
  std::vector<nlohmann::json> native, local, tcp, shm;
  std::vector<double> ping, raw;
  // Before and after: what is in between has threads of its own.
  const auto rawRates = [&] {
    constexpr double kSeconds = 0.5;
    for (unsigned round = 0; round < options.rounds; ++round)
      raw.push_back(rawSocketRate(TransportOptions{}.lanes, kSeconds) / 1e9);
  };
  rawRates();
  auto running = std::make_unique<Gpunode>(options);
  const Gpunode& gpunode = *running;
  for (unsigned round = 0; round < options.rounds; ++round) {
    ping.push_back(pingPong());
    native.push_back(runChild(With::kNative, "forward", options));
    local.push_back(runChild(With::kPager, "forward", options));
    options.gpunode = gpunode.address();
    for (const char* transport : {"tcp", "shm"}) {
      options.transport = transport;
      (std::string(transport) == "tcp" ? tcp : shm)
          .push_back(runChild(With::kForward, "forward", options));
    }
  }
  running.reset();
  const nlohmann::json between = measureCopiesBetween(options);
  rawRates();
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : kRows) {
    const auto figure = [&](const std::vector<nlohmann::json>& runs) {
      std::vector<double> values;
      values.reserve(runs.size());
      for (const auto& run : runs) values.push_back(run[row.key].get<double>());
      return medianOf(values);
    };
    rows.push_back({{"what", row.what},
                    {"unit", row.unit},
                    {"native", figure(native)},
                    {"local", figure(local)},
                    {"tcp", figure(tcp)},
                    {"shm", figure(shm)}});
  }
  return {{"measurement", "forward"},
          {"device", native[0]["device"]},
          {"tcp_ping_pong_us", medianOf(ping)},
          {"raw_gigabytes_per_second", medianOf(raw)},
          {"between", between},
          {"rows", rows}};
}

void printForward(const nlohmann::json& result) {
  const auto raw = result["raw_gigabytes_per_second"].get<double>();
  base::print(
      "forwarded calls, {}; over loopback: raw TCP ping-pong {:.1f} us, raw sockets {:.2f} GB/s\n\n"
      "{:<30}{:>6}{:>10}{:>10}{:>10}{:>10}{:>12}{:>12}\n",
      result["device"].get<std::string>(), result["tcp_ping_pong_us"].get<double>(), raw, "", "",
      "native", "pager", "tcp", "shm", "tcp of raw", "shm of nat.");
  for (const auto& row : result["rows"]) {
    const auto unit = row["unit"].get<std::string>();
    const auto native = row["native"].get<double>(), tcp = row["tcp"].get<double>(),
               shm = row["shm"].get<double>();
    base::print("{:<30}{:>6}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}", row["what"].get<std::string>(),
                unit, native, row["local"].get<double>(), tcp, shm);
    if (unit == "GB/s") base::print("{:>12.2f}{:>12.2f}", tcp / raw, shm / native);
    base::print("\n");
  }
  const auto& between = result["between"];
  const auto of = [&](const char* way, const char* what) {
    return between[way][what].get<double>();
  };
  base::print("\nbetween two gpunodes{:>12}{:>10}{:>22}{:>14}\n", "tcp", "shm",
              "tcp, through program", "tcp of raw");
  base::print("  256 MiB, GB/s{:>17.2f}{:>10.2f}{:>22.2f}{:>14.2f}\n",
              of("tcp", "gigabytes_per_second"), of("shm", "gigabytes_per_second"),
              of("through_program", "gigabytes_per_second"),
              of("tcp", "gigabytes_per_second") / raw);
  base::print("  4 KiB, us{:>21.1f}{:>10.1f}{:>22.1f}\n", of("tcp", "us_4k"), of("shm", "us_4k"),
              of("through_program", "us_4k"));
}

}  // namespace olpager::tools::bench
