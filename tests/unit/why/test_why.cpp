// Findings of `olpagestat --why`: they are a pure function of the counters.
#include "tools/olpagestat/why.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/catch.h"

using namespace olpager;
using namespace olpager::pager;
using tools::Finding;
using tools::findings;

namespace {

constexpr uint64_t kMib = 1 << 20, kGib = 1 << 30, kSecond = 1'000'000'000;

// A program that streams 16 GiB of a round of 24 GiB through a budget of 8 GiB, twice.
struct Program {
  std::unique_ptr<Counters> counters = std::make_unique<Counters>();
  DeviceCounters& device = counters->device(0);
  DeviceWhy& why = counters->why.devices[0];

  void launchesWait(Limit limit, uint64_t ns) {
    add(why.waiting_ns, ns);
    add(why.waited_ns, ns);
    add(why.limited_ns[static_cast<unsigned>(limit)], ns);
  }
  void streams(uint64_t waited_ns) {
    set(device.vram_budget_bytes, 8 * kGib);
    add(device.allocated_bytes, 30 * kGib);
    add(device.fetched_bytes, 32 * kGib);
    add(device.demand_faults, 1024);
    set(why.round_bytes, 24 * kGib);
    set(why.round_kept_bytes, 8 * kGib);
    set(why.link_in_bytes, 32 * kGib);
    set(why.link_in_ns, 2 * kSecond);
    launchesWait(Limit::kLinkIn, waited_ns);
  }
  std::vector<Finding> found(std::optional<double> seconds = 10) const {
    return findings(*counters, seconds).found;
  }
};

const Finding* find(const std::vector<Finding>& all, const std::string& id) {
  const auto it = std::find_if(all.begin(), all.end(), [&](const auto& f) { return f.id == id; });
  return it == all.end() ? nullptr : &*it;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a program that nothing costs time is in order", "[why]") {
  Program program;
  CHECK(program.found().empty());
  // The program uses little more than nothing, and waits for less than anybody notices.
  set(program.device.vram_budget_bytes, 8 * kGib);
  add(program.device.allocated_bytes, 30 * kGib);
  program.launchesWait(Limit::kLinkIn, 5'000'000);
  CHECK(program.found().empty());
  program.launchesWait(Limit::kLinkIn, 150'000'000);
  CHECK(program.found(10).empty());
  CHECK(program.found(5).size() == 1);
}

TEST_CASE("the budget's cost, and what more of it would bring", "[why]") {
  Program program;
  program.streams(4 * kSecond);
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  const Finding& budget = all.front();
  CHECK(budget.id == "budget");
  CHECK_FALSE(budget.device.has_value());  // there is one alone
  CHECK(budget.seconds == 4);
  CHECK(says(budget.evidence, "waited 4.0 s"));
  CHECK(says(budget.evidence, "30GiB allocated; the budget is 8GiB"));
  CHECK(says(budget.evidence, "A round of the program uses 24GiB; 8GiB of it stay"));
  // 16 GiB stream in each of two rounds: a GiB less is a sixteenth of 4 s.
  CHECK(says(budget.action, "each GiB more would have taken about 250 ms off the run, 125 ms off"));
}

TEST_CASE("what was not measured is not told", "[why]") {
  Program program;
  program.streams(4 * kSecond);
  set(program.why.round_bytes, 0);
  set(program.why.round_kept_bytes, 0);
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(says(all.front().evidence, "No round has been learned"));
  CHECK_FALSE(says(all.front().action, "would have"));
}

TEST_CASE("launches that wait for copies though all fits", "[why]") {
  Program program;
  program.streams(4 * kSecond);
  // All that it had fits: whatever it waited for, the budget is not it; in order it is not.
  set(program.device.vram_budget_bytes, 64 * kGib);
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(all.front().id == "copies");
  CHECK(all.front().seconds == 4);
  CHECK(says(all.front().evidence, "at most 30GiB allocated, and the budget is 64GiB"));
  CHECK_FALSE(says(all.front().action, "--vram"));
  CHECK(program.found(1000).empty());
}

TEST_CASE("what launches wait while the GPU has other kernels to run costs nothing", "[why]") {
  Program program;
  program.streams(4 * kSecond);
  program.launchesWait(Limit::kKernels, 4 * kSecond);
  CHECK(program.found().size() == 2);
  // The GPU was idle for a second of ten.
  add(program.why.busy_ns, 9 * kSecond);
  add(program.why.idle_pages_ns, kSecond);
  CHECK(program.found().front().seconds == 4);  // it was looked at too seldom to say so
  add(program.why.looks, 500);
  const auto all = program.found();
  REQUIRE(all.size() == 2);
  for (const Finding& one : all) {
    CHECK(one.seconds == 0.5);
    CHECK(one.estimated);
    CHECK(says(one.evidence,
               "During about 3.5 s of that the GPU had other kernels of the program to run."));
  }
  CHECK(says(all.front().evidence, "Launches waited 4.0 s for copies"));
  CHECK(says(all.front().action, "about 31 ms off the run"));
  CHECK(program.found(100).empty());
  // All the time that launches waited.
  add(program.why.idle_pages_ns, 7 * kSecond);
  CHECK(program.found().front().seconds == 4);
  CHECK_FALSE(program.found().front().estimated);
}

TEST_CASE("a round that nearly fits asks for what it lacks", "[why]") {
  Program program;
  program.streams(4 * kSecond);
  set(program.why.round_kept_bytes, 24 * kGib - 512 * kMib);
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(says(all.front().action, "512MiB more would have taken about 4.0 s off the run"));
}

TEST_CASE("host RAM is short where it is full and launches wait for memservers", "[why]") {
  Program program;
  set(program.counters->host_limit_bytes, 4 * kGib);
  set(program.counters->host_used_bytes, 4 * kGib);
  add(program.device.remote_bytes, 3 * kGib);
  add(program.device.remote_out, 5 * kGib);
  add(program.device.remote_in, 6 * kGib);
  CHECK(program.found().empty());  // nobody waits
  program.launchesWait(Limit::kMemservers, 3 * kSecond);
  const auto all = program.found();
  const Finding* const tier = find(all, "host-tier");
  REQUIRE(tier != nullptr);
  CHECK(tier->seconds == 3);
  CHECK(find(all, "memservers") != nullptr);
  CHECK(says(tier->evidence,
             "Of 4GiB of host RAM 4GiB are in use; 5GiB went to memservers and "
             "6GiB came back"));
  CHECK(says(tier->action, "raise --host (OL_HOST) by 3GiB"));
  // There is room in host RAM: that is not what keeps pages at memservers.
  set(program.counters->host_used_bytes, kGib);
  CHECK(find(program.found(), "host-tier") == nullptr);
}

TEST_CASE("disks are named where launches wait for them", "[why]") {
  Program program;
  set(program.counters->host_limit_bytes, 4 * kGib);
  set(program.counters->host_used_bytes, 4 * kGib);
  set(program.counters->disk.capacity_bytes, 64 * kGib);
  set(program.counters->disk.written_bytes, 5 * kGib);
  set(program.counters->disk.read_bytes, 7 * kGib);
  add(program.device.remote_bytes, 3 * kGib);
  add(program.device.remote_out, 5 * kGib);
  program.launchesWait(Limit::kMemservers, 3 * kSecond);
  const auto all = program.found();
  const Finding* const disks = find(all, "disks");
  REQUIRE(disks != nullptr);
  CHECK(says(disks->evidence, "7GiB were read and 5GiB written."));
  CHECK(says(disks->action, "add disks"));
  CHECK(find(all, "memservers") == nullptr);
  REQUIRE(find(all, "host-tier") != nullptr);
  CHECK(says(find(all, "host-tier")->evidence, "5GiB went to disks"));
  set(program.counters->memserver_bytes, kGib);
  CHECK(find(program.found(), "memservers") != nullptr);
  CHECK(says(find(program.found(), "host-tier")->evidence, "went to memservers and disks"));
}

TEST_CASE("the slowest memserver, and how much of what it can do", "[why]") {
  Program program;
  auto& servers = program.counters->why.memservers;
  setName(program.counters->rdma.links[0].peer, "10.0.0.2:7070");
  setName(program.counters->rdma.links[1].peer, "10.0.0.3:7070");
  set(servers[0].in_bytes, 4'000'000'000);
  set(servers[0].in_ns, kSecond);
  set(servers[1].in_bytes, 1'000'000'000);
  set(servers[1].in_ns, kSecond);
  set(servers[1].in_best, 5'000'000'000);
  CHECK(program.found().empty());  // nobody waits
  program.launchesWait(Limit::kMemservers, 3 * kSecond);
  const auto all = program.found();
  const Finding* const found = find(all, "memservers");
  REQUIRE(found != nullptr);
  CHECK(says(found->evidence,
             "The slowest, 10.0.0.3:7070, sent 953.67MiB at 1.00 GB/s, 20% of "
             "the 5.00 GB/s that it reached at its best; the fastest one sent at "
             "4.00 GB/s."));
  CHECK(says(found->action, "look at 10.0.0.3:7070"));
  set(servers[1].in_bytes, 3'900'000'000);
  CHECK(says(find(program.found(), "memservers")->action, "--host"));
}

TEST_CASE("the link that does nothing while launches wait has a limit", "[why]") {
  const std::pair<Limit, const char*> limits[] = {{Limit::kMapping, "mapping"},
                                                  {Limit::kHash, "hash"},
                                                  {Limit::kKernels, "kernels"},
                                                  {Limit::kOthers, "others"},
                                                  {Limit::kThread, "thread"}};
  for (const auto& [limit, id] : limits) {
    INFO(id);
    Program program;
    program.streams(kSecond);
    program.launchesWait(limit, 2 * kSecond);
    const auto all = program.found();
    REQUIRE(all.size() == 2);
    CHECK(all[0].id == id);  // the worst first
    CHECK(all[0].seconds == 2);
    CHECK(says(all[0].evidence, "waited 3.0 s for pages. For 2.0 s of these no copy"));
    CHECK(says(all[0].evidence, "the link moved 17 GB/s"));
    CHECK(all[1].id == "budget");
  }
  Program program;
  program.streams(4 * kSecond);
  for (const auto& [limit, id] : limits) CHECK(find(program.found(), id) == nullptr);
}

TEST_CASE("a link that moves less than it can", "[why]") {
  Program program;
  program.streams(4 * kSecond);  // at 17 GB/s
  set(program.why.link_in_best, 20'000'000'000);
  CHECK(find(program.found(), "link") == nullptr);
  set(program.why.link_in_best, 51'539'607'552);
  const auto all = program.found();
  const Finding* const link = find(all, "link");
  REQUIRE(link != nullptr);
  CHECK(link->seconds > 2.6);
  CHECK(link->seconds < 2.7);
  CHECK(says(link->evidence, "moved 17 GB/s, 33% of the 52 GB/s"));
  CHECK(says(link->evidence, "1024 extents came, of 32MiB on average"));
}

TEST_CASE("what nobody knows is said to be unknown", "[why]") {
  Program program;
  program.launchesWait(Limit::kUnknown, 2 * kSecond);
  const auto all = findings(*program.counters, 10);
  CHECK(all.found.empty());
  REQUIRE(all.not_measured.size() == 1);
  CHECK(says(all.not_measured.front(), "waited for in 2.0 s of the 2.0 s"));
}

TEST_CASE("devices are told apart where there are several", "[why]") {
  Program program;
  program.streams(kSecond);
  program.counters->device(2);
  set(program.counters->devices[2].vram_budget_bytes, kGib);
  add(program.counters->devices[2].allocated_bytes, 2 * kGib);
  add(program.counters->why.devices[2].limited_ns[0], 3 * kSecond);
  add(program.counters->why.devices[2].waiting_ns, 3 * kSecond);
  const auto all = program.found();
  REQUIRE(all.size() == 2);
  CHECK(all[0].device == 2u);
  CHECK(all[1].device == 0u);
}

TEST_CASE("findings for people and for programs", "[why]") {
  CountersReading reading;
  CountersSnapshot snapshot;
  snapshot.counters = std::make_unique<Counters>();
  Counters& counters = *snapshot.counters;
  std::strcpy(counters.program, "a\x1b[31mb");
  counters.pid = 4711;
  counters.started_unix_ns = kSecond;
  set(counters.ended_unix_ns, 11 * kSecond);
  snapshot.state = CountersSnapshot::State::kEnded;
  counters.device(0);
  reading.processes.push_back(std::move(snapshot));
  CHECK(says(tools::whyText(reading), "pid 4711  10.0 s\n  In order"));
  CHECK_FALSE(says(tools::whyText(reading), "\x1b"));
  auto json = nlohmann::json::parse(tools::whyJson(reading));
  CHECK(json["processes"][0]["findings"].empty());

  set(counters.devices[0].vram_budget_bytes, kGib);
  add(counters.devices[0].allocated_bytes, 2 * kGib);
  add(counters.why.devices[0].limited_ns[0], 3 * kSecond);
  add(counters.why.devices[0].waiting_ns, 3 * kSecond);
  const std::string text = tools::whyText(reading);
  CHECK(says(text, "  1. the VRAM budget is smaller than what the program uses, 3.0 s, 30% of"));
  CHECK(says(text, "To do: raise --vram"));
  for (size_t at = 0, end = 0; end != std::string::npos; at = end + 1) {
    end = text.find('\n', at);
    CHECK(text.substr(at, end - at).size() <= 100);
  }
  json = nlohmann::json::parse(tools::whyJson(reading));
  const auto& process = json["processes"][0];
  CHECK(process["pid"] == 4711);
  CHECK(process["seconds"] == 10.0);
  REQUIRE(process["findings"].size() == 1);
  CHECK(process["findings"][0]["id"] == "budget");
  CHECK(process["findings"][0]["seconds"] == 3.0);
  CHECK(process["findings"][0]["device"].is_null());
}

TEST_CASE("pages that bounce keep their places in the table", "[why]") {
  const auto why = std::make_unique<WhyCounters>();
  constexpr uint64_t kPage = 2 << 20;
  for (unsigned i = 0; i < 40; ++i) noteBounce(*why, 100 * kPage, i % 4 != 0);
  // More pages than places, each once: none takes the place of the one that bounces.
  for (unsigned i = 0; i < 10 * kBouncingPages; ++i) noteBounce(*why, (200 + i) * kPage, false);
  CHECK(valueOf(why->bounces) == 40 + 10 * kBouncingPages);
  const auto* const most =
      std::max_element(std::begin(why->bouncing), std::end(why->bouncing),
                       [](const auto& a, const auto& b) { return a.bounces < b.bounces; });
  CHECK(valueOf(most->address) == 100 * kPage);
  CHECK(valueOf(most->bounces) == 40);
  CHECK(valueOf(most->written) == 30);
}

TEST_CASE("managed pages between CPU and GPU", "[why]") {
  Program program;
  WhyCounters& why = program.counters->why;
  for (unsigned i = 0; i < 40; ++i) noteBounce(why, 0x200000000000, true);
  CHECK(program.found().empty());
  add(why.cpu_wait_ns, 2 * kSecond);
  add(why.cpu_faults, 50);
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(all.front().id == "ping-pong");
  CHECK(says(all.front().evidence, "waited 2.0 s for pages of managed memory, at 50 touches; 40"));
  CHECK(says(all.front().evidence, "0x200000000000: 40 times, and the CPU wrote it"));
}

TEST_CASE("an allocation in place costs what reading it takes", "[why]") {
  Program program;
  add(program.device.launches, 100);
  add(program.device.launches_in_place, 50);
  set(program.why.in_place_bytes, kGib);
  set(program.why.in_place_allocation_bytes, 3 * kGib);
  set(program.why.in_place_base, 0x200000000000);
  set(program.why.in_place_launches, 40);
  setName(program.why.in_place_kernel, "gather");
  auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(all.front().id == "in-place");
  CHECK_FALSE(all.front().seconds.has_value());  // nobody knows how fast the link is
  CHECK(says(all.front().evidence,
             "1GiB of the allocation of 3GiB at 0x200000000000, which 40 "
             "launches used, such as of gather."));
  set(program.why.link_in_best, 40 * kGib);
  all = program.found();
  CHECK(all.front().seconds == 1.0);
  CHECK(all.front().estimated);
  program.launchesWait(Limit::kHash, kSecond / 2);
  CHECK(program.found().front().id == "in-place");  // the worst first
  // Few launches do.
  add(program.device.launches, 100000);
  CHECK(find(program.found(), "in-place") == nullptr);
}

TEST_CASE("launches that reach all, by their reason", "[why]") {
  Program program;
  set(program.device.vram_budget_bytes, 8 * kGib);
  add(program.device.allocated_bytes, 9 * kGib);
  add(program.device.launches, 100);
  add(program.device.launches_reaching_all, 30);
  add(program.why.reaching_all[0], 10);
  add(program.why.reaching_all[3], 20);
  setName(program.why.reaching_all_kernel, "odd\x1b");
  const auto all = program.found();
  REQUIRE(all.size() == 1);
  CHECK(all.front().id == "reaching-all");
  CHECK_FALSE(all.front().seconds.has_value());
  CHECK(says(all.front().evidence, "30 of 100 launches"));
  CHECK(says(all.front().evidence, "the kernel's parameters are not known (20 of them)"));
  CHECK_FALSE(says(all.front().evidence, "\x1b"));
  // If all fits, nothing has to leave VRAM.
  set(program.device.vram_budget_bytes, 9 * kGib);
  CHECK(program.found().empty());
}

TEST_CASE("pinned memory that goes to and fro", "[why]") {
  Program program;
  status::LinkBytes& link = program.counters->links.links[0];
  set(link.end, static_cast<uint64_t>(status::LinkEnd::kGpunode));
  setName(link.peer, "10.0.0.2:7071");
  set(link.sent, 4 * kGib);  // copies
  CHECK(find(program.found(), "pinned") == nullptr);
  set(link.pinned_sent, 2 * kMib);
  set(link.pinned_received, 3 * kMib);
  set(link.pinned_sends, 100);
  set(link.pinned_ns, 9'000'000);
  CHECK(find(program.found(), "pinned") == nullptr);  // nobody notices
  set(link.pinned_received, 300 * kMib);
  const auto all = program.found();
  const Finding* const found = find(all, "pinned");
  REQUIRE(found != nullptr);
  CHECK_FALSE(found->seconds.has_value());
  CHECK(says(found->evidence, "2MiB of pinned or managed memory went ahead of 100 operations"));
  CHECK(says(found->evidence, "300MiB that kernels had changed came back"));
  CHECK(says(found->evidence, "10.0.0.2:7071"));
  CHECK(says(found->action, "cudaMemcpyAsync"));
  CHECK(find(program.found(1000), "pinned") == nullptr);  // any network carries that meanwhile
  CHECK(find(program.found(std::nullopt), "pinned") != nullptr);
  // Few bytes, of much that is looked through.
  set(link.pinned_received, 0);
  set(link.pinned_ns, 3 * kSecond);
  const auto slow = program.found();
  REQUIRE(find(slow, "pinned") != nullptr);
  CHECK(find(slow, "pinned")->seconds == 3);
}

TEST_CASE("graphs, tables, host memory, moves, and the program's own thread", "[why]") {
  Program program;
  add(program.why.graph_launches, 5);
  add(program.why.sparse_launches, 7);
  CHECK(program.found().empty());
  add(program.why.graph_launches_beyond, 4);
  add(program.why.graph_launches_in_parts, 4);
  CHECK(find(program.found(), "graph") == nullptr);
  add(program.why.graph_launches_beyond, 2);
  add(program.why.graph_launches, 1);
  set(program.why.graph_most_bytes, 9 * kGib);
  add(program.why.sparse_bytes, 2 * kGib);
  add(program.counters->host_wait_ns, 3 * kSecond);
  add(program.counters->why.host_made_bytes, 4'000'000'000);
  add(program.counters->why.host_making_ns, 2 * kSecond);
  add(program.why.busy_ns, 5 * kSecond);
  add(program.why.idle_host_ns, 4 * kSecond);
  add(program.why.idle_pages_ns, kSecond);
  auto& view = program.counters->unified;
  view.count = 2;
  view.moves = 9;
  view.finishing_ns = kSecond;
  view.bringing_ns = kSecond / 2;
  view.executors[1].routed[6] = 8;
  const auto all = program.found();
  REQUIRE(all.size() == 5);
  CHECK(all[0].id == "own-thread");
  CHECK(says(all[0].evidence, "looked at over 10.0 s: for 4.0 s of these (40%)"));
  CHECK(all[1].id == "host-memory");
  CHECK(says(all[1].evidence, "The driver made 3.73GiB at 2.00 GB/s."));
  CHECK(all[2].id == "hops");
  CHECK(says(all[2].evidence, "9 times. They waited 1.0 s until work"));
  CHECK(says(all[2].evidence, "the former executor's VRAM has no room for its pages"));
  CHECK(all[3].id == "graph");
  CHECK(says(all[3].evidence, "6 of 6 launches of graphs"));
  CHECK(says(all[3].evidence, "4 of these were made as their nodes"));
  CHECK(all[4].id == "sparse");
  const auto gpu = findings(*program.counters, 10).gpu;
  REQUIRE(gpu.has_value());
  CHECK(gpu->all == 10);
  CHECK(gpu->pages == 1);
  // Some few of many launches are so.
  add(program.why.graph_launches, 1000);
  add(program.device.launches, 1000);
  CHECK(find(program.found(), "graph") == nullptr);
  CHECK(find(program.found(), "sparse") == nullptr);
}

TEST_CASE("pages that go once are no ping-pong", "[why]") {
  Program program;
  WhyCounters& why = program.counters->why;
  for (uint64_t i = 0; i < 16; ++i) noteBounce(why, 0x200000000000 + (i << 21), true);
  add(why.cpu_wait_ns, 2 * kSecond);
  CHECK(program.found().empty());
  for (uint64_t i = 0; i < 16; ++i) noteBounce(why, 0x200000000000 + (i << 21), true);
  CHECK(find(program.found(), "ping-pong") != nullptr);
}
