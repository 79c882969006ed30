// Libraries and their kernels with several sessions. They belong to no context: one handle serves
// all devices. So each has a number that means the same in every session (kCommonSlot), and each is
// loaded in all of them. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

namespace olpager::forward {

class Session;

/// Loads a library under one number in each session; `load` sends it to one. A session that is lost
/// is left out as long as another has it.
CUresult loadEverywhere(const std::function<CUresult(Session* session, uint64_t number)>& load,
                        void** library);

}  // namespace olpager::forward
