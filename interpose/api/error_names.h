// Names and texts of CUresult codes, for where no driver can be asked. Pure; the texts live for
// ever.
#pragma once

#include <cuda.h>

namespace olpager::api {

/// As cuGetErrorName tells it; nullptr: no such code is known.
inline const char* errorName(CUresult error) {
  switch (error) {
#define X(code, text) \
  case code:          \
    return #code;
#include "interpose/api/error_names.inc"
#undef X
    default:
      return nullptr;
  }
}

/// As cuGetErrorString tells it; nullptr: no such code is known.
inline const char* errorText(CUresult error) {
  switch (error) {
#define X(code, text) \
  case code:          \
    return text;
#include "interpose/api/error_names.inc"
#undef X
    default:
      return nullptr;
  }
}

}  // namespace olpager::api
