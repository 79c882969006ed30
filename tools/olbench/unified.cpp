#include "tools/olbench/unified.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "tools/olbench/child.h"
#include "tools/olbench/driver.h"
#include "tools/olbench/gpunode.h"

namespace olpager::tools::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPage = 2u << 20;
constexpr unsigned kBatch = 100;    // launches between two waits
constexpr unsigned kAhead = 20000;  // launches that nobody waits for before the last
constexpr uint64_t kShared = 32;    // pages that all launches of the last row name

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

struct Row {
  const char* key;
  const char* what;
};
constexpr Row kRows[] = {
    {"launch_issue", "launch issue, memory in place"},
    {"launch_through", "one of 20000 launches made without a wait"},
    {"launch_sync", "launch + sync, memory in place"},
    {"turns", "launch at A, launch at B, one page shared"},
    {"turns_many", "launch at A, launch at B, 32 pages shared"},
};

}  // namespace

nlohmann::json measureUnifiedChild(const Options& options) {
  const Driver driver(options.driver);
  const CUfunction function = driver.function(emptyKernelPtx("empty", 2), "empty");
  const uint64_t bytes = options.vram * 3 / 5 / kPage * kPage;
  CUdeviceptr blocks[2] = {}, one = 0, many = 0;
  // Memory goes where it is used first: each block where there is room for it.
  for (CUdeviceptr& block : blocks) {
    driver.check(driver.cuMemAlloc(&block, bytes), "cuMemAlloc");
    driver.check(driver.cuMemsetD8(block, 1, bytes), "cuMemsetD8");
  }
  driver.check(driver.cuMemAlloc(&one, kPage), "cuMemAlloc");
  driver.check(driver.cuMemsetD8(one, 1, kPage), "cuMemsetD8");
  driver.check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  const auto launch = [&](CUdeviceptr block, CUdeviceptr shared) {
    void* parameters[] = {&block, &shared};
    driver.check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
                 "cuLaunchKernel");
  };
  const auto synchronize = [&] { driver.check(driver.cuCtxSynchronize(), "cuCtxSynchronize"); };
  const auto timed = [&](unsigned turns, const std::function<void()>& body) {
    for (unsigned i = 0; i < turns / 10 + 3; ++i) body();
    std::vector<double> times;
    for (unsigned i = 0; i < turns; ++i) {
      const auto begin = Clock::now();
      body();
      times.push_back(microseconds(begin));
    }
    return medianOf(times);
  };
  const unsigned turns = std::max(options.launches / 100, 20u);
  nlohmann::json result;
  int devices = 0;
  driver.check(driver.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  result["devices"] = devices;
  result["device"] = driver.deviceName();
  std::vector<double> issued;
  for (unsigned i = 0; i < turns + 3; ++i) {
    const auto begin = Clock::now();
    for (unsigned k = 0; k < kBatch; ++k) launch(blocks[1], one);
    issued.push_back(microseconds(begin) / kBatch);
    synchronize();
  }
  result["launch_issue"] = medianOf({issued.begin() + 3, issued.end()});
  const auto begin = Clock::now();
  for (unsigned k = 0; k < kAhead; ++k) launch(blocks[1], one);
  synchronize();
  result["launch_through"] = microseconds(begin) / kAhead;
  result["launch_sync"] = timed(turns, [&] {
    launch(blocks[1], one);
    synchronize();
  });
  const auto inTurns = [&](CUdeviceptr shared) {
    return timed(turns, [&] {
      launch(blocks[0], shared);
      launch(blocks[1], shared);
      synchronize();
    });
  };
  result["turns"] = inTurns(one);
  driver.check(driver.cuMemAlloc(&many, kShared * kPage), "cuMemAlloc");
  driver.check(driver.cuMemsetD8(many, 1, kShared * kPage), "cuMemsetD8");
  result["turns_many"] = inTurns(many);
  return result;
}

nlohmann::json measureUnified(const Options& given) {
  Options options = given;
  nlohmann::json result = {{"measurement", "unified"}, {"shared_page_bytes", kPage}};
  const bool several = runChild(With::kNative, "unified", options)["devices"].get<int>() > 1;
  for (const char* transport : {"tcp", "shm"}) {
    options.transport = transport;
    std::vector<nlohmann::json> one, two;
    for (unsigned round = 0; round < options.rounds; ++round) {
      {
        const Gpunode alone(options, {"--device", "0"});
        options.gpunode = alone.address();
        options.view = "discrete";
        one.push_back(runChild(With::kForward, "unified", options));
      }
      // With one GPU both are of that one.
      const Gpunode first(options, {"--device", "0"});
      const Gpunode second(options, {"--device", several ? "1" : "0"});
      options.gpunode = first.address() + "," + second.address();
      options.view = "unified";
      two.push_back(runChild(With::kForward, "unified", options));
    }
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : kRows) {
      const auto figure = [&](const std::vector<nlohmann::json>& runs) {
        std::vector<double> values;
        values.reserve(runs.size());
        for (const auto& run : runs) values.push_back(run[row.key].get<double>());
        return medianOf(values);
      };
      rows.push_back(
          {{"what", row.what}, {"unit", "us"}, {"one", figure(one)}, {"two", figure(two)}});
    }
    result["device"] = one[0]["device"];
    result[transport] = rows;
  }
  return result;
}

void printUnified(const nlohmann::json& result) {
  base::print(
      "unified view of two gpunodes beside one gpunode alone (which pages), {}\n\n{:<44}{:>6}",
      result["device"].get<std::string>(), "", "");
  for (const char* transport : {"tcp", "shm"})
    base::print("{:>10}{:>10}", base::format("{}: one", transport), "two");
  base::print("\n");
  for (size_t i = 0; i < result["tcp"].size(); ++i) {
    base::print("{:<44}{:>6}", result["tcp"][i]["what"].get<std::string>(),
                result["tcp"][i]["unit"].get<std::string>());
    for (const char* transport : {"tcp", "shm"})
      base::print("{:>10.2f}{:>10.2f}", result[transport][i]["one"].get<double>(),
                  result[transport][i]["two"].get<double>());
    base::print("\n");
  }
}

}  // namespace olpager::tools::bench
