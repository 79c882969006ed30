// The sanitizer that a file is built with.
#pragma once

namespace olpager::base {

#if defined(__has_feature)
#define OL_HAS_FEATURE(name) __has_feature(name)
#else
#define OL_HAS_FEATURE(name) 0
#endif

/// ThreadSanitizer: programs have the addresses below 512 GiB, from 0x5500'0000'0000 to
/// 0x5680'0000'0000 and from 0x7e80'0000'0000 on.
#if defined(__SANITIZE_THREAD__) || OL_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || OL_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#undef OL_HAS_FEATURE

}  // namespace olpager::base
