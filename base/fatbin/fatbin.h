// Reader of CUDA fat binaries: the container in which nvcc packs PTX and cubins of several
// architectures, as the wrapper that programs register (versions 1 and 2), as the bare container,
// and as the other forms of code that cuModuleLoadData accepts (cubin, PTX text). The layout was
// found by comparing nvcc's outputs, and fatbinary_section.h. Every read is checked against the
// container's size: entries may come from a peer. Only `locate` follows pointers of its caller's
// own process, as the driver function that it serves does. Thread-safety: pure functions.
// Ownership: all results are views of the caller's bytes unless they say otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fatbin/bytes.h"
#include "base/result.h"

namespace olpager::fatbin {

// First words: of what a program registers, which points to a container; of a container.
constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kContainerMagic = 0xba55ed50;

enum class Kind : uint16_t {
  ptx = 1,
  elf = 2
};  // others exist (LTO IR) and are listed with their number
enum class Compression { none, lz4, zstd };

constexpr uint64_t kFlag64Bit = 0x1;
constexpr uint64_t kFlagDebug = 0x2;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchSpecific = 0x100000;    // sm_90a: runs on this compute capability alone
constexpr uint64_t kFlagFamilySpecific = 0x200000;  // sm_100f: runs on this family

/// One image in a container.
struct Entry {
  Kind kind{};
  uint32_t arch = 0;  ///< 90 for sm_90 or compute_90
  uint64_t flags = 0;
  uint16_t major = 0;  ///< version of the payload's format (PTX ISA)
  uint16_t minor = 0;
  std::string_view name;  ///< the source file's identifier, often empty
  Compression compression = Compression::none;
  uint64_t uncompressed_size = 0;  ///< bytes, also where nothing is compressed
  Bytes payload;                   ///< as stored
};

/// The images of one container, in order. `container` begins at the container's header and may be
/// longer than it.
Result<std::vector<Entry>> entries(Bytes container);

/// The entry's bytes, decompressed (owned by the result). `limit`: refuse to make more bytes than
/// that.
Result<std::vector<uint8_t>> contents(const Entry& entry, uint64_t limit = uint64_t{1} << 31);

/// The text of a PTX entry without its terminating NULs.
Result<std::string> ptxText(const Entry& entry, uint64_t limit = uint64_t{1} << 31);

/// The code that a pointer names.
struct Image {
  enum class Form { container, elf, ptx };
  Form form{};
  Bytes bytes;  ///< the container with its header; the whole cubin; the text without its NUL
  std::vector<Bytes>
      linked;  ///< wrapper version 2: the containers that were linked into it (relocatable code)
};

/// Finds the code that `image` points to (a wrapper, a container, a cubin or NUL-terminated PTX
/// text in this process's memory, as given to cuModuleLoadData or cuLibraryLoadData) and its
/// length. The pointer is trusted.
Result<Image> locate(const void* image);

/// As `locate`, for bytes of known length (a file, a message): a container, a cubin or PTX text, no
/// wrapper.
Result<Image> identify(Bytes bytes);

}  // namespace olpager::fatbin
