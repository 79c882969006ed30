#include "coherence/transport/from_settings.h"

#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/version.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/core/choose.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::transport {

Result<Options> optionsFrom(const base::Settings& settings, std::string_view address) {
  Options options;
  options.release = base::kVersion;
  options.choice = settings.transport;
  options.rails = settings.rails;
  options.tls = settings.tls;
  const bool local = !address.empty() && address == settings.local_gpunode;
  // No card has a way within a machine.
  if (local && options.choice == Choice::kVerbs) options.choice = Choice::kAuto;
  const std::string& key = local ? settings.local_key : settings.key;
  if (local && access(key.c_str(), F_OK) != 0)
    return Error{
        "gpunode local: it has ended: olrun started it for this program, and it ends with "
        "it"};
  if (key.empty()) return options;
  auto keys = loadKeys(key);
  if (!keys.ok()) return keys.error();
  options.keys = std::move(keys).value();
  return options;
}

Status checkChoice(const Options& options, const std::string& address) {
  if (options.choice != Choice::kVerbs) return {};
  const auto refused = [&address](const std::string& why) {
    return Error{base::format("{}: {}", address, why)};
  };
  std::vector<SocketAddress> rails;
  for (const std::string& each : options.rails) {
    const auto rail = numericAddress(each);
    if (!rail.ok()) return refused("rails: " + rail.error().message);
    rails.push_back(rail.value());
  }
  if (isUnix(address))
    return refused("RDMA connects no Unix sockets; name the daemon by a card's address");
  const auto all = resolve(address, false);
  if (!all.ok()) return all.error();
  std::string why;
  for (const SocketAddress& each : all.value()) {
    // Says by which of this machine's addresses one comes there, and sends nothing.
    const base::UniqueFd socket(::socket(each.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || connect(socket.get(), each.get(), each.length) != 0)
      return {};  // the connection itself will tell more
    why = ownKinds(options.choice, localAddress(socket.get()),
                   options.keys ? options.tls : Tls::kOff, rails)
              .no_verbs;
    if (why.empty()) return {};
  }
  return refused(why);
}

}  // namespace olpager::transport
