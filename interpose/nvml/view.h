// What libolnvml.so knows of the gpunode's devices: asked for when it is needed, kept for a moment.
//
// Nothing of it lives between two questions but the last answer: no thread, no connection. A program may fork at any time.
// Thread-safety: any thread. Blocks for at most some seconds, where the gpunode does not answer; asked again after a second then.
#pragma once

#include <memory>

#include "coherence/status/status.h"

namespace olpager::nvml {

enum class Freshness : uint8_t {
  kAny,  // what does not change: names, UUIDs
  kNow,  // not older than a fifth of a second
};

/// The gpunode's status; nullptr when it can't be had now, or never (told once, on standard error).
std::shared_ptr<const status::Status> look(Freshness freshness);

/// nvmlInit: forgets that the gpunode could not be asked.
void lookAgain();

}  // namespace olpager::nvml
