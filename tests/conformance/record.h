// Records a section of the suite: key = value lines, free of addresses, handles and times, so that
// two runs of the same driver give the same text. Sections run in a process each: one that dies
// loses its own lines only.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"

namespace conformance {

/// Writes "key = value" to standard output (a pipe to the parent, which sorts).
void record(const std::string& key, const std::string& value);
void record(const std::string& key, const char* value);
/// "0 SUCCESS", "1 INVALID_VALUE", ...
void record(const std::string& key, CUresult result);
void recordNumber(const std::string& key, int64_t value);
void recordBool(const std::string& key, bool value);
/// The answer when the call succeeded, else the error.
void recordNumberOr(const std::string& key, CUresult result, int64_t value);
void recordBoolOr(const std::string& key, CUresult result, bool value);
std::string text(CUresult result);

/// Ends the section with a line when what it stands on fails.
void need(CUresult result, const char* what);

/// cuInit, device 0, and a context: the primary one, current.
struct Base {
  CUdevice device = 0;
  CUcontext context = nullptr;
  Base();
};

/// The kernels that sections launch.
struct Kernels {
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;  // ()
  CUfunction store = nullptr;    // (u64 address, u32 value)
  CUfunction load = nullptr;     // (u64 out, u64 address): *out = *address
  CUfunction spin = nullptr;     // (u64 flag, u32 rounds): until *flag != 0 or `rounds` reads
  CUfunction atomics = nullptr;  // (u64 block): one of each kind on its words
  CUfunction many = nullptr;     // (u8, u64, u32, 24-byte struct, u16)
  Kernels();
};

/// Launches with one thread.
CUresult launchOne(CUfunction function, std::vector<void*> parameters, CUstream stream = nullptr);

extern const char* const kPtx;

// Sections; each starts in a fresh process.
void sectionDevice();
void sectionContext();
void sectionMemory();
void sectionPointers();
void sectionVmm();
void sectionBadHandles();
void sectionPools();
void sectionManaged();
void sectionCopies();
void sectionModules();
void sectionLaunch();
void sectionNulls();
void sectionStreams();
void sectionCapture();
void sectionGraphs();
void sectionGraphCopies();
void sectionLookup();
void sectionAtomics();
void sectionStickyUnmapped();
void sectionStickyReadOnly();
void sectionStickyFreed();

}  // namespace conformance
