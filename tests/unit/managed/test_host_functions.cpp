// Host functions that are before the next work of a stream.
#include "pager/launch/host_functions.h"

#include "tests/catch.h"

namespace olpager::pager {
namespace {

StreamKey key(uintptr_t stream, uintptr_t context = 1) {
  StreamKey made;
  // NOLINTBEGIN(performance-no-int-to-ptr): handles that nobody looks into
  made.context = reinterpret_cast<CUcontext>(context);
  made.stream = reinterpret_cast<CUstream>(stream);
  // NOLINTEND(performance-no-int-to-ptr)
  return made;
}
const StreamKey kLegacy = key(1), kOne = key(0x100), kOther = key(0x200);

TEST_CASE("a function is before what its own stream is given next, until it is over") {
  HostFunctions functions;
  CHECK(!functions.any());
  CHECK(!functions.areBefore(kOne));
  const uint64_t first = functions.begins(kOne, true), second = functions.begins(kOne, true);
  CHECK(functions.any());
  CHECK(functions.areBefore(kOne));
  CHECK(!functions.areBefore(kOther));
  functions.ended(first);
  CHECK(functions.areBefore(kOne));
  functions.ended(second);
  CHECK(!functions.any());
  CHECK(!functions.areBefore(kOne));
}

TEST_CASE("the last function of a stream is one that was put there and is not over") {
  HostFunctions functions;
  const uint64_t first = functions.begins(kOne, true), second = functions.begins(kOne, true);
  functions.begins(kOther, true);
  functions.waits(key(0x300));
  CHECK(functions.lastIn(kOne) == second);
  CHECK(functions.lastIn(key(0x300)) ==
        0);  // it may be behind all, and is certain to be behind none
  functions.ended(second);
  CHECK(functions.lastIn(kOne) == first);
  functions.ended(first);
  CHECK(functions.lastIn(kOne) == 0);
}

TEST_CASE("what a function that has returned is before waits until the function is over") {
  HostFunctions functions;
  const uint64_t number = functions.begins(kOne, true);
  functions.waits(kOther);
  CHECK(functions.areBefore(kOne));
  CHECK(!functions.areServedBefore(kOne));
  functions.returned(number);
  for (const StreamKey& stream : {kOne, kOther, kLegacy}) {
    CHECK(!functions.areBefore(stream));
    CHECK(functions.areServedBefore(stream));
  }
  CHECK(functions.lastIn(kOne) == 0);
  functions.ended(number);
  CHECK(!functions.areServedBefore(kOne));
  CHECK(!functions.any());
}

TEST_CASE("a stream with the handle of one that is gone is behind none of that one's functions") {
  HostFunctions functions;
  const uint64_t number = functions.begins(kOne, true);
  functions.streamGone(kOne);
  CHECK(!functions.areBefore(kOne));
  CHECK(functions.lastIn(kOne) == 0);
  CHECK(functions.areBefore(kLegacy));
  CHECK(functions.contextOf(number) == kOne.context);
  functions.ended(number);
  CHECK(!functions.areBefore(kLegacy));
}

TEST_CASE("a stream that waits for an event may be behind any function that is not over") {
  HostFunctions functions;
  const uint64_t before = functions.begins(kOne, true);
  functions.waits(kOther);
  CHECK(functions.areBefore(kOther));
  const uint64_t later = functions.begins(kOne, true);
  functions.ended(before);
  CHECK(!functions.areBefore(kOther));
  CHECK(functions.areBefore(kOne));
  functions.ended(later);
  functions.waits(kOther);
  CHECK(!functions.areBefore(kOther));
}

TEST_CASE("the legacy stream is behind the functions of its context") {
  HostFunctions functions;
  functions.begins(kOne, true);
  CHECK(functions.areBefore(kLegacy));
  CHECK(!functions.areBefore(key(1, 2)));
}

TEST_CASE("the legacy stream is not behind functions of streams that don't wait for it") {
  HostFunctions functions;
  functions.begins(kOne, false);
  CHECK(!functions.areBefore(kLegacy));
  CHECK(functions.areBefore(kOne));
}

TEST_CASE("what is behind a function in the legacy stream, the context's other streams wait for") {
  HostFunctions functions;
  const uint64_t number = functions.begins(kLegacy, true);
  CHECK(functions.areBefore(kOne));
  CHECK(!functions.areBefore(key(0x100, 2)));
  functions.ended(number);
  CHECK(!functions.areBefore(kOne));
}

TEST_CASE("by way of the legacy stream one stream is behind another's function") {
  HostFunctions functions;
  functions.begins(kOne, true);
  CHECK(!functions.areBefore(kOther));
  CHECK(functions.areBefore(kLegacy));  // an operation there
  CHECK(functions.areBefore(kOther));
}

TEST_CASE("a context that goes takes its functions along, a stream what it was behind") {
  HostFunctions functions;
  const uint64_t number = functions.begins(kOne, true);
  const uint64_t other = functions.begins(key(0x100, 2), true);
  functions.waits(kOther);
  functions.streamGone(kOther);
  CHECK(!functions.areBefore(kOther));
  functions.contextGone(kOne.context);
  CHECK(!functions.areBefore(kOne));
  CHECK(functions.areBefore(key(0x100, 2)));
  functions.ended(number);  // it is called all the same
  CHECK(functions.any());
  functions.ended(other);
  CHECK(!functions.any());
}

TEST_CASE(
    "code is loaded once the functions of its context are over that were there, or have had their "
    "time") {
  HostFunctions functions;
  const uint64_t first = functions.begins(kOne, true), upto = functions.last();
  const uint64_t later = functions.begins(kOther, false);
  const uint64_t now = nowNs();
  CHECK(functions.mayTouch(kOne.context, upto, now));
  CHECK(!functions.mayTouch(key(1, 2).context, upto, now));
  CHECK(!functions.mayTouch(kOne.context, upto, now + HostFunctions::kPatienceNs));
  functions.ended(first);
  CHECK(!functions.mayTouch(kOne.context, upto, now));
  CHECK(functions.mayTouch(kOne.context, later, now));
}

}  // namespace
}  // namespace olpager::pager
