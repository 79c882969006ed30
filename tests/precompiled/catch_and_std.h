// Headers that the files of Catch2 programs include, for precompiling (tests/meson.build).
#include "precompiled/headers/std.h"
#include "tests/catch.h"
