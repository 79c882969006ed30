// The version of this build, as tools/version tells it: "0.1.0+1047.g8a57cf5b". In a library of its
// own, so that a new commit compiles one file and links only what names it. Thread-safety: any
// thread, at any time.
#pragma once

namespace olpager::base {

extern const char* const kVersion;

}  // namespace olpager::base
