// The measurements. Each runs in a child process of its own (child.h), with or without the pager,
// and returns a JSON object of figures; what is a comparison is made by the parent. All throw
// std::runtime_error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace olpager::tools::bench {

struct Options {
  std::string driver = "libcuda.so.1";  // path of the libcuda to measure
  std::vector<unsigned> pointers = {0, 1, 8, 16, 32};
  unsigned launches = 20000;  // timed launches for each number of pointers
  unsigned allocations = 0;   // further small allocations that launches have to be told from
  unsigned rounds = 3;        // times that native and pager take turns
  uint64_t allocation = uint64_t{32} << 20;  // bytes of one allocation
  uint64_t bytes = uint64_t{16} << 30;       // working set
  uint64_t vram = uint64_t{8} << 30;         // budget of the pager
  uint64_t host = 0;                         // host tier of the pager; 0: its default
  unsigned passes = 4;                       // timed walks through the working set
  bool write = false;                        // the walk writes what it reads
  bool paging = false;                       // launches while twice the budget is allocated
  bool one_buffer = false;                   // a decode's weights are in one allocation
  std::string arenas;                        // OL_ARENAS; empty: the pager's own
  bool pack = true;                          // pages cross the bus packed where they pack
  std::string memservers;                    // addresses with commas between; "": none
  unsigned replicas = 1;                     // at them
  std::string gpunode;                       // of a forwarded child
  std::string transport = "auto";            // to it
  std::string view = "discrete";             // of several
};

/// One row of `launch`: a kernel with that many pointers, on one stream or on two in turns.
struct LaunchRow {
  unsigned pointers;
  unsigned streams;
  std::string key() const {
    return std::to_string(pointers) + (streams > 1 ? " on two streams" : "");
  }
};
/// The rows: each number of pointers on one stream, the middle one also on two.
std::vector<LaunchRow> launchRows(const Options& options);

/// Nanoseconds of cuLaunchKernel by LaunchRow::key(): {"8": {"median": .., "p99": ..}, ...}.
nlohmann::json measureLaunch(const Options& options);

/// A cyclic walk through options.bytes: what Counted tells, the bytes walked, and how long it took
/// to fill them at first.
nlohmann::json measureSwap(const Options& options);

/// A program with the shape of a decode: options.bytes of weights, read in the same order in each
/// pass by a kernel for each, in layers of four of options.allocation and three of 2.7 times that.
/// Each is an allocation, or all are in one (options.one_buffer), filled by a copy each. The result
/// is Counted, with the bytes of all weights.
nlohmann::json measureDecode(const Options& options);

/// A program with the shape of a training: options.bytes of weights, gradients and two moments, of
/// options.allocation each, read in turn forwards and backwards, then all written. As
/// measureDecode().
nlohmann::json measureTrain(const Options& options);

/// GB/s of a large copy from pinned host memory, nothing else going on: the link's limit.
nlohmann::json measureCopy(const Options& options);

/// A program that is wholly resident: seconds of a bandwidth-bound and of a launch-bound part.
nlohmann::json measureResident(const Options& options);

/// Nanoseconds of a launch with nobody looking at the program, with a reader of everything ten
/// times a second, and with a trace, in turns; {"rows": [{"reader", "median_ns", "p99_ns",
/// "ratio"}, ...]}. With the pager only.
nlohmann::json measureSampled(const Options& options);

/// Times of single calls, and rates of copies: {"device", "launch_sync", ...} in microseconds and
/// GB/s.
nlohmann::json measureForwarded(const Options& options);
/// In a program with two gpunodes of a device each.
nlohmann::json measureBetween(const Options& options);

}  // namespace olpager::tools::bench
