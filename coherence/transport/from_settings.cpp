#include "coherence/transport/from_settings.h"

#include "coherence/transport/trust/keys.h"

namespace olpager::transport {

Result<Options> optionsFrom(const base::Settings& settings) {
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
  if (settings.key.empty()) return options;
  auto keys = loadKeys(settings.key);
  if (!keys.ok()) return keys.error();
  options.keys = std::move(keys).value();
  return options;
}

}  // namespace olpager::transport
