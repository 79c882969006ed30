// The hash of what an extent holds.
#pragma once

#include "pager/kernels/page_pass.h"

namespace olpager::pager {

/// From the hashes of its pages (kernels::combineHashes).
using ContentHash = kernels::PageHash;

}  // namespace olpager::pager
