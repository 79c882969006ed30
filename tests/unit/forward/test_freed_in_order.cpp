// Memory that is freed in the order of streams, by numbers that nothing stands behind.
#include "interpose/forward/freed_in_order.h"
#include "tests/catch.h"

namespace olpager::forward {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kContext = 7, kStream = 100, kOther = 101;

TEST_CASE("memory is free when its stream has come to the free", "[forward]") {
  FreedInOrder freed;
  const uint64_t first = freed.add({0x1000, kContext, 64}, kStream);
  const uint64_t second = freed.add({0x2000, kContext, 64}, kOther);
  CHECK(freed.takeCome().empty());
  freed.comes(second, true);
  CHECK(freed.count() == 1);
  const auto come = freed.takeCome();
  REQUIRE(come.size() == 1);
  CHECK(come[0].address == 0x2000);
  CHECK(come[0].bytes == 64);
  freed.comes(second, true);  // nobody's any more
  CHECK(freed.takeCome().empty());
  // One whose stream never comes there stays until its context goes.
  freed.comes(first, false);
  CHECK(freed.takeCome().empty());
  CHECK(freed.takeOf(kContext + 1).empty());
  CHECK(freed.takeOf(kContext).size() == 1);
}

TEST_CASE("memory goes to what is behind the free in the same stream", "[forward]") {
  FreedInOrder freed;
  const uint64_t number = freed.add({0x1000, kContext, 64}, kStream);
  CHECK(freed.takeBack(kContext, kOther, 64) == 0);
  CHECK(freed.takeBack(kContext, kStream, 128) == 0);
  CHECK(freed.takeBack(kContext + 1, kStream, 64) == 0);
  CHECK(freed.takeBack(kContext, kStream, 64) == 0x1000);
  CHECK(freed.takeBack(kContext, kStream, 64) == 0);
  freed.comes(number, true);  // the memory is in use again
  CHECK(freed.count() == 0);
  CHECK(freed.takeCome().empty());
}

TEST_CASE("who needs room waits for what is on its way, and for nothing else", "[forward]") {
  FreedInOrder freed;
  CHECK_FALSE(freed.awaitMore(freed.count(), 1h));
  const uint64_t number = freed.add({0x1000, kContext, 64}, kStream);
  CHECK_FALSE(freed.awaitMore(freed.count(), 1ms));
  const uint64_t before = freed.count();
  freed.comes(number, true);
  CHECK(freed.awaitMore(before, 1h));
  freed.drop(freed.add({0x2000, kContext, 64}, kStream));
  CHECK(freed.takeOf(kContext).size() == 1);  // the one that has come
}

}  // namespace
}  // namespace olpager::forward
