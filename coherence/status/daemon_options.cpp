#include "coherence/status/daemon_options.h"

#include "base/format.h"
#include "base/settings.h"

namespace olpager::status {

void addRows(std::vector<base::Option>& rows, DaemonOptions& o, std::string_view credential,
             uint16_t port) {
  using namespace base::setter;
  rows.insert(
      rows.end(),
      {{"key", kNetwork, "FILE", "File with the keys of those who may connect (olctl keygen)",
        base::format(
            "$CREDENTIALS_DIRECTORY/{}, where it is; else none: loopback and its own user only",
            credential),
        path(o.key, "the absolute path of a key file (olctl keygen makes one)")},
       {"tls", kNetwork, "WHAT", "What is encrypted: all, control (messages only) or off", "all",
        word(o.tls, base::kTlsWords)},
       {"transport", kNetwork, "HOW",
        "auto (shared memory on this host, else RDMA or TCP), tcp, shm or verbs", "auto",
        word(o.choice, base::kTransportWords)},
       {"rails", kNetwork, "ADDRESS,...",
        "This machine's RDMA cards, if links are to have several: addresses with commas between",
        "the card at the address that is connected to", rails(o.rails)},
       {"prometheus", kWatching, "HOST:PORT",
        "Where figures are served for Prometheus: host:port; beyond loopback with a token", "none",
        address(o.prometheus.address, base::AddressUse::kListenHere, port, "none")},
       {"prometheus_token", kWatching, "FILE",
        "File with the token that whoever asks for figures has to bring (Authorization: Bearer)",
        "none", text(o.prometheus.token)},
       {"prometheus_cert", kWatching, "FILE",
        "File with a certificate (PEM): figures are served by HTTPS", "none",
        text(o.prometheus.certificate)},
       {"prometheus_cert_key", kWatching, "FILE", "File with that certificate's private key (PEM)",
        "none", text(o.prometheus.private_key)},
       {"log", kWatching, "LEVEL", "off, error, warn, info, debug or trace", "info",
        logLevel(o.log)},
       {"log_format", kWatching, "HOW", "How lines look: text, or json (one object a line)", "text",
        parsed(o.log_format, base::parseLogFormat, base::kLogFormats)}});
}

}  // namespace olpager::status
