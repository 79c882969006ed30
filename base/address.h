// Addresses of daemons as users write them, before anything is connected to or listened on. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace olpager::base {

inline constexpr uint16_t kMemserverPort = 7070, kGpunodePort = 7071, kMetricsPort = 9109;

enum class AddressUse : uint8_t { kConnect, kListen, kListenHere };

/// Ok if `text` has the form HOST:PORT, [V6]:PORT or (not kListenHere) unix:/PATH. The Error says
/// what it lacks and how it may be written; `usual`: the port of the examples. To connect there has
/// to be a port above 0.
Status checkAddress(std::string_view text, AddressUse use, uint16_t usual);

inline constexpr size_t kMostRails = 4;
/// Addresses of this host's RDMA cards (transport::Options::rails): numeric, without a port, each
/// once, with commas between; "none": none.
Result<std::vector<std::string>> parseRails(std::string_view text);

}  // namespace olpager::base
