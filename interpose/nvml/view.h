// The gpunodes' devices for libolnvml.so: asked for when needed, kept for a moment.
//
// Nothing of it lives between two questions but the last answer: no thread, no connection. A
// program may fork at any time. Thread-safety: any thread. Blocks for at most some seconds, where a
// gpunode does not answer; asked again after a second then.
#pragma once

#include <memory>
#include <vector>

#include "coherence/status/status.h"

namespace olpager::nvml {

enum class Freshness : uint8_t {
  kAny,  // what does not change: names, UUIDs
  kNow,  // not older than a fifth of a second
};

/// All gpunodes' answers, as if they were one: their devices one after another, or in the unified
/// view one device of all.
struct Seen {
  status::Status status;
  std::vector<bool> lost;  // by device: its gpunode does not answer any more
};

/// nullptr when a gpunode was never heard of, or none answers now (told once, on standard error).
std::shared_ptr<const Seen> look(Freshness freshness);

/// nvmlInit: forgets that a gpunode could not be asked.
void lookAgain();

}  // namespace olpager::nvml
