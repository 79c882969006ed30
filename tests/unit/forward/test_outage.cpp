// A daemon that is away is asked again while a program starts, one that says no is not.
#include <string>

#include "base/result.h"
#include "interpose/forward/connection.h"
#include "tests/catch.h"

namespace olpager::forward {

TEST_CASE("a gpunode that says no is asked once, one that is away again") {
  int asked = 0;
  const auto no = askPastOutage([&](bool* lasts) -> Result<int> {
    ++asked;
    *lasts = true;
    return Error{"another key"};
  });
  CHECK(!no.ok());
  CHECK(asked == 1);
  asked = 0;
  const auto away = askPastOutage([&](bool* lasts) -> Result<int> {
    *lasts = false;
    if (++asked < 3) return Error{"nobody listens"};
    return 7;
  });
  REQUIRE(away.ok());
  CHECK(away.value() == 7);
  CHECK(asked == 3);
  // The daemon is away, and comes back with another key.
  asked = 0;
  const auto other = askPastOutage([&](bool* lasts) -> Result<int> {
    *lasts = ++asked == 2;
    return Error{std::to_string(asked)};
  });
  REQUIRE(!other.ok());
  CHECK(other.error().message == "2");
}

}  // namespace olpager::forward
