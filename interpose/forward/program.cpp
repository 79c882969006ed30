#include "interpose/forward/program.h"

#include <type_traits>

#include "forwarding/wire/wire.h"
#include "interpose/api/managed_advice.h"
#include "interpose/forward/block_table.h"
#include "interpose/forward/call.h"
#include "interpose/forward/couriers.h"
#include "interpose/forward/devices.h"
#include "interpose/forward/driver_tables.h"
#include "interpose/forward/export_descriptors.h"
#include "interpose/forward/kernel_attributes.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/libraries.h"
#include "interpose/forward/logs.h"
#include "interpose/forward/notifications.h"
#include "interpose/forward/sessions.h"
#include "interpose/forward/straight_copies.h"
#include "interpose/forward/threads.h"
#include "interpose/forward/window.h"

namespace olpager::forward {

namespace detail {
static_assert(std::is_trivially_destructible_v<Program>, "calls come behind the exit handlers");
constinit Program g_program;
}  // namespace detail

ProgramParts::ProgramParts()
    : connecting(std::make_unique<Connecting>()),
      devices(std::make_unique<DeviceList>()),
      driver_tables(std::make_unique<DriverTables>()),
      threads(std::make_unique<ThreadNumbers>()),
      couriers(std::make_unique<Couriers>()),
      notifications(std::make_unique<Notifications>()),
      listeners(std::make_unique<LogListeners>()),
      texts(std::make_unique<KeptTexts>()),
      layouts(std::make_unique<ParameterLayouts>()),
      taken_launches(std::make_unique<TakenLaunches>()),
      known_kernels(std::make_unique<KnownKernels>()),
      common_kernels(std::make_unique<CommonKernels>()),
      kernel_aliases(std::make_unique<KernelAliases>()),
      set_attributes(std::make_unique<SetAttributes>()),
      window(std::make_unique<Window>()),
      blocks(std::make_unique<BlockTable>()),
      advice(std::make_unique<api::ManagedAdvice>()),
      descriptors(std::make_unique<ExportedDescriptors>()),
      peer_links(std::make_unique<PeerLinks>()),
      common_numbers(firstNumber(kCommonSlot)) {}

ProgramParts::~ProgramParts() = default;

ProgramParts& Program::makeParts() {
  std::call_once(making_, [this] { parts_.store(new ProgramParts, std::memory_order_release); });
  return *parts_.load(std::memory_order_acquire);
}

}  // namespace olpager::forward
