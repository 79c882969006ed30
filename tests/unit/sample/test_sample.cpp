// How often olpagestat looks at this machine.
#include "tools/olpagestat/sample.h"

#include "tests/catch.h"

using namespace olpager::tools;

TEST_CASE("forwarded programs are looked for once a second at most", "[sample]") {
  ForwardedLooks looks;
  (void)looks.at(100);
  (void)looks.at(100.5);
  (void)looks.at(100.99);
  CHECK(looks.count() == 1);
  (void)looks.at(101);
  (void)looks.at(101.9);
  CHECK(looks.count() == 2);
}

TEST_CASE("readings of ten a second and more share a look", "[sample]") {
  const Programs programs;
  const Programs copy = programs;
  double first = 0, last = 0;
  for (int i = 0; i < 20; i++) {
    const Sample sample = readSample(i % 2 == 0 ? programs : copy, false);
    REQUIRE(sample.forwarded.has_value());
    (i == 0 ? first : last) = sample.seconds;
  }
  // On a machine of any speed.
  CHECK(static_cast<double>(programs.looks->count()) <= last - first + 1);
  CHECK(programs.looks->count() >= 1);
}

TEST_CASE("who names the folders asks for no other program", "[sample]") {
  Programs programs;
  programs.folders = {"/nowhere"};
  CHECK_FALSE(readSample(programs, false).forwarded.has_value());
  CHECK(programs.looks->count() == 0);
}
