// The driver's settings in a program's environment get into a worker's environment, and nothing
// else does.
#include "forwarding/wire/driver_environment.h"
#include "tests/catch.h"

using namespace olpager::forward;
using Environment = std::vector<std::string>;

TEST_CASE("only what has a meaning is taken from a client", "[driver environment]") {
  CHECK(isValid({}));
  CHECK(isValid({3, 32}));
  CHECK_FALSE(isValid({4, 0}));
  CHECK_FALSE(isValid({UINT32_MAX, 0}));
  CHECK_FALSE(isValid({0, 33}));
  CHECK_FALSE(isValid({0, UINT32_MAX}));
}

TEST_CASE("a worker's environment has what the program says and not what the daemon's says",
          "[driver environment]") {
  const Environment daemons = {"CUDA_LAUNCH_BLOCKING=1", "PATH=/bin", "CUDA_MODULE_LOADING=EAGER",
                               "CUDA_DEVICE_MAX_CONNECTIONS=4", "CUDA_DEVICE_ORDER=PCI_BUS_ID"};
  Environment environment = daemons;
  setDriverEnvironment(environment, {});
  CHECK(environment == Environment{"PATH=/bin", "CUDA_DEVICE_ORDER=PCI_BUS_ID"});
  environment = daemons;
  setDriverEnvironment(environment, {3, 1});
  CHECK(environment == Environment{"PATH=/bin", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                                   "CUDA_MODULE_LOADING=LAZY", "CUDA_DEVICE_MAX_CONNECTIONS=1"});
}
