#include "coherence/transport/from_settings.h"

#include <unistd.h>

#include "coherence/transport/trust/keys.h"

namespace olpager::transport {

Result<Options> optionsFrom(const base::Settings& settings, std::string_view address) {
  Options options;
  switch (settings.transport) {
    case base::TransportSetting::kAuto:
      options.choice = Choice::kAuto;
      break;
    case base::TransportSetting::kTcp:
      options.choice = Choice::kTcp;
      break;
    case base::TransportSetting::kShm:
      options.choice = Choice::kShm;
      break;
    case base::TransportSetting::kVerbs:
      options.choice = Choice::kVerbs;
      break;
  }
  options.rails = settings.rails;
  switch (settings.tls) {
    case base::TlsSetting::kAll:
      options.tls = Tls::kAll;
      break;
    case base::TlsSetting::kControl:
      options.tls = Tls::kControl;
      break;
    case base::TlsSetting::kOff:
      options.tls = Tls::kOff;
      break;
  }
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

}  // namespace olpager::transport
