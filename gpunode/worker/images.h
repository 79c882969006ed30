// Code that a client sends with a call, or has sent before (interpose/forward/images.h).
// Thread-safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpunode/worker/invocation.h"

namespace olpager::gpunode {

/// The last of the call's arguments, with a NUL behind it; empty where there is none. `unknown`:
/// the client has to send it.
std::vector<std::byte> readImage(Invocation& in, bool* unknown);

/// An image's first word; 0: it has none.
uint32_t magicOf(const std::vector<std::byte>& image);

}  // namespace olpager::gpunode
