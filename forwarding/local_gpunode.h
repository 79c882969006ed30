// Between olrun and the gpunode that it starts for a program (--gpunode local): what the gpunode
// finds open, and what it answers there.
//
// olrun starts olgpunode with kForProgramOption. The gpunode is no child of the program's: a
// program that waits for any child of its own finds only those. The gpunode listens at a Unix
// socket that only this user reaches, with a key that was made for it alone, and removes the key
// when it ends.
//
// The gpunode lives as long as it may have users: the program's process, also after an exec; then,
// as long as it has sessions or there are processes of this user whose environment names it
// (base::kLocalVariable): background processes that the program has left.
#pragma once

#include <string_view>

namespace olpager::forward {

/// An option of olgpunode for olrun: --help does not tell of it.
inline constexpr const char* kForProgramOption = "--for-program";

inline constexpr int kProgramFd = 3;  // the program's process, as pidfd_open() gives it
inline constexpr int kAnswerFd = 4;   // a pipe to olrun
/// The text written there before its end: this, or one line that says why there is no gpunode.
inline constexpr std::string_view kLocalReady = "ready";

}  // namespace olpager::forward
