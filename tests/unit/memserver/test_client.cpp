// A session and a memserver: leases, frames, what happens when either end fails.
#include "tests/unit/memserver/rig.h"

namespace olpager::memserver::test {

TEMPLATE_TEST_CASE("memory is leased, written, read back and released", "[client]", Tcp, Shm) {
  Server server(TestType::kChoice);
  Session session(server);
  session.open();
  const auto slabs = session.lease(3 * kSlab);
  REQUIRE(slabs.size() == 3);
  CHECK(session.client->figures().leased_bytes == 3 * kSlab);
  CHECK(server.store->figures().lent == 3 * kSlab);

  Buffer out(session.domain, 2 * kMiB), in(session.domain, 2 * kMiB);
  in.fill(99);
  REQUIRE(session.read(in, {slabs[0].id, 0, 2 * kMiB}) == TransferResult::kOk);
  CHECK(in.isZero());
  for (const Slab& slab : slabs) {
    out.fill(slab.id);
    REQUIRE(session.write(out, {slab.id, 2 * kMiB, 2 * kMiB}) == TransferResult::kOk);
  }
  for (const Slab& slab : slabs) {
    REQUIRE(session.read(in, {slab.id, 2 * kMiB, 2 * kMiB}) == TransferResult::kOk);
    CHECK(in.holds(slab.id));
  }
  for (const Slab& slab : slabs) session.client->release(slab.id);
  eventually([&] { return server.store->figures().free == server.bytes; });
  CHECK(session.read(in, {slabs[0].id, 0, 2 * kMiB}) == TransferResult::kBadRange);
  CHECK(server.service->lentBytes() == 0);
}

}  // namespace olpager::memserver::test
