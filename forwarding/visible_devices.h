// Parses CUDA_VISIBLE_DEVICES. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace olpager::forward {

/// The devices that a program with this CUDA_VISIBLE_DEVICES sees of those with these UUIDs, as
/// indices: numbers or beginnings of UUIDs, up to the first that is none, as CUDA reads it.
std::vector<uint32_t> visibleDevices(const std::vector<std::string>& uuids, std::string_view text);

/// True if the value hides all devices: empty, or -1.
bool hidesAll(std::string_view text);

}  // namespace olpager::forward
