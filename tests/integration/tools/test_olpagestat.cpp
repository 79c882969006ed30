// olpagestat as its users meet it, over the counters that this test process makes.
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "pager/counters/files.h"
#include "tests/catch.h"
#include "tests/integration/tools/child.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::pager;
using namespace olpager::test;
namespace fs = std::filesystem;

namespace {

struct Runtime : TemporaryFolder {
  std::string variable = "XDG_RUNTIME_DIR=" + path;
  std::string folder = path + "/olpager";
  Counters* mine = nullptr;

  Counters& make(uint64_t keep_token = 0) {
    auto made = createCountersFile(folder, keep_token);
    REQUIRE(made.ok());
    mine = &made.value()->head;
    return *mine;
  }
  /// Runs on this folder alone: by itself olpagestat shows every program of the user, and there may
  /// be others.
  Outcome olpagestat(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {OLPAGESTAT, "--folder", folder});
    return runChild(arguments, {variable});
  }
};

void fill(Counters& counters) {
  set(counters.pool_bytes, 1ull << 30);
  set(counters.memserver_bytes, 448ull << 20);
  set(counters.card_registrations, 12);
  set(counters.card_bytes, 32ull << 20);
  add(counters.host_wait_ns, 2'400'000'000);
  set(counters.memservers_tcp, 2);
  set(counters.rdma.frames_in, 5ull << 20);
  set(counters.rdma.direct_out, 6ull << 20);
  set(counters.rdma.refused_bytes, 4ull << 20);
  LinkCounters& link = counters.rdma.links[1];
  setName(link.peer, "10.0.0.2:7001");
  setName(link.rails[0].device, "mlx5_0");
  set(link.rails[0].port, 1);
  set(link.rails[0].state, uint64_t(RailState::kInUse));
  set(link.rails[0].bytes, 3ull << 20);
  setName(link.rails[2].device, std::string(100, 'm'));
  set(link.rails[2].port, 2);
  set(link.rails[2].state, uint64_t(RailState::kSetAside));
  set(counters.host_limit_bytes, 512ull << 20);
  set(counters.host_used_bytes, 192ull << 20);
  add(counters.managed_allocations, 2);
  add(counters.managed_bytes, 4096);
  auto& device = counters.device(0);
  add(device.launches, 1000);
  add(device.launches_resident, 875);
  add(device.launches_in_place, 3);
  set(device.allocated_bytes, 256ull << 20);
  set(device.allocations, 64);
  set(device.vram_budget_bytes, 64ull << 20);
  set(device.resident_bytes, 62ull << 20);
  set(device.parked_bytes, 192ull << 20);
  set(device.remote_bytes, 128ull << 20);
  add(device.demand_faults, 100);
  for (int i = 0; i < 99; i++) device.fault_wait.record(1'500'000);
  device.fault_wait.record(3'000'000'000);
  add(device.prefetches_issued, 40);
  add(device.prefetches_useful, 30);
  add(device.prefetches_wasted, 10);
  add(device.evictions_clean, 7);
  add(device.evictions_written, 8);
  add(device.evictions_cancelled, 5);
  add(device.bytes_in, 3ull << 29);
  add(device.fetched_bytes, 1ull << 31);
  add(device.kept_bytes, 1ull << 21);
  add(device.bytes_out, 1ull << 29);
  counters.device(1);
}

}  // namespace

TEST_CASE("olpagestat --json has every figure", "[olpagestat]") {
  Runtime runtime;
  fill(runtime.make());
  const auto outcome = runtime.olpagestat({"--json"});
  CHECK(outcome.status == 0);
  CHECK(outcome.err.empty());
  const auto all = nlohmann::json::parse(outcome.out);
  CHECK(all.at("version") == 1);
  REQUIRE(all.at("processes").size() == 1);
  const auto& process = all["processes"][0];
  CHECK(process.at("pid") == getpid());
  CHECK(process.at("state") == "running");
  CHECK(process.at("pool_bytes") == 1ull << 30);
  CHECK(process.at("memserver_bytes") == 448ull << 20);
  CHECK(process.at("card_registrations") == 12);
  CHECK(process.at("card_bytes") == 32ull << 20);
  CHECK(process.at("host_wait_ns") == 2'400'000'000);
  CHECK(process.at("managed_allocations") == 2);
  CHECK(process.at("rdma_frames_in") == 5ull << 20);
  CHECK(process.at("rdma_frames_out") == 0);
  CHECK(process.at("rdma_direct_out") == 6ull << 20);
  CHECK(process.at("rdma_refused_bytes") == 4ull << 20);
  REQUIRE(process.at("links").size() == 1);
  const auto& link = process["links"][0];
  CHECK(link.at("peer") == "10.0.0.2:7001");
  REQUIRE(link.at("rails").size() == 2);
  CHECK(link["rails"][0].at("device") == "mlx5_0");
  CHECK(link["rails"][0].at("state") == "in_use");
  CHECK(link["rails"][0].at("bytes") == 3ull << 20);
  CHECK(link["rails"][1].at("device") == std::string(39, 'm'));
  CHECK(link["rails"][1].at("port") == 2);
  CHECK(link["rails"][1].at("state") == "set_aside");
  CHECK(process.at("unified").is_null());
  REQUIRE(process.at("devices").size() == 2);
  const auto& device = process["devices"][0];
  CHECK(device.at("hit_rate") == 0.875);
  CHECK(device.at("resident_bytes") == 62ull << 20);
  CHECK(device.at("host_bytes") == 192ull << 20);
  CHECK(device.at("faults") == 100);
  CHECK(device.at("prefetches_useful") == 30);
  CHECK(device.at("evictions_clean") == 7);
  CHECK(device.at("evictions_cancelled") == 5);
  CHECK(device.at("bytes_in") == 3ull << 29);
  CHECK(device.at("fetched_bytes") == 1ull << 31);
  CHECK(device.at("kept_bytes") == 1ull << 21);
  CHECK(device.at("waits") == 100);
  CHECK(device.at("fault_wait_p50_ns") > 1'000'000.0);
  CHECK(device.at("fault_wait_p50_ns") < 2'200'000.0);
  CHECK(process["devices"][1].at("hit_rate").is_null());
  CHECK(process["devices"][1].at("fault_wait_p50_ns").is_null());
}

TEST_CASE("olpagestat --once prints sizes for people", "[olpagestat]") {
  Runtime runtime;
  fill(runtime.make());
  const auto outcome = runtime.olpagestat({"--once"});
  CHECK(outcome.status == 0);
  for (const char* text :
       {"test_tools  pid ", "192MiB of 512MiB", "2.4 s until it was made", "64MiB (32 pages)",
        "2 by tcp, 0 by shm, room for 448MiB", "10.0.0.2:7001: mlx5_0 port 1 in use 3MiB, mmm",
        " port 2 set aside 0B", "5MiB in, 0B out by host memory; 0B in, 6MiB out by VRAM alone",
        "not for cards   4MiB of VRAM", "87.5%", "1.5GiB", "GPU 1", "ms"}) {
    INFO(text);
    CHECK(outcome.out.find(text) != std::string::npos);
  }
  // The first line ends with how long the process has run.
  const auto table = [&](const std::vector<std::string>& arguments) {
    const std::string out = runtime.olpagestat(arguments).out;
    return out.substr(std::min(out.find('\n'), out.size()));
  };
  CHECK(table({"--pid", std::to_string(getpid())}) == table({}));
}

TEST_CASE("olpagestat --watch has a column for each tier", "[olpagestat]") {
  Runtime runtime;
  fill(runtime.make());
  const auto outcome = runtime.olpagestat({"--watch", "0.1", "--duration", "0.1"});
  CHECK(outcome.status == 0);
  std::istringstream lines(outcome.out);
  std::string head, line;
  std::getline(lines, head);
  std::getline(lines, line);
  CHECK(head.starts_with("time          pid program            vram   host  place"));
  INFO(line);
  for (const auto& [name, value] :
       {std::pair("vram", "62.0M"), {"host", "192M"}, {"remote", "128M"}, {"r-in/s", "0"}}) {
    const size_t end = head.find(std::string(" ") + name + " ") + 1 + std::strlen(name);
    CHECK(line.substr(0, end).ends_with(std::string(" ") + value));
  }
}

TEST_CASE("olpagestat shows the executors of a unified view", "[olpagestat]") {
  Runtime runtime;
  auto& unified = runtime.make().unified;
  std::strcpy(unified.executors[0].gpunode, "10.0.0.2:7071");
  std::memset(unified.executors[1].gpunode, 'x', sizeof unified.executors[1].gpunode);
  std::memcpy(unified.executors[1].gpunode, "\x1b[2J", 4);  // a damaged one, without an end
  for (auto& one : {&unified.executors[0], &unified.executors[1]}) {
    set(one->room_bytes, 16ull << 30);
    set(one->capacity_bytes, 48ull << 30);
  }
  using status::RouteReason;
  auto& first = unified.executors[0];
  set(first.owned_bytes, 6ull << 20);
  set(first.launches, 70);
  set(first.routed[static_cast<size_t>(RouteReason::kInPlace)], 80);
  set(first.routed[static_cast<size_t>(RouteReason::kPages)], 3);
  set(first.bytes_in, 4ull << 20);
  set(first.read_bytes, 2112ull << 10);
  set(first.in_part_bytes, 2ull << 20);
  set(first.retained_bytes, 10ull << 20);
  set(first.pushed_bytes, 6ull << 20);
  set(unified.executors[1].bytes_out, 4ull << 20);
  set(unified.count, 2);
  status::noteMove(unified, {.from = 1,
                             .to = 0,
                             .reason = RouteReason::kPages,
                             .begun_ns = 1'000'000,
                             .ended_ns = 5'100'000,
                             .pages_there = 3,
                             .pages_coming = 1,
                             .finishing_ns = 3'000'000});
  set(unified.finishing_ns, 3'000'000);
  set(unified.cpu_faults, 12);
  set(unified.cpu_bytes_in, 34ull << 20);
  set(unified.cpu_bytes_out, 8ull << 20);
  const auto table = runtime.olpagestat({"--once"});
  CHECK(table.status == 0);
  INFO(table.out);
  for (const char* text :
       {"one device of 2 executors", "12 faults of the CPU; 34MiB came to it, 8MiB went back\n",
        "\n  10.0.0.2:7071 * ", " 6MiB ", " 10MiB ", " 16GiB ", " 83 ",
        "  80  none of its pages is elsewhere\n", "   3  more of its pages are there\n",
        "-> 10.0.0.2:7071: more of its pages are there (3 there, 1 to come); 4.1ms\n"})
    CHECK(table.out.find(text) != std::string::npos);
  CHECK(table.out.find('\x1b') == std::string::npos);
  CHECK(table.out.find("host tier") == std::string::npos);  // it has no pager here
  const auto all = nlohmann::json::parse(runtime.olpagestat({"--json"}).out);
  const auto& shown = all.at("processes")[0].at("unified");
  CHECK(shown.at("active") == 0);
  CHECK(shown.at("moves") == 1);
  CHECK(shown.at("cpu_faults") == 12);
  CHECK(shown.at("cpu_bytes_in") == 34ull << 20);
  CHECK(shown.at("cpu_bytes_out") == 8ull << 20);
  REQUIRE(shown.at("executors").size() == 2);
  const auto& one = shown["executors"][0];
  CHECK(one.at("gpunode") == "10.0.0.2:7071");
  CHECK(one.at("owned_bytes") == 6ull << 20);
  CHECK(one.at("room_bytes") == 16ull << 30);
  CHECK(one.at("launches") == 70);
  CHECK(one.at("operations") == 83);
  CHECK(one.at("read_bytes") == 2112ull << 10);
  CHECK(one.at("in_part_bytes") == 2ull << 20);
  CHECK(one.at("unchanged_bytes") == 0);
  CHECK(one.at("retained_bytes") == 10ull << 20);
  CHECK(one.at("pushed_bytes") == 6ull << 20);
  CHECK(one.at("operations_by_reason").at("in_place") == 80);
  CHECK(one.at("operations_by_reason").size() == status::kRouteReasons - 1);
  CHECK(shown["executors"][1].at("bytes_out") == 4ull << 20);
  REQUIRE(shown.at("last_moves").size() == 1);
  CHECK(shown["last_moves"][0].at("reason") == "pages");
  CHECK(shown["last_moves"][0].at("from") == 1);
  CHECK(shown["last_moves"][0].at("finishing_ns") == 3'000'000);
  const auto lines = runtime.olpagestat({"--watch", "0.1", "--duration", "0.1"});
  CHECK(lines.out.find("executor") != std::string::npos);
  CHECK(lines.out.find(" 10.0.0.2:7071 * ") != std::string::npos);
  CHECK(lines.out.find('\x1b') == std::string::npos);
}

TEST_CASE("a program's name can't reach the terminal as a control sequence", "[olpagestat]") {
  Runtime runtime;
  auto& counters = runtime.make();
  std::strcpy(counters.program, "\x1b[2J\xff");
  const auto table = runtime.olpagestat({});
  CHECK(table.out.find('\x1b') == std::string::npos);
  const auto json = runtime.olpagestat({"--json"});
  CHECK(json.out.find('\x1b') == std::string::npos);
  CHECK(nlohmann::json::parse(json.out).at("processes").size() == 1);
}

TEST_CASE("olpagestat looks where programs put their counters, or where it is told to",
          "[olpagestat]") {
  Runtime here, elsewhere;
  here.make();
  REQUIRE(runChild({COUNTING_PROGRAM, "5"}, {elsewhere.variable, "OL_COUNTERS_KEEP=1"}).status ==
          0);
  const auto pids = [](const Outcome& outcome) {
    const auto all = nlohmann::json::parse(outcome.out);
    std::set<long> found;
    for (const auto& process : all.at("processes")) found.insert(process.at("pid").get<long>());
    return found;
  };
  const auto there = pids(elsewhere.olpagestat({"--json"}));
  REQUIRE(there.size() == 1);
  CHECK(there.count(getpid()) == 0);
  // By the variable; the user's other programs, if there are any, lie in the folder under /tmp.
  const auto found = pids(runChild({OLPAGESTAT, "--json"}, {here.variable}));
  CHECK(found.count(getpid()) == 1);
  CHECK(found.count(*there.begin()) == 0);
  // Both folders at once.
  const auto both =
      pids(runChild({OLPAGESTAT, "--json", "--folder", here.folder, "--folder", elsewhere.folder}));
  CHECK(both == std::set<long>{getpid(), *there.begin()});
  const auto missing =
      runChild({OLPAGESTAT, "--json", "--folder", here.path + "/none"}, {here.variable});
  CHECK(missing.status == 2);
  CHECK(missing.err.find("/none: No such file or directory") != std::string::npos);
}

TEST_CASE("nothing to show is said, another process is an error", "[olpagestat]") {
  Runtime runtime;
  REQUIRE(mkdir(runtime.folder.c_str(), 0700) == 0);
  const auto none = runtime.olpagestat({"--once"});
  CHECK(none.status == 0);
  CHECK(none.out.find("no program of yours uses a GPU under olpager now") != std::string::npos);
  const auto other = runtime.olpagestat({"--pid", "1"});
  CHECK(other.status == 1);
  CHECK(other.err.find("process 1 has no counters") != std::string::npos);
  CHECK(nlohmann::json::parse(runtime.olpagestat({"--json"}).out).at("processes").empty());
  CHECK(runtime.olpagestat({"--nonsense"}).status == 2);
  CHECK(runtime.olpagestat({"--once", "--watch", "1"}).status == 2);
}

TEST_CASE("counters of an ended process stay until they are forgotten", "[olpagestat]") {
  Runtime runtime;
  CHECK(runChild({COUNTING_PROGRAM, "12"}, {runtime.variable, "OL_COUNTERS_KEEP=1"}).status == 0);
  CHECK(runtime.olpagestat({"--once"}).out.find("counting_program  pid ") == 0);
  CHECK(runtime.olpagestat({"--once", "--forget"}).out.find("  ended  ") != std::string::npos);
  CHECK(runtime.olpagestat({"--once"}).out.find("no program") != std::string::npos);
}

TEST_CASE("how long a killed process ran is not made up", "[olpagestat]") {
  Runtime runtime;
  CHECK(
      runChild({COUNTING_PROGRAM, "12", "die"}, {runtime.variable, "OL_COUNTERS_KEEP=1"}).status ==
      128 + SIGKILL);
  const auto all = nlohmann::json::parse(runtime.olpagestat({"--json"}).out);
  REQUIRE(all.at("processes").size() == 1);
  CHECK(all["processes"][0].at("state") == "ended");
  CHECK(all["processes"][0].at("seconds").is_null());
  CHECK(runtime.olpagestat({"--once"}).out.find("  ended  killed\n") != std::string::npos);
}

TEST_CASE("a hostile folder is refused with a line", "[olpagestat]") {
  Runtime runtime;
  fs::create_directory(runtime.folder);
  fs::permissions(runtime.folder, fs::perms::all);
  const auto outcome = runtime.olpagestat({"--once"});
  CHECK(outcome.status == 0);
  CHECK(outcome.err.find("is open to others (mode 777); chmod 700 it") != std::string::npos);
}
