// The simulated GPU's defaults: each function of cuda.h is there and names itself; definitions take
// their place.
#include <cuda.h>
#include <dlfcn.h>

#include "interpose/api/driver_symbols.h"
#include "tests/catch.h"

using olpager::api::Symbol;

TEST_CASE("every function has a default, and a definition takes its place") {
  void* library = dlopen(DEFAULTS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* last = reinterpret_cast<CUresult (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  REQUIRE(last != nullptr);
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i) {
    const Symbol symbol = static_cast<Symbol>(i);
    if (!olpager::api::isDeclared(symbol) || symbol == Symbol::kCuDriverGetVersion) continue;
    auto* function = reinterpret_cast<CUresult (*)(void*, void*)>(
        dlsym(library, olpager::api::symbolName(symbol)));
    INFO(olpager::api::symbolName(symbol));
    REQUIRE(function != nullptr);
    if (symbol == Symbol::kCuEventRecord_ptsz) {
      CHECK(function(nullptr, nullptr) == CUDA_ERROR_NOT_READY);
      continue;
    }
    REQUIRE(function(nullptr, nullptr) == CUDA_ERROR_NOT_SUPPORTED);
    int told = -1;
    last(&told);
    CHECK(told == static_cast<int>(i));
  }
}
