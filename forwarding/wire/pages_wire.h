// Messages about pages between the home of a unified view and its executors: records on a link of
// their own beside the calls (docs/internals/coherence.md, "A launch over two executors").
//
//   regions    home to executor: runs of pages that the program has from now on, and their extents.
//              Each executor is told of all of them, in one order
//   messages   of the directory, either way: a batch (coherence/pages/batch.h) is the body
//   figures    executor to home: what its pages have cost the link so far, for whoever looks
//
// A region is told before anything about its extents, and before any call that uses it goes: a call
// says how many regions its sender had told by then (Aged::regions).
#pragma once

#include <cstdint>

#include "coherence/directory/types.h"

namespace olpager::forward {

enum class PagesKind : uint32_t { kRegions = 1, kMessages = 2, kFigures = 3 };

/// Before the body.
struct PagesHead {
  PagesKind kind = PagesKind::kMessages;
  uint32_t count = 0;  // kRegions: of RegionRecord, which are the body
};
static_assert(sizeof(PagesHead) == 8);

/// Pages [base, + pages) of the range; page i is extent first + i. The extents were in no region,
/// or all executors have forgotten them (kReleased).
struct RegionRecord {
  uint64_t base = 0;
  uint32_t pages = 0;
  directory::ExtentId first = 0;
};
static_assert(sizeof(RegionRecord) == 16);

/// The body of kFigures: of pages that have come from other executors since the session began, and
/// of those that have gone there.
struct FiguresRecord {
  uint64_t read_bytes = 0;       // that crossed a link
  uint64_t unchanged_bytes = 0;  // of pages of which none did
  uint64_t in_part_bytes = 0;    // of pages of which some did
  uint64_t retained_bytes = 0;   // of pages that are kept after they went; of now
};
static_assert(sizeof(FiguresRecord) == 32);

}  // namespace olpager::forward
