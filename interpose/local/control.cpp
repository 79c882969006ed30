#include "forwarding/control.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/daemon_log.h"
#include "base/log.h"
#include "interpose/local/ipc_imports.h"
#include "interpose/local/root.h"
#include "pager/counters/counters.h"

using olpager::pager::valueOf;

extern "C" __attribute__((visibility("default"))) int olpager_figures(OlpagerFigures* figures) {
  if (figures == nullptr || olpager::local::pool() == nullptr) return 1;
  *figures = {};
  olpager::pager::Counters& counters = olpager::pager::counters();
  figures->host_used = valueOf(counters.host_used_bytes);
  figures->host_limit = valueOf(counters.host_limit_bytes);
  figures->device_count = static_cast<uint32_t>(
      std::min<uint64_t>(valueOf(counters.device_count), std::size(figures->devices)));
  for (uint32_t i = 0; i < figures->device_count; ++i) {
    const auto& device = counters.devices[i];
    figures->devices[i] = {valueOf(device.allocated_bytes), valueOf(device.vram_budget_bytes),
                           valueOf(device.resident_bytes),
                           valueOf(device.bytes_in) + valueOf(device.bytes_out)};
  }
  return 0;
}

extern "C" __attribute__((visibility("default"))) olpager::status::LinksCounters* olpager_links() {
  return &olpager::pager::counters().links;
}

extern "C" __attribute__((visibility("default"))) uint64_t olpager_set_vram_budget(int device,
                                                                                   uint64_t bytes) {
  olpager::pager::Pool* const pool = olpager::local::pool();
  return pool != nullptr && device >= 0 ? pool->setVramBudget(device, bytes) : 0;
}

extern "C" __attribute__((visibility("default"))) uint64_t olpager_set_host_limit(uint64_t bytes) {
  olpager::pager::Pool* const pool = olpager::local::pool();
  return pool != nullptr ? pool->setHostLimit(bytes) : 0;
}

extern "C" __attribute__((visibility("default"))) void olpager_stop(void) {
  if (olpager::pager::Pool* const pool = olpager::local::pool()) pool->stop();
}

extern "C" __attribute__((visibility("default"))) void olpager_on_wait(void (*call)(void)) {
  olpager::pager::onWait(call);
}

extern "C" __attribute__((visibility("default"))) void olpager_set_connect(
    int (*connect)(const char* name)) {
  olpager::local::setConnect(connect);
}

extern "C" __attribute__((visibility("default"))) void olpager_set_log(int descriptor, int grave,
                                                                       const char* before) {
  olpager::base::useDaemonLogOf(std::getenv(olpager::base::kDaemonLogVariable));
  olpager::base::setLogDescriptor(descriptor);
  olpager::base::setGraveLog(grave, before);
}
