// Reads the kernels' parameters from code: a container, a cubin or PTX text, whatever the driver
// takes. Thread-safety: none; a reader belongs to its owner. Ownership: a reader views the code, a
// table views nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fatbin/bytes.h"
#include "base/fatbin/fatbin.h"

namespace olpager::fatbin {

struct KernelTable {
  /// Bytes of each parameter, by the kernel's name. If images of one code differ: the most.
  std::unordered_map<std::string, std::vector<uint32_t>> kernels;
  /// All of it could be read: there are no other kernels.
  bool whole = true;
};

/// Reads code image by image. The images of a container are mostly of one source, for several
/// architectures: a search for a kernel rarely has to unpack more than one. The smallest is read
/// first. A cubin and PTX text are one image.
class KernelReader {
 public:
  explicit KernelReader(Bytes code);
  /// False: all had been read.
  bool readNext();
  bool allRead() const { return next_ == entries_.size(); }
  /// All that has been read so far.
  const KernelTable& table() const { return table_; }
  /// Images that have been read.
  size_t images() const { return next_; }

 private:
  void read(const Entry& entry);

  KernelTable table_;
  std::vector<Entry> entries_;  // in the order in which they are read
  size_t next_ = 0;
};

/// All images of a container are read: each may have kernels that others have not.
KernelTable kernelsOf(Bytes image);

}  // namespace olpager::fatbin
