#include "coherence/transport/shm/shm_connect.h"

namespace olpager::transport {

Result<std::shared_ptr<LinkCore>> connectShm(EndpointCore&, LinkSetup, const LinkSecrets&, int64_t) {
  return Error{"shared memory is not there yet"};
}
Result<std::shared_ptr<LinkCore>> acceptShm(EndpointCore&, LinkSetup, Stream) {
  return Error{"shared memory is not there yet"};
}

}  // namespace olpager::transport
