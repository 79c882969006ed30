// Names of the driver and the table of its functions.
#define __CUDA_API_VERSION_INTERNAL
#include <cstring>
#include <string>

#include "interpose/api/driver_symbols.h"
#include "interpose/api/driver_table.h"
#include "interpose/api/function_facts.h"
#include "tests/catch.h"

using olpager::api::DriverTable;
using olpager::api::Symbol;

TEST_CASE("symbols have their names, in both directions") {
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i) {
    const char* name = olpager::api::symbolName(static_cast<Symbol>(i));
    Symbol symbol = Symbol::kCuInit;
    REQUIRE(olpager::api::findSymbol(name, &symbol));
    REQUIRE(static_cast<size_t>(symbol) == i);
    if (i > 0) REQUIRE(std::strcmp(olpager::api::symbolName(static_cast<Symbol>(i - 1)), name) < 0);
  }
  CHECK(olpager::api::symbolName(Symbol::kCuMemAlloc_v2) == std::string("cuMemAlloc_v2"));
  Symbol symbol;
  CHECK_FALSE(olpager::api::findSymbol("cuNoSuchFunction", &symbol));
  CHECK_FALSE(olpager::api::findSymbol("", &symbol));
}

TEST_CASE("kinds of symbols") {
  CHECK(olpager::api::isDeclared(Symbol::kCuMemcpyHtoD_v2_ptds));
  CHECK_FALSE(olpager::api::isDeclared(Symbol::kCuGLInit));
  CHECK(olpager::api::isObject(Symbol::kCudbgIpcFlag));
  CHECK_FALSE(olpager::api::isObject(Symbol::kCudbgGetAPI));
  CHECK(olpager::api::isPerThread(Symbol::kCuLaunchKernel_ptsz));
  CHECK_FALSE(olpager::api::isPerThread(Symbol::kCuLaunchKernel));
}

TEST_CASE("the table is filled by name and read by symbol") {
  static char addresses[olpager::api::kSymbolCount];
  const auto resolve = [](void*, const char* name) -> void* {
    Symbol symbol;
    if (!olpager::api::findSymbol(name, &symbol) || symbol == Symbol::kCuCtxAttach) return nullptr;
    return &addresses[static_cast<size_t>(symbol)];
  };
  DriverTable table;
  size_t declared = 0;
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i)
    declared += olpager::api::isDeclared(static_cast<Symbol>(i));
  CHECK(declared == sizeof(DriverTable) / sizeof(void*));
  CHECK(olpager::api::loadDriverTable(table, resolve, nullptr) == declared - 1);
  CHECK(table.cuCtxAttach == nullptr);
  CHECK(reinterpret_cast<void*>(table.cuMemAlloc) ==
        &addresses[static_cast<size_t>(Symbol::kCuMemAlloc)]);
  CHECK(reinterpret_cast<void*>(table.cuMemAlloc_v2) ==
        &addresses[static_cast<size_t>(Symbol::kCuMemAlloc_v2)]);
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i) {
    const Symbol symbol = static_cast<Symbol>(i);
    const bool there = olpager::api::isDeclared(symbol) && symbol != Symbol::kCuCtxAttach;
    REQUIRE(olpager::api::driverFunction(table, symbol) == (there ? &addresses[i] : nullptr));
  }
  CHECK(olpager::api::setDriverFunction(table, Symbol::kCuCtxAttach, addresses));
  CHECK(reinterpret_cast<void*>(table.cuCtxAttach) == addresses);
  CHECK_FALSE(olpager::api::setDriverFunction(table, Symbol::kCuGLInit, addresses));
}

TEST_CASE("what is known of functions is known of each of their symbols") {
  using olpager::api::Fact;
  using olpager::api::holds;
  const auto number = [](Symbol symbol) { return static_cast<size_t>(symbol); };
  for (const Symbol symbol : {Symbol::kCuCtxDestroy, Symbol::kCuCtxDestroy_v2}) {
    CHECK(holds(Fact::kEndsContext, number(symbol)));
    CHECK(holds(Fact::kForgets, number(symbol)));
    CHECK_FALSE(holds(Fact::kQuiet, number(symbol)));
  }
  CHECK(holds(Fact::kReleasesPrimary, number(Symbol::kCuDevicePrimaryCtxRelease_v2)));
  CHECK(holds(Fact::kCaptures, number(Symbol::kCuStreamBeginCapture_v2_ptsz)));
  CHECK(holds(Fact::kTellsFailures, number(Symbol::kCuStreamQuery_ptsz)));
  CHECK(holds(Fact::kQuiet, number(Symbol::kCuMemsetD8Async)));
  CHECK(holds(Fact::kUsesMemory, number(Symbol::kCuModuleLoadDataEx)));
  CHECK_FALSE(holds(Fact::kUsesMemory, number(Symbol::kCuMemAlloc_v2)));
  // Numbers that no symbol has: the operations of forwarded mode are above them.
  CHECK_FALSE(holds(Fact::kEndsContext, olpager::api::kSymbolCount));
  CHECK_FALSE(holds(Fact::kEndsContext, SIZE_MAX));
}
