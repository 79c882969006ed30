// A pager and a runtime for the wrappers' test that do nothing but remember what they were told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interpose/local/local_runtime.h"

struct RecordedRange {
  uint64_t address;
  uint64_t bytes;
  int mode;
  bool operator==(const RecordedRange&) const = default;
};
struct RecordedSource {
  const void* host;
  uint64_t bytes;
  bool stable;
  bool operator==(const RecordedSource&) const = default;
};

/// The effects of one call, in order of `steps`: 'f' waited for host functions, 'e' entered, 'd'
/// driver, 'l' left.
struct Record {
  std::vector<RecordedRange> ranges;
  std::vector<RecordedSource> sources;
  std::vector<uint64_t> words;
  olpager::pager::StreamKey stream;
  std::string steps;
  int symbol = -1;
  CUresult left_with = CUDA_ERROR_UNKNOWN;
  std::string failed;  // the function that an exception left
};

inline constexpr uint64_t kPoolBase = 0x2100'0000'0000;
inline constexpr uint64_t kPoolEnd = kPoolBase + (1ull << 40);
/// A module's variable.
inline constexpr uint64_t kRoot = 0x7e00'0000'0000;
inline constexpr uint64_t kRootBytes = 64;
inline CUcontext const kContext = reinterpret_cast<CUcontext>(0x77);

extern Record g_record;
/// The answers of enter() and the driver.
extern CUresult g_enter_result;
extern CUresult g_driver_result;
/// True if named memory is managed.
extern bool g_managed;
/// Called by enter(), to throw.
extern void (*g_enter_throws)();
/// A context that has ended over lost memory; nullptr: there is none.
extern CUcontext g_ended;

olpager::api::DriverTable& recordingDriver();
void usePool(bool on);
