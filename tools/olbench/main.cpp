// olbench: how fast each path is, beside the limit of the hardware under it. See
// docs/performance.md.

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "base/command_line.h"
#include "base/format.h"
#include "base/locate.h"
#include "base/size.h"
#include "tools/olbench/child.h"
#include "tools/olbench/directory.h"
#include "tools/olbench/disk.h"
#include "tools/olbench/filling.h"
#include "tools/olbench/forward.h"
#include "tools/olbench/managed.h"
#include "tools/olbench/measure.h"
#include "tools/olbench/memserver.h"
#include "tools/olbench/remote.h"
#include "tools/olbench/transport.h"
#include "tools/olbench/unified.h"

namespace {

using namespace olpager;
using namespace olpager::tools::bench;
using nlohmann::json;

double medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Native and pager take turns, so that a drift of the machine meets both; what is added is the
/// median of the rounds' differences.
json launch(const Options& options) {
  std::vector<json> native, paged;
  for (unsigned round = 0; round < options.rounds; ++round) {
    native.push_back(runChild(With::kNative, "launch", options));
    paged.push_back(runChild(With::kPager, "launch", options));
  }
  json rows = json::array();
  for (const LaunchRow& row : launchRows(options)) {
    const auto values = [&](const std::vector<json>& runs, const char* which) {
      std::vector<double> of_rounds;
      of_rounds.reserve(runs.size());
      for (const json& run : runs)
        of_rounds.push_back(run["nanoseconds"][row.key()][which].get<double>());
      return of_rounds;
    };
    const auto figure = [&](const std::vector<json>& runs, const char* which) {
      return medianOf(values(runs, which));
    };
    std::vector<double> added = values(paged, "median");
    const std::vector<double> without = values(native, "median");
    for (size_t round = 0; round < added.size(); ++round) added[round] -= without[round];
    const auto [least, most] = std::minmax_element(added.begin(), added.end());
    rows.push_back({{"pointers", row.pointers},
                    {"streams", row.streams},
                    {"native_ns", figure(native, "median")},
                    {"pager_ns", figure(paged, "median")},
                    {"added_ns", medianOf(added)},
                    {"added_least_ns", *least},
                    {"added_most_ns", *most},
                    {"native_p99_ns", figure(native, "p99")},
                    {"pager_p99_ns", figure(paged, "p99")}});
  }
  return {{"measurement", "launch"}, {"device", native[0]["device"]}, {"rows", rows}};
}

json swapped(const Options& options) {
  const json copy = runChild(With::kNative, "copy", options);
  json run = runChild(With::kPager, "swap", options);
  const double limit = copy["gigabytes_per_second"].get<double>();
  const double in = run["fetched_bytes"].get<double>() / run["seconds"].get<double>() / 1e9;
  run["in_gigabytes_per_second"] = in;
  run["bus_in_gigabytes_per_second"] =
      run["bytes_in"].get<double>() / run["seconds"].get<double>() / 1e9;
  run["out_gigabytes_per_second"] =
      run["bytes_out"].get<double>() / run["seconds"].get<double>() / 1e9;
  run["walked_gigabytes_per_second"] =
      run["walked_bytes"].get<double>() / run["seconds"].get<double>() / 1e9;
  run["pinned_copy_gigabytes_per_second"] = limit;
  run["share_of_limit"] = limit > 0 ? in / limit : 0;
  return {{"measurement", "swap"},  {"device", copy["device"]}, {"allocation", options.allocation},
          {"bytes", options.bytes}, {"vram", options.vram},     {"result", run}};
}

/// A program with a model's shape, beside the time that the link would take: for what does not fit
/// VRAM (a decode), or for what crossed it in the busier direction (a training).
json shaped(const char* kind, const Options& options) {
  const json copy = runChild(With::kNative, "copy", options);
  json run = runChild(With::kPager, kind, options);
  const double limit = copy["gigabytes_per_second"].get<double>();
  const auto of = [&run](const char* name) { return run[name].get<double>(); };
  const double passes = of("passes"),
               streamed = std::max(0.0, of("bytes") - static_cast<double>(options.vram)) * passes;
  const double crossed = std::max(of("bytes_in"), of("bytes_out"));
  const double bound = (std::string_view(kind) == "decode" ? streamed : crossed) / 1e9 / limit;
  run["pinned_copy_gigabytes_per_second"] = limit;
  run["seconds_per_pass"] = of("seconds") / passes;
  run["bound_seconds_per_pass"] = bound / passes;
  run["times_bound"] = bound > 0 ? of("seconds") / bound : 0;
  return {{"measurement", kind},
          {"device", copy["device"]},
          {"allocation", options.allocation},
          {"vram", options.vram},
          {"result", run}};
}

json resident(const Options& options) {
  std::vector<double> native[2], paged[2];
  json device;
  for (unsigned round = 0; round < options.rounds; ++round) {
    const json a = runChild(With::kNative, "resident", options);
    const json b = runChild(With::kPager, "resident", options);
    device = a["device"];
    native[0].push_back(a["bandwidth_seconds"].get<double>());
    native[1].push_back(a["launch_seconds"].get<double>());
    paged[0].push_back(b["bandwidth_seconds"].get<double>());
    paged[1].push_back(b["launch_seconds"].get<double>());
  }
  json rows = json::array();
  const char* const names[] = {"bandwidth", "launches"};
  for (int i = 0; i < 2; ++i) {
    rows.push_back({{"part", names[i]},
                    {"native_s", medianOf(native[i])},
                    {"pager_s", medianOf(paged[i])},
                    {"added_share", medianOf(paged[i]) / medianOf(native[i]) - 1}});
  }
  return {{"measurement", "resident"}, {"device", device}, {"rows", rows}};
}

void print(const json& result) {
  const std::string kind = result["measurement"];
  base::print("{} on {}\n", kind, result["device"].get<std::string>());
  if (kind == "launch") {
    base::print("{:>9} {:>8} {:>11} {:>11} {:>10} {:>16} {:>12} {:>12}\n", "pointers", "streams",
                "native ns", "pager ns", "added ns", "of all rounds", "native p99", "pager p99");
    for (const json& row : result["rows"]) {
      base::print("{:>9} {:>8} {:>11.0f} {:>11.0f} {:>10.0f} {:>16} {:>12.0f} {:>12.0f}\n",
                  row["pointers"].get<unsigned>(), row["streams"].get<unsigned>(),
                  row["native_ns"].get<double>(), row["pager_ns"].get<double>(),
                  row["added_ns"].get<double>(),
                  base::format("{:.0f} to {:.0f}", row["added_least_ns"].get<double>(),
                               row["added_most_ns"].get<double>()),
                  row["native_p99_ns"].get<double>(), row["pager_p99_ns"].get<double>());
    }
  } else if (kind == "swap") {
    const json& run = result["result"];
    base::print("{} in allocations of {}, VRAM budget {}\n",
                base::formatSize(result["bytes"].get<uint64_t>()),
                base::formatSize(result["allocation"].get<uint64_t>()),
                base::formatSize(result["vram"].get<uint64_t>()));
    base::print(
        "in {:.1f} GB/s ({:.1f} over the bus), out {:.1f} GB/s, walked {:.1f} GB/s; pinned copy "
        "{:.1f} GB/s; in / "
        "pinned copy "
        "{:.3f}\n",
        run["in_gigabytes_per_second"].get<double>(),
        run["bus_in_gigabytes_per_second"].get<double>(),
        run["out_gigabytes_per_second"].get<double>(),
        run["walked_gigabytes_per_second"].get<double>(),
        run["pinned_copy_gigabytes_per_second"].get<double>(), run["share_of_limit"].get<double>());
    base::print(
        "demand faults {}, useful prefetches {}, launches in place {}, first filling {:.2f} s\n",
        run["demand_faults"].get<uint64_t>(), run["prefetches_useful"].get<uint64_t>(),
        run["launches_in_place"].get<uint64_t>(), run["fill_seconds"].get<double>());
  } else if (kind == "decode" || kind == "train") {
    const json& run = result["result"];
    const auto of = [&run](const char* name) { return run[name].get<double>(); };
    base::print("{} in all, VRAM budget {}\n", base::formatSize(run["bytes"].get<uint64_t>()),
                base::formatSize(result["vram"].get<uint64_t>()));
    base::print(
        "{:.4f} s a pass, the link takes {:.4f} s: {:.3f} times; in {:.1f} GB/s, out {:.1f} GB/s, "
        "pinned copy {:.1f} GB/s\n",
        of("seconds_per_pass"), of("bound_seconds_per_pass"), of("times_bound"),
        of("bytes_in") / of("seconds") / 1e9, of("bytes_out") / of("seconds") / 1e9,
        of("pinned_copy_gigabytes_per_second"));
    base::print(
        "extents a second: in {:.0f}, of these asked for by launches {:.0f}; out {:.0f}, of these "
        "written {:.0f}; launches in place {:.0f}; busiest thread of the pager {:.0f} % of a "
        "core\n",
        (of("demand_faults") + of("prefetches_issued")) / of("seconds"),
        of("demand_faults") / of("seconds"),
        (of("evictions_clean") + of("evictions_written")) / of("seconds"),
        of("evictions_written") / of("seconds"), of("launches_in_place"),
        100 * of("busiest_thread"));
  } else if (kind == "sampled") {
    base::print("{:<8} {:>10} {:>10} {:>8}\n", "reader", "median ns", "p99 ns", "ratio");
    for (const json& row : result["rows"]) {
      base::print("{:<8} {:>10.0f} {:>10.0f} {:>8.3f}\n", row["reader"].get<std::string>(),
                  row["median_ns"].get<double>(), row["p99_ns"].get<double>(),
                  row["ratio"].get<double>());
    }
  } else {
    for (const json& row : result["rows"]) {
      base::print("{:<10} native {:.4f} s, pager {:.4f} s, {:+.2f} %\n",
                  row["part"].get<std::string>(), row["native_s"].get<double>(),
                  row["pager_s"].get<double>(), row["added_share"].get<double>() * 100);
    }
  }
}

int run(int argc, char** argv) {
  base::CommandLine line(
      "olbench", "Measures what the pager costs and moves, beside the driver alone.",
      "COMMAND [OPTION...]",
      {{"olbench launch", "what a launch costs more under the pager"},
       {"olbench --driver sim swap --vram 64MiB", "a walk through twice the budget, without a GPU"},
       {"olbench --json transport --seconds 2", "links between nodes on this host, as JSON"}});
  CLI::App& app = line.app();
  app.fallthrough();
  Options options;
  bool as_json = false;
  std::string child;
  constexpr const char *kMeasured = "What is measured", *kMemory = "Memory",
                       *kResult = "The result", *kParts = "Parts";
  constexpr double kLeastSeconds = 0.001, kMostSeconds = 3600;
  const auto number = [](CLI::App& of, const char* name, auto& into, const char* text,
                         uint64_t least, uint64_t most = UINT32_MAX) {
    return of.add_option(name, into, text)
        ->check(base::wholeNumber(least, most))
        ->type_name("NUMBER");
  };
  const auto size = [&app](const char* name, auto& into, const char* text) {
    return app.add_option(name, into, text)
        ->transform(base::sizeText())
        ->type_name("SIZE")
        ->group(kMemory);
  };
  const auto seconds = [](CLI::App& of, auto& into) {
    return of.add_option("--seconds", into, "Of each timed part")
        ->capture_default_str()
        ->check(base::numberBetween(kLeastSeconds, kMostSeconds))
        ->type_name("SECONDS")
        ->group(kParts);
  };
  app.add_option("--driver", options.driver, "The libcuda to use; sim: the simulated GPU")
      ->capture_default_str()
      ->type_name("FILE")
      ->group(kMeasured);
  number(app, "--rounds", options.rounds, "Times that native and pager take turns", 1)
      ->capture_default_str()
      ->group(kMeasured);
  number(app, "--launches", options.launches, "Timed launches for each row", 1)
      ->capture_default_str()
      ->group(kMeasured);
  number(app, "--allocations", options.allocations,
         "launch: small allocations besides those it uses", 0)
      ->capture_default_str()
      ->group(kMeasured);
  number(app, "--pointers", options.pointers,
         "Numbers of pointer parameters, with commas between them", 0)
      ->delimiter(',')
      ->type_name("NUMBER,...")
      ->group(kMeasured);
  number(app, "--passes", options.passes, "Timed walks through the working set", 1)
      ->capture_default_str()
      ->group(kMeasured);
  app.add_flag("--write", options.write,
               "swap: the walk writes as well, so that evictions write back")
      ->group(kMeasured);
  app.add_flag("--paging", options.paging,
               "launch: twice the budget is allocated, so that memory is moving or parked")
      ->group(kMeasured);
  app.add_flag("--one-buffer", options.one_buffer,
               "decode: all weights are in one allocation, as llama.cpp has them")
      ->group(kMeasured);
  auto* allocation = size("--allocation", options.allocation,
                          "Bytes of one allocation (default: 32MiB, decode 50MiB, train 64MiB)");
  auto* bytes =
      size("--bytes", options.bytes,
           "Working set (default: swap twice the budget, decode and train three times the budget, "
           "resident 4GiB, remote 3GiB, managed 1GiB, disk 1GiB, filling 1GiB for each row)");
  auto* vram = size(
      "--vram", options.vram,
      "The pager's VRAM budget (default: 8GiB, train 2GiB, remote 1GiB; launch and resident: what "
      "they need)");
  auto* host =
      size("--host", options.host, "The pager's host tier (default: its own; remote: as --vram)");
  app.add_option("--arenas", options.arenas, "Large allocations: in-place or streamed")
      ->check(CLI::IsMember({"in-place", "streamed"}).description(""))
      ->type_name("HOW")
      ->group(kMemory);
  app.add_flag("!--no-pack", options.pack, "No page crosses the bus packed")->group(kMemory);
  app.add_flag("--json", as_json, "One JSON object instead of text")->group(kResult);
  app.add_option("--child", child)->group("");
  auto* launch_command =
      app.add_subcommand("launch", "Time of a resident launch by number of pointers");
  auto* swap_command = app.add_subcommand("swap", "Cyclic walk through more than fits");
  auto* decode_command =
      app.add_subcommand("decode", "A program with the shape of a decode that does not fit");
  auto* train_command =
      app.add_subcommand("train", "A program with the shape of a training that does not fit");
  auto* resident_command = app.add_subcommand("resident", "A program that fits wholly");
  auto* managed_command = app.add_subcommand(
      "managed", "Managed memory between CPU and GPU, by the driver and by the pager");
  auto* filling_command = app.add_subcommand(
      "filling", "Host memory that is used first, made by one thread and by several");
  auto* sampled_command =
      app.add_subcommand("sampled", "What a launch costs while somebody looks at the program");
  auto* transport_command =
      app.add_subcommand("transport", "Links between nodes, beside raw sockets and memcpy");
  TransportOptions transport;
  bool no_veth = false;
  number(*transport_command, "--lanes", transport.lanes, "Connections of a link", 1, 16)
      ->capture_default_str()
      ->group(kParts);
  number(*transport_command, "--io-threads", transport.io_threads,
         "Of each side (default: what the transport chooses)", 0)
      ->group(kParts);
  seconds(*transport_command, transport.seconds);
  transport_command->add_flag("--encrypted", transport.encrypted, "With a key and tls = all")
      ->group(kParts);
  transport_command
      ->add_option("--verbs", transport.verbs,
                   "Only RDMA, from the card with this address to itself: to stand beside "
                   "ib_read_bw and ib_send_lat")
      ->type_name("ADDRESS")
      ->group(kParts);
  transport_command
      ->add_option("--spin", transport.spin_us,
                   "A thread that waits polls so long before it sleeps (perftest polls always)")
      ->type_name("MICROSECONDS")
      ->group(kParts);
  transport_command
      ->add_flag("--no-veth", no_veth, "Without the pair of namespaces at 1 Gbit/s (needs root)")
      ->group(kParts);
  auto* memserver_command = app.add_subcommand(
      "memserver", "Pages of a memserver on this host, beside the bare link to it");
  MemserverOptions memserver;
  seconds(*memserver_command, memserver.seconds);
  auto* directory_command = app.add_subcommand(
      "directory", "Steps of the ownership protocol, and what extents at rest take");
  DirectoryOptions directory;
  number(*directory_command, "--extents", directory.extents, "In one directory", 1024, 1u << 28)
      ->capture_default_str();
  auto* disk_command =
      app.add_subcommand("disk", "The tier of disks, beside requests to the disk alone");
  DiskOptions disk;
  disk_command->add_option("--folder", disk.folder, "On the disk (default: the working folder)")
      ->type_name("FOLDER")
      ->group(kParts);
  auto* remote_command = app.add_subcommand("remote",
                                            "Walks through more than VRAM and host RAM hold: 1 to "
                                            "3 memservers, replicas, TCP and shared memory");
  auto* forward_command = app.add_subcommand(
      "forward", "Calls through an olgpunode on this host, beside native ones and a raw ping-pong");
  auto* unified_command = app.add_subcommand(
      "unified", "The unified view over two olgpunodes on this host, beside one of them alone");
  app.require_subcommand(0, 1);
  if (const auto status = line.parse(argc, argv)) return *status;
  if (memserver_command->parsed()) {
    memserver.rounds = options.rounds;
    const json result = measureMemserver(memserver);
    if (as_json) {
      base::print("{}\n", result.dump(2));
    } else {
      printMemserver(result);
    }
    return 0;
  }
  if (disk_command->parsed()) {
    disk.rounds = options.rounds;
    disk.folder = base::absolutePath(disk.folder.empty() ? "." : disk.folder);
    if (bytes->count() != 0) disk.bytes = options.bytes;
    const json result = measureDisk(disk);
    if (as_json) {
      base::print("{}\n", result.dump(2));
    } else {
      printDisk(result);
    }
    return 0;
  }
  if (directory_command->parsed()) {
    directory.rounds = options.rounds;
    const json result = measureDirectory(directory);
    if (as_json) {
      base::print("{}\n", result.dump(2));
    } else {
      printDirectory(result);
    }
    return 0;
  }
  if (transport_command->parsed()) {
    transport.rounds = options.rounds;
    transport.shaped = !no_veth;
    const json result = measureTransport(transport);
    if (as_json) {
      base::print("{}\n", result.dump(2));
    } else {
      printTransport(result);
    }
    return 0;
  }
  if (!child.empty()) return runAsChild(child, options);
  const bool simulated = options.driver == "sim";
  if (simulated) {
    options.driver = base::locateLibrary(base::currentExecutable(), "libolsimcuda.so");
    if (options.driver.empty())
      throw std::runtime_error("libolsimcuda.so is not beside olbench: build it");
  }
  if (options.driver.find('/') != std::string::npos)
    options.driver = std::filesystem::absolute(options.driver).string();
  json result;
  if (launch_command->parsed()) {
    result = launch(options);
  } else if (swap_command->parsed()) {
    if (bytes->count() == 0) options.bytes = 2 * options.vram;
    result = swapped(options);
  } else if (decode_command->parsed()) {
    if (allocation->count() == 0) options.allocation = uint64_t{50} << 20;
    if (bytes->count() == 0) options.bytes = 3 * options.vram;
    result = shaped("decode", options);
  } else if (train_command->parsed()) {
    if (vram->count() == 0) options.vram = uint64_t{2} << 30;
    if (allocation->count() == 0) options.allocation = uint64_t{64} << 20;
    if (bytes->count() == 0) options.bytes = 3 * options.vram;
    result = shaped("train", options);
  } else if (resident_command->parsed()) {
    if (bytes->count() == 0) options.bytes = uint64_t{4} << 30;
    options.vram = std::max(options.vram, options.bytes + (uint64_t{1} << 30));
    result = resident(options);
  } else if (managed_command->parsed()) {
    if (bytes->count() == 0) options.bytes = uint64_t{1} << 30;
    options.vram = std::max(options.vram, options.bytes + (uint64_t{1} << 30));
    result = managed(options);
  } else if (filling_command->parsed()) {
    if (bytes->count() == 0) options.bytes = uint64_t{1} << 30;
    result = runChild(With::kNative, "filling", options);
  } else if (remote_command->parsed()) {
    const Options sizes = remoteSizes(simulated);
    if (vram->count() == 0) options.vram = sizes.vram;
    if (host->count() == 0) options.host = vram->count() == 0 ? sizes.host : options.vram;
    if (bytes->count() == 0) options.bytes = 3 * options.vram;
    if (allocation->count() == 0) options.allocation = sizes.allocation;
    result = measureRemote(options);
  } else if (forward_command->parsed()) {
    options.vram = vram->count() == 0 ? uint64_t{512} << 20 : options.vram;
    result = measureForward(options);
  } else if (unified_command->parsed()) {
    options.vram = vram->count() == 0 ? uint64_t{512} << 20 : options.vram;
    result = measureUnified(options);
  } else if (sampled_command->parsed()) {
    result = runChild(With::kPager, "sampled", options);
  } else {
    return line.refuse("no command is given");
  }
  if (as_json) {
    base::print("{}\n", result.dump(2));
  } else if (forward_command->parsed()) {
    printForward(result);
  } else if (unified_command->parsed()) {
    printUnified(result);
  } else if (managed_command->parsed()) {
    printManaged(result);
  } else if (filling_command->parsed()) {
    printFilling(result);
  } else if (remote_command->parsed()) {
    printRemote(result);
  } else {
    print(result);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    base::print(stderr, "olbench: {}\n", error.what());
    return 1;
  }
}
