// The pass over pages that the GPU makes before an extent is unmapped: a 128-bit position-dependent
// hash of each page (does it still equal its lower copy?) and the set of the range's pages, and of
// other memory, whose addresses lie in it (what can be reached through it?). The kernels as PTX
// text, and the same in C++ for memory that the CPU reads.
//
// The hash is multilinear over 64-bit words m_i: sum of m_i * K_i mod 2^128, plus a constant (the
// Carter-Wegman family of universal hashes in the form studied by Lemire and Kaser, "Strongly
// universal string hashing is fast", 2014, here with fixed keys and all 128 bits kept). K_i =
// k(thread, step) * L(lane), k odd 64-bit by a multiplicative generator from a mixed start for each
// thread, L eight odd 128-bit constants: one key update serves 64 bytes. All K_i are odd and differ
// mod 2^65 (a test enumerates them), hence a change of any one word and a swap of any two unequal
// words always change the hash; other changes go unseen with a chance near 2^-128. The hash is
// safe from accidental collisions; it is no defence against somebody who constructs them.
//
// Thread-safety: pure functions. Units: bytes; pages are 2 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace olpager::kernels {

inline constexpr size_t kHashPageBytes = 2u << 20;

struct PageHash {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PageHash&) const = default;
};
static_assert(sizeof(PageHash) == 16);

/// Hash of the 2 MiB at `page` (8-byte aligned). The same as the kernel's. About 10 GB/s on one
/// core.
PageHash hashPage(const void* page);

/// Hash of a run of `count` pages from their hashes. The pages' order matters: each step multiplies
/// by an odd constant before it adds.
PageHash combineHashes(const PageHash* pages, size_t count);
/// Hash of `bytes` (whole pages) at `memory`, by the CPU: about 10 GB/s.
PageHash hashMemory(const void* memory, uint64_t bytes);

/// The addresses to look for, and the bit of each in a bitmap of bits() bits, 32-bit words: one for
/// each page of the global range, then one for each granule of 1 << outside_shift bytes from
/// outside_base. A word of memory is an address if it is aligned; bits are only ever set.
struct ScanScope {
  uint64_t range_base = 0;
  uint64_t range_pages = 0;  // used part of the range
  uint64_t outside_base = 0;
  uint32_t outside_granules = 0;
  uint32_t outside_shift = 21;

  uint64_t bits() const { return range_pages + outside_granules; }
  uint64_t bitmapWords() const { return (bits() + 31) / 32; }
  bool isOutside(uint64_t bit) const { return bit >= range_pages; }
  /// The first address that a bit stands for.
  uint64_t addressOf(uint64_t bit) const {
    return isOutside(bit) ? outside_base + ((bit - range_pages) << outside_shift)
                          : range_base + bit * kHashPageBytes;
  }
};
static_assert(sizeof(ScanScope) == 32);

/// One run of pages for the kernel, as it lies in device memory.
struct PagePassJob {
  uint64_t address = 0;  // device address of the first page (an alias), 16-byte aligned
  uint64_t found = 0;    // device address of a bitmap (ScanScope), to be cleared before; jobs may
                         // share one; 0: hash only
  uint32_t pages = 0;    // may be below the grid's width
  uint32_t first_hash = 0;  // slot in `hashes` of the first page
};
static_assert(sizeof(PagePassJob) == 24);

/// Parameters of kernel kPagePassKernel, in order; `&member` of each goes into kernelParams. Grid:
/// (largest `pages` of any job, number of jobs, 1); block: (kPagePassThreads, 1, 1); no dynamic
/// shared memory. Page p of job j writes hashes[first_hash + p].
struct PagePassParameters {
  uint64_t jobs = 0;  // device address of PagePassJob[]
  ScanScope scope;
  uint64_t hashes = 0;  // device address of PageHash[], 16-byte aligned
};
inline constexpr char kPagePassKernel[] = "olpager_page_pass";
inline constexpr unsigned kPagePassThreads = 256;

/// Parameters of kernel kScanKernel: the scan alone, for ranges that are no whole pages (module
/// globals). Any grid and block in x.
struct ScanParameters {
  uint64_t address = 0;  // device address, 8-byte aligned
  uint64_t words = 0;    // 8-byte words
  ScanScope scope;
  uint64_t found = 0;  // as in PagePassJob
};
inline constexpr char kScanKernel[] = "olpager_scan";

/// One range for kernel kScanRangesKernel, as it lies in device memory.
struct ScanJob {
  uint64_t address = 0;  // device address, 8-byte aligned
  uint64_t found = 0;    // as in PagePassJob
  uint64_t words = 0;    // 8-byte words
};
static_assert(sizeof(ScanJob) == 24);
/// Parameters: device address of ScanJob[], ScanScope. Grid: (any, number of jobs, 1); any block in
/// x.
inline constexpr char kScanRangesKernel[] = "olpager_scan_ranges";

/// PTX text of the kernels (compute_75, so every later GPU can compile it), NUL-terminated, static.
const char* pagePassPtx();

/// Calls `visitor(word)` for each aligned 8-byte word of [data, + bytes) that lies in [base, base +
/// size). `data` is 8-byte aligned; a tail of fewer than 8 bytes is left out. Words are read once
/// each; the memory may change meanwhile. About 20 GB/s on one core where nothing is found.
template <typename Visitor>
void scanWords(const void* data, size_t bytes, uint64_t base, uint64_t size, Visitor&& visitor);

/// First of `count` words with words[i] - base < size, or `count`. Vectorised where the CPU can.
size_t findWordInRange(const uint64_t* words, size_t count, uint64_t base, uint64_t size);

template <typename Visitor>
void scanWords(const void* data, size_t bytes, uint64_t base, uint64_t size, Visitor&& visitor) {
  const auto* words = static_cast<const uint64_t*>(data);
  const size_t count = bytes / 8;
  size_t at = 0;
  while ((at += findWordInRange(words + at, count - at, base, size)) < count) {
    // Another thread may have written the word since it was found: test what is handed on.
    const uint64_t word = __atomic_load_n(words + at, __ATOMIC_RELAXED);
    if (word - base < size) visitor(word);
    ++at;
  }
}

}  // namespace olpager::kernels

namespace olpager::pager {
/// Hash of an extent's contents, from the hashes of its pages (kernels::combineHashes).
using ContentHash = kernels::PageHash;
}  // namespace olpager::pager
