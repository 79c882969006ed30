#include "forwarding/visible_devices.h"
#include "tests/catch.h"

using olpager::forward::visibleDevices;
using Indices = std::vector<uint32_t>;

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it", "[forward]") {
  const std::vector<std::string> uuids{"GPU-0123-aa", "GPU-0124-bb", "GPU-99-cc"};
  CHECK(visibleDevices(uuids, "0,1,2") == Indices{0, 1, 2});
  CHECK(visibleDevices(uuids, "2, 0") == Indices{2, 0});
  CHECK(visibleDevices(uuids, "GPU-99,0") == Indices{2, 0});
  CHECK(visibleDevices(uuids, "1,7,0") == Indices{1});  // up to the first that is none
  CHECK(visibleDevices(uuids, "1,-1,0") == Indices{1});
  CHECK(visibleDevices(uuids, "GPU-012,0").empty());  // two begin so
  CHECK(visibleDevices(uuids, "1,1").empty());        // twice: none at all
  CHECK(visibleDevices(uuids, "").empty());
  CHECK(visibleDevices(uuids, "all").empty());
}
