// How a function of the driver is written by hand: the exported symbol's name, its parameters, a
// body. Hidden; reached through the table that the generator makes of all of them.
#pragma once

#include "interpose/api/local_functions.h"

// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define OLPAGER_HOOK(symbol) \
  extern "C" __attribute__((visibility("hidden"))) CUresult ol_local_##symbol
