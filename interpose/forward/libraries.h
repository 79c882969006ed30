// Libraries and their kernels with several sessions. Libraries belong to no context: one handle
// serves all devices. So each has a number that means the same in every session (kCommonSlot), and
// each is loaded in all of them. Thread-safety: any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace olpager::forward {

class Session;

struct CommonKernels {
  std::mutex mutex;
  std::map<std::pair<uint64_t, std::string>, uint64_t> numbers;  // by library and name
};

/// Loads a library under one number in each session; `load` sends it to one. A session that is lost
/// is left out as long as another has it.
CUresult loadEverywhere(const std::function<CUresult(Session* session, uint64_t number)>& load,
                        void** library);

}  // namespace olpager::forward
