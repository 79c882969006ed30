#include <algorithm>
#include <cstring>

#include "forwarding/wire/device_resources.h"
#include "forwarding/wire/wire.h"
#include "gpunode/worker/device_resources.h"
#include "tests/catch.h"

using olpager::forward::resourceNumber;
using olpager::gpunode::DeviceResources;

namespace {

// As a driver might tell of it: with a pointer in the opaque bytes.
CUdevResource told(unsigned count, uint64_t secret) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memcpy(resource._internal_padding + 20, &secret, sizeof secret);
  std::memcpy(resource._oversize + sizeof(CUdevSmResource), &secret, sizeof secret);
  resource.sm = {count, 8, 8};
  return resource;
}

bool same(const CUdevResource& a, const CUdevResource& b) {
  const auto bytes = [](const CUdevResource& of) { return reinterpret_cast<const char*>(&of); };
  return std::equal(bytes(a), bytes(a) + sizeof a, bytes(b));
}

bool holds(const CUdevResource& resource, uint64_t secret) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&resource);
  for (size_t i = 0; i + sizeof secret <= sizeof resource; ++i)
    if (std::memcmp(bytes + i, &secret, sizeof secret) == 0) return true;
  return false;
}

constexpr uint64_t kSecret = 0x7f12'3456'789a'bcd0;

}  // namespace

TEST_CASE("a client sees what is declared of a device resource, and nothing of the driver's own",
          "[resources]") {
  DeviceResources resources(3);
  CUdevResource shown = told(16, kSecret);
  resources.hide(&shown);
  CHECK(shown.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(shown.sm.smCount == 16);
  CHECK(shown.sm.minSmPartitionSize == 8);
  CHECK(!holds(shown, kSecret));
  CHECK(olpager::forward::isMarked(resourceNumber(&shown)));
  CHECK(olpager::forward::slotOf(resourceNumber(&shown)) == 3);
  CUdevResource back = shown;
  REQUIRE(resources.restore(&back));
  CHECK(same(back, told(16, kSecret)));
  CUdevResource again = told(16, kSecret);
  resources.hide(&again);
  CHECK(same(again, shown));
  CHECK(resources.size() == 1);
}

TEST_CASE("what was not given out is no device resource", "[resources]") {
  DeviceResources resources(0), others(1);
  CUdevResource shown = told(16, kSecret);
  resources.hide(&shown);
  for (size_t at = 0; at < sizeof shown; ++at) {
    CUdevResource changed = shown;
    reinterpret_cast<unsigned char*>(&changed)[at] ^= 1;
    const CUdevResource claimed = changed;
    CHECK(!resources.restore(&changed));
    CHECK(same(changed, claimed));
  }
  CUdevResource invented = told(16, kSecret), none{};
  CHECK(!resources.restore(&invented));
  CHECK(!resources.restore(&none));
  CHECK(!others.restore(&shown));
}

TEST_CASE("only so many device resources are remembered", "[resources]") {
  DeviceResources resources(0);
  CUdevResource first = told(16, 0), last{};
  resources.hide(&first);
  for (uint64_t i = 1; i <= DeviceResources::kMost; ++i) {
    last = told(16, i);
    resources.hide(&last);
  }
  CHECK(resources.size() == DeviceResources::kMost);
  CHECK(!resources.restore(&first));
  CHECK(resources.restore(&last));
}
