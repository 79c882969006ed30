// Offers of pages between workers: whose they are, and how many.
#include "gpunode/worker/page_offers.h"

#include "tests/catch.h"

namespace olpager::gpunode {
namespace {

using Is = PageOffers::Is;

PageOffers::Offer at(uint64_t offset) {
  PageOffers::Offer offer;
  offer.page.offset = offset;
  return offer;
}

TEST_CASE("an offer and who wants it come in either order") {
  PageOffers offers;
  CHECK(offers.offer(1, {7, 3}, at(10)) == Is::kKept);
  const auto taken = offers.want(1, {7, 3});
  REQUIRE(taken.has_value());
  CHECK(taken->page.offset == 10);
  CHECK_FALSE(offers.want(1, {7, 4}).has_value());
  CHECK(offers.offer(1, {7, 4}, at(20)) == Is::kWanted);
  // The offer has been answered: another one by that number is for nobody.
  CHECK(offers.offer(1, {7, 4}, at(30)) == Is::kKept);
}

TEST_CASE("what one executor offers takes the place of no other's") {
  PageOffers offers;
  CHECK(offers.offer(1, {7, 3}, at(10)) == Is::kKept);
  CHECK(offers.offer(2, {7, 3}, at(20)) == Is::kKept);
  CHECK(offers.offer(2, {7, 9}, at(30)) == Is::kKept);
  const auto taken = offers.want(1, {7, 3});
  REQUIRE(taken.has_value());
  CHECK(taken->page.offset == 10);
  // Nor does it answer what another one was asked for.
  CHECK_FALSE(offers.want(1, {8, 1}).has_value());
  CHECK(offers.offer(2, {8, 1}, at(40)) == Is::kKept);
  CHECK(offers.offer(1, {8, 1}, at(50)) == Is::kWanted);
}

TEST_CASE("of an extent the last offer counts") {
  PageOffers offers;
  CHECK(offers.offer(1, {7, 5}, at(10)) == Is::kKept);
  CHECK(offers.offer(1, {7, 4}, at(20)) == Is::kLate);
  CHECK(offers.offer(1, {7, 6}, at(30)) == Is::kKept);
  CHECK_FALSE(offers.want(1, {7, 5}).has_value());
  const auto last = offers.want(1, {7, 6});
  REQUIRE(last.has_value());
  CHECK(last->page.offset == 30);
}

TEST_CASE("offers that nobody asks for are bounded") {
  PageOffers offers;
  for (uint32_t extent = 0; extent < PageOffers::kMost; ++extent)
    REQUIRE(offers.offer(1, {extent, 1}, at(extent)) == Is::kKept);
  CHECK(offers.offer(1, {uint32_t{PageOffers::kMost}, 1}, at(0)) == Is::kTooMany);
  CHECK(offers.offer(1, {5, 2}, at(0)) == Is::kKept);  // in the place of the one before
  CHECK(offers.offer(2, {5, 1}, at(0)) == Is::kKept);  // another one's
  CHECK(offers.want(1, {3, 1}).has_value());
  CHECK(offers.offer(1, {uint32_t{PageOffers::kMost}, 1}, at(0)) == Is::kKept);
}

TEST_CASE("what came over a link that is lost is offered again, over the next") {
  PageOffers offers;
  const auto over = [](uint64_t link, uint64_t offset) {
    PageOffers::Offer offer = at(offset);
    offer.link = link;
    return offer;
  };
  CHECK(offers.offer(1, {7, 3}, over(4, 10)) == Is::kKept);
  CHECK(offers.offer(1, {8, 3}, over(5, 20)) == Is::kKept);
  CHECK(offers.offer(2, {9, 3}, over(4, 30)) == Is::kKept);
  CHECK_FALSE(offers.want(1, {6, 1}).has_value());
  offers.forget(1, 4);
  CHECK_FALSE(offers.want(1, {7, 3}).has_value());
  CHECK(offers.want(1, {8, 3}).has_value());  // of the link after it
  CHECK(offers.want(2, {9, 3}).has_value());  // another one's
  // A page is still wanted.
  CHECK(offers.offer(1, {6, 1}, over(5, 40)) == Is::kWanted);
  CHECK(offers.offer(1, {7, 3}, over(5, 10)) == Is::kWanted);
}

}  // namespace
}  // namespace olpager::gpunode
