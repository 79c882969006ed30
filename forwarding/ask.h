// One question to a gpunode: connect, prove the key, ask, disconnect.
//
// Thread-safety: any thread. Blocks for at most `connect_ms` and `answer_ms`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/settings.h"
#include "forwarding/wire/session_protocol.h"

namespace olpager::forward {

/// The Error is one line that begins with "gpunode" and its address. `lasts` is set with it: true
/// where to ask again gives the same (as transport::ConnectOptions::lasts), false of an outage.
Result<SessionReply> askGpunode(const base::Settings& settings, const std::string& gpunode,
                                const SessionRequest& request, uint32_t connect_ms,
                                uint32_t answer_ms, bool* lasts = nullptr);

/// UUIDs of the gpunode's GPUs, in the order in which its sessions see them; none where it knows of
/// none so far. The Error as above.
Result<std::vector<std::string>> askForGpus(const base::Settings& settings,
                                            const std::string& gpunode, uint32_t connect_ms,
                                            uint32_t answer_ms, bool* lasts = nullptr);

/// The gpunode's remarks beside its answer, as text of one line.
std::string textOf(const SessionReply& reply);

}  // namespace olpager::forward
