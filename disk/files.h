// The files of a tier, one in each folder that it was given, and which of their pages are free.
// Nobody else can open them: they have no name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "disk/own_file.h"
#include "pager/kernels/hash_and_scan.h"

namespace olpager::disk {

/// The bytes of a place.
inline constexpr uint64_t kPlaceBytes = kernels::kHashPageBytes;

/// A folder, and how much may be written there, in bytes.
struct Folder {
  std::string path;
  uint64_t bytes = 0;
};

/// A page's place.
struct Place {
  uint32_t file = 0;
  uint32_t page = 0;      // of the file
  bool has_room = false;  // it was written: the file system has given it room
  bool bad = false;       // what was written there can't be read, or is other bytes
  uint64_t number = 0;    // of the writing of its bytes, for the cipher
};

/// Opens the file of a folder without a name, as large as the folder's bytes and holding none of
/// them. Closed in a forked child (transport::closeInForkedChild()). A file system that takes no
/// O_DIRECT gets a file without, and a warning; so does one that is in RAM. An Error names the
/// folder and what to do.
Result<base::UniqueFd> openNameless(const Folder& folder);

/// The files, and which of their pages are free. Pages go to the file that is least full, so that
/// several disks work at a time and are full at a time.
///
/// Thread-safety: none, but descriptorOf(), identityOf() and pathOf(), which any thread may call.
/// Errors: nothing but open() and take() needs memory.
class Files {
 public:
  Status open(const std::vector<Folder>& folders);

  int descriptorOf(uint32_t file) const { return files_[file].file.get(); }
  const FileIdentity& identityOf(uint32_t file) const { return files_[file].file.identity(); }
  const std::string& pathOf(uint32_t file) const { return files_[file].path; }

  /// `count` places for pages; none: there are not so many.
  std::optional<std::vector<Place>> take(uint64_t count, uint64_t now_ns);
  /// Places that are bad are never given out again.
  void give(const std::vector<Place>& places);
  void give(const Place& place);
  /// The file system had no room for a page that was never written: for a while none such is given
  /// out of this file.
  void full(uint32_t file, uint64_t now_ns);
  /// Nothing more is given out of this file. False: it was broken already.
  bool broken(uint32_t file) { return !std::exchange(files_[file].broken, true); }

  /// Pages in use and pages that can be given out.
  uint64_t capacity(uint64_t now_ns) const;
  uint64_t used() const;

 private:
  struct File {
    OwnFile file;
    std::string path;
    uint64_t pages = 0;
    uint64_t first = 0;                        // the first page that was never given out
    std::vector<uint32_t> written, unwritten;  // free below it; each has memory for all pages
    uint64_t used = 0;
    uint64_t bad = 0;  // places
    bool broken = false;
    uint64_t full_until_ns = 0;

    uint64_t room(uint64_t now_ns) const;
  };
  std::vector<File> files_;
};

}  // namespace olpager::disk
