// Functions that the specification calls local mode's own, and local mode has not: they are the
// driver's, and what they are told of the pool reaches it.
#include <string>

#include "interpose/api/local_functions.h"
#include "tests/catch.h"

using olpager::api::Symbol;
using olpager::local::Behaviour;

TEST_CASE("every function that is to be local mode's own is written") {
  std::string missing;
  for (size_t i = 0; i < olpager::api::kSymbolCount; ++i) {
    const Symbol symbol = static_cast<Symbol>(i);
    const Behaviour behaviour = olpager::local::localBehaviour(symbol);
    const bool there = olpager::local::localFunction(symbol) != nullptr;
    if (behaviour == Behaviour::kOwn && !there)
      missing += std::string(" ") + olpager::api::symbolName(symbol);
    if (behaviour == Behaviour::kWrap) CHECK(there);
    if (behaviour == Behaviour::kPass) CHECK_FALSE(there);
  }
  CHECK(missing == "");
}
