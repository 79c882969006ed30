// Images of modules that a key's clients have sent once: files in a folder of that key alone, each
// named by the SHA-256 of what is in it, as computed here. A client asks by hash and sends the
// bytes only when they are not there.
//
// Trust. A client's hash is only ever looked up in its own key's folder, and a file that is read is
// hashed again: a file that holds something else is removed and counts as not there. The folder and
// its files are the daemon user's alone (0700, 0600).
//
// Several workers share a folder: files appear whole (rename) and may go at any time.
// Thread-safety: any thread. Errors: a cache that can't be used is one line in the log, and a
// session without one.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "coherence/calls/digest.h"

namespace olpager::gpunode {

class ModuleCache {
 public:
  /// Uses `folder`, made when it is not there; its parent has to be. Files beyond `most_bytes`
  /// together go, those first that were not used for longest.
  Status open(const std::string& folder, uint64_t most_bytes);
  bool isOpen() const { return static_cast<bool>(folder_); }

  /// The image that has this hash; nothing when it is not there.
  std::optional<std::vector<std::byte>> find(const calls::Digest& digest);
  /// Keeps the image, unless it is larger than all that may be kept.
  void store(std::span<const std::byte> bytes);

 private:
  void makeRoom(uint64_t bytes);

  std::mutex mutex_;
  base::UniqueFd folder_;
  std::string name_;  // of the folder, for the log
  uint64_t most_bytes_ = 0;
  uint64_t next_ = 0;  // of files that are being written
};

}  // namespace olpager::gpunode
