// The library's own way to dlopen, past its hook.
#pragma once

namespace olpager::local {

/// The dlopen that comes after ours. Thread-safe, never NULL in a dynamically linked program.
void* (*nextDlopen())(const char* file, int mode);

}  // namespace olpager::local
