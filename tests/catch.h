// Catch2 2 (Debian 12) or 3 (Ubuntu 24.04), by the header that is there.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
