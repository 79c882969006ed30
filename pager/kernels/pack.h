// Pages of 16-bit floating-point numbers in three quarters of their bytes, and back, by the GPU.
//
// A bfloat16 has 8 bits of exponent, and the weights of a model use few of the 256 exponents: a
// page names its 15 most frequent ones, and each number becomes a byte (sign and mantissa) and 4
// bits (which exponent; 15: none of these, see the list of exceptions). Nothing is lost, whatever
// the bytes are; a page with too many exceptions does not pack. The idea of coding exponents apart
// from the rest: Zhang et al., "70% Size, 100% Accuracy: Lossless LLM Compression for Efficient GPU
// Inference via Dynamic-Length Float" (2025), there with codes of different lengths.
//
// Thread-safety: pure functions. Units: bytes; pages are 2 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pager/kernels/hash_and_scan.h"

namespace olpager::kernels {

/// Parts of one page: header, exceptions, 4 bits of each number, 8 bits of each number.
inline constexpr size_t kPackedHeadBytes = 16384;
inline constexpr size_t kPackedPageBytes = kPackedHeadBytes + kHashPageBytes / 4 * 3;

enum class Packed : uint32_t {
  kNot,  // not looked at: what whoever asks for packing writes before
  kDone,
  kNever,  // too many exceptions
};

/// At the beginning of a packed page.
struct PackedHeader {
  Packed state = Packed::kNot;
  uint32_t exceptions = 0;     // entries of `exception`, in any order
  uint8_t exponents[16] = {};  // of codes 0 to 14
};
/// An exception: the number's place in the page, times 256, and its exponent.
inline constexpr uint32_t kMostExceptions =
    (kPackedHeadBytes - sizeof(PackedHeader)) / sizeof(uint32_t);

/// Parameters of kernel kPackKernel, in order. Grid: (pages, 1, 1); block: (kPackThreads, 1, 1); no
/// dynamic shared memory.
struct PackParameters {
  uint64_t pages = 0;   // device address of the first page, 16-byte aligned
  uint64_t packed = 0;  // where packed pages go, kPackedPageBytes each, 16-byte aligned
};
inline constexpr char kPackKernel[] = "olpager_pack";
inline constexpr unsigned kPackThreads = 1024;

/// Parameters of kernel kUnpackKernel: the same, the other way. Grid: (kUnpackParts, pages, 1);
/// block: (kUnpackThreads, 1, 1).
inline constexpr char kUnpackKernel[] = "olpager_unpack";
inline constexpr unsigned kUnpackParts = 32, kUnpackThreads = 256;

/// PTX text of the kernels, NUL-terminated, static.
const char* packPtx();

}  // namespace olpager::kernels
