// Looks for addresses of the window in bytes: whole words at multiples of 4 bytes. Nearly all
// memory has none; it is passed over as fast as it is read, large pieces by several threads.
// Thread-safety: any thread. The bytes may change meanwhile: then the addresses found are those of
// some moment.
#pragma once

#include <cstdint>
#include <functional>

namespace olpager::forward {

/// Calls `each` for every word in [bytes, + count) that is an address in the window, in no order
/// and maybe from several threads at a time. Returns true if one of the calls did.
bool eachAddress(const void* bytes, uint64_t count, const std::function<bool(uint64_t)>& each);

}  // namespace olpager::forward
