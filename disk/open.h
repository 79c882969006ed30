// Files on disks as the pager's lower tier (pager/tiers/lower_tier.h).
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "disk/files.h"
#include "disk/io_queue.h"
#include "pager/tiers/lower_tier.h"

namespace olpager::disk {

struct TierOptions {
  std::vector<Folder> folders;  // each once; of each so many bytes, whole pages of 2 MiB
  bool encrypt = true;
  unsigned workers = 0;           // 0: as suits the machine
  QueueMaker queues = makeQueue;  // tests make such as fail
};

/// Opens a file in each folder and starts the workers. An Error names a folder that can't be used,
/// and what to do. Uses 8 MiB of host RAM for each worker, of which there are four at most.
///
/// The destructor waits two seconds for what the disks are at. If a disk hangs longer, a line
/// says so, and what the tier has (threads, host RAM, files) stays until the process ends; the
/// memory of transfers is the caller's again all the same.
Result<std::unique_ptr<pager::LowerTier>> openTier(const TierOptions& options);

}  // namespace olpager::disk
