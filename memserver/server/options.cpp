#include "memserver/server/options.h"

#include <algorithm>
#include <charconv>

#include "base/address.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/size_words.h"
#include "base/text.h"
#include "base/toml_file.h"
#include "coherence/transport/trust/keys.h"
#include "memserver/server/slabs.h"

namespace olpager::memserver {
namespace {

Error notAllowed(std::string_view text, std::string_view allowed) {
  return Error{base::format("'{}' is not allowed; allowed: {}", text, allowed)};
}

Status setSize(uint64_t& into, std::string_view text) {
  auto bytes = base::parseSize(text);
  if (!bytes.ok()) return bytes.error();
  if (bytes.value() == 0) return notAllowed(text, base::kSizeForms);
  if (bytes.value() < kFramePageBytes) return base::belowPage(text, kFramePageBytes);
  into = bytes.value();
  return {};
}

// "500ms", "30s", "5min"; a plain number is seconds.
Status setTime(uint32_t& into, std::string_view text) {
  constexpr std::string_view kForms = "a time from 100ms to 24h, such as 30s, 500ms or 5min";
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  double factor = 0;
  if (unit == "ms") factor = 1;
  if (unit == "s" || unit.empty()) factor = 1000;
  if (unit == "min") factor = 60'000;
  if (unit == "h") factor = 3'600'000;
  const double ms = number * factor;
  if (error != std::errc() || !(ms >= 100 && ms <= 24 * 3'600'000.0))
    return notAllowed(text, kForms);
  into = static_cast<uint32_t>(ms);
  return {};
}

Status setPercent(double& into, std::string_view text) {
  if (text.ends_with('%')) text.remove_suffix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number > 0 && number <= 100)) {
    return notAllowed(text, "a percentage above 0 and up to 100");
  }
  into = number;
  return {};
}

template <typename T>
Status setNumber(T& into, std::string_view text, T least, T most) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    return notAllowed(text, base::format("{} to {}", least, most));
  }
  into = number;
  return {};
}

Status setFlag(bool& into, std::string_view text) {
  if (text != "on" && text != "off" && text != "true" && text != "false")
    return notAllowed(text, "on or off");
  into = text == "on" || text == "true";
  return {};
}

Status setListen(DaemonOptions& o, std::string_view text) {
  o.listen.clear();
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    if (auto status = base::checkAddress(one, base::AddressUse::kListen, base::kMemserverPort);
        !status.ok())
      return Error{status.error().message + "; several with commas between"};
    o.listen.emplace_back(one);
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  if (o.listen.empty())
    return notAllowed("", "host:port, [v6]:port or unix:/path; several with commas between");
  return {};
}

Status setMemory(DaemonOptions& o, std::string_view text) {
  if (text == "auto") {
    o.memory = {};
    return {};
  }
  auto budget = base::parseBudget(text);
  if (!budget.ok()) return Error{budget.error().message + ", or auto"};
  if (budget.value().percent == 0 && budget.value().bytes < kFramePageBytes)
    return Error{base::belowPage(text, kFramePageBytes).message + "; or auto"};
  o.memory = budget.value();
  return {};
}

Status setReserve(DaemonOptions& o, std::string_view text) {
  auto budget = base::parseBudget(text);
  if (!budget.ok()) return budget.error();
  if (budget.value().percent == 0 && budget.value().bytes < kFramePageBytes)
    return base::belowPage(text, kFramePageBytes);
  o.reserve = budget.value();
  return {};
}

Status setSlab(DaemonOptions& o, std::string_view text) {
  if (auto status = setSize(o.slab, text); !status.ok()) return status;
  if (o.slab % kFramePageBytes != 0 || o.slab > (64ull << 30)) {
    return notAllowed(text, "a multiple of 2MiB, up to 64GiB");
  }
  return {};
}

Status setTls(DaemonOptions& o, std::string_view text) {
  if (text == "all") {
    o.tls = transport::Tls::kAll;
  } else if (text == "control") {
    o.tls = transport::Tls::kControl;
  } else if (text == "off") {
    o.tls = transport::Tls::kOff;
  } else {
    return notAllowed(text, "all, control or off");
  }
  return {};
}

Status setTransport(DaemonOptions& o, std::string_view text) {
  if (text == "auto") {
    o.choice = transport::Choice::kAuto;
  } else if (text == "tcp") {
    o.choice = transport::Choice::kTcp;
  } else if (text == "shm") {
    o.choice = transport::Choice::kShm;
  } else if (text == "verbs") {
    o.choice = transport::Choice::kVerbs;
  } else {
    return notAllowed(text, "auto, tcp, shm or verbs");
  }
  return {};
}

Status setRails(DaemonOptions& o, std::string_view text) {
  auto rails = base::parseRails(text);
  if (!rails.ok()) return rails.error();
  o.rails = std::move(rails.value());
  return {};
}

Status setRecall(DaemonOptions& o, std::string_view text) {
  if (text != "soft" && text != "hard") return notAllowed(text, "soft or hard");
  o.hard_recall = text == "hard";
  return {};
}

Status setNuma(DaemonOptions& o, std::string_view text) {
  if (text == "auto") {
    o.numa = -2;
  } else if (text == "none") {
    o.numa = -1;
  } else if (auto status = setNumber(o.numa, text, 0, 1023); !status.ok()) {
    return notAllowed(text, "auto, none or a node's number");
  }
  return {};
}

Status setPrometheus(DaemonOptions& o, std::string_view text) {
  if (text != "none") {
    if (auto status = base::checkAddress(text, base::AddressUse::kListenHere, base::kMetricsPort);
        !status.ok())
      return Error{status.error().message + "; or none"};
  }
  o.prometheus.address = text == "none" ? "" : text;
  return {};
}

Status setLog(DaemonOptions& o, std::string_view text) {
  const auto level = base::parseLogLevel(text);
  if (!level) return notAllowed(text, base::kLogLevels);
  o.log = *level;
  return {};
}

}  // namespace

const std::vector<DaemonKey>& daemonKeys() {
  static const std::vector<DaemonKey> keys = {
      {"listen", "Network", "HOST:PORT,...",
       "Where sessions connect: host:port, [v6]:port, unix:/path; several with commas",
       "127.0.0.1:7070", setListen},
      {"memory", "Memory", "SIZE",
       "What to donate: a size, a percentage of what is available, or auto (what is available less "
       "the reserve)",
       "auto", setMemory},
      {"reserve", "Memory", "SIZE",
       "What is left to the machine: a size, or a percentage of its memory", "5%, at least 1GiB",
       setReserve},
      {"slab", "Memory", "SIZE", "The unit that is lent, a multiple of 2MiB", "by the memory",
       setSlab},
      {"key", "Network", "FILE", "File with the keys of sessions that may connect (olctl keygen)",
       "$CREDENTIALS_DIRECTORY/olmemserver.key, where it is; else none: loopback and its own user "
       "only",
       [](DaemonOptions& o, std::string_view text) {
         o.key = text;
         return Status();
       }},
      {"tls", "Network", "WHAT", "What is encrypted: all, control (messages only), off", "all",
       setTls},
      {"transport", "Network", "HOW",
       "auto (shared memory on this host, else RDMA or TCP), tcp, shm or verbs", "auto",
       setTransport},
      {"rails", "Network", "ADDRESS,...",
       "This machine's RDMA cards, if links are to have several: addresses with commas between",
       "the card at the address that a session connects to", setRails},
      {"lease_time", "Sessions", "SECONDS",
       "How long a lost session's memory is kept for it: 30s, 500ms, 5min", "30s",
       [](DaemonOptions& o, std::string_view text) { return setTime(o.lease_ms, text); }},
      {"quota", "Sessions", "SIZE", "The most that one session may lease", "none",
       [](DaemonOptions& o, std::string_view text) { return setSize(o.quota, text); }},
      {"sessions", "Sessions", "NUMBER", "The most sessions at a time", "1024",
       [](DaemonOptions& o, std::string_view text) {
         return setNumber(o.sessions, text, 1u, 65536u);
       }},
      {"recall", "Giving memory back", "HOW",
       "soft: memory that a session does not release stays; hard: it is taken when the time is "
       "over",
       "soft", setRecall},
      {"recall_time", "Giving memory back", "SECONDS",
       "How long sessions have to release what is recalled", "10s",
       [](DaemonOptions& o, std::string_view text) { return setTime(o.recall_ms, text); }},
      {"calm_time", "Giving memory back", "SECONDS",
       "How long there must be no pressure before memory is donated again", "30s",
       [](DaemonOptions& o, std::string_view text) { return setTime(o.calm_ms, text); }},
      {"pressure_some", "Giving memory back", "PERCENT",
       "Memory pressure (PSI, some, 10 s) from which memory is given back", "20%",
       [](DaemonOptions& o, std::string_view text) { return setPercent(o.pressure_some, text); }},
      {"pressure_full", "Giving memory back", "PERCENT", "The same of PSI's full", "5%",
       [](DaemonOptions& o, std::string_view text) { return setPercent(o.pressure_full, text); }},
      {"shutdown_timeout", "Giving memory back", "SECONDS",
       "How long to wait for sessions to move their pages when it is ended", "60s",
       [](DaemonOptions& o, std::string_view text) { return setTime(o.shutdown_ms, text); }},
      {"numa", "Memory", "NODE",
       "NUMA node that memory comes from first: auto (the network card's), none, or a number",
       "auto", setNuma},
      {"huge", "Memory", "on|off", "Ask for transparent huge pages: on or off", "on",
       [](DaemonOptions& o, std::string_view text) { return setFlag(o.huge, text); }},
      {"lock", "Memory", "on|off",
       "Keep memory from being swapped out, as far as the limit allows: on or off", "on",
       [](DaemonOptions& o, std::string_view text) { return setFlag(o.lock, text); }},
      {"prometheus", "Watching", "HOST:PORT",
       "Where figures are served for Prometheus: host:port; beyond loopback with a token", "none",
       setPrometheus},
      {"prometheus_token", "Watching", "FILE",
       "File with the token that whoever asks for figures has to bring (Authorization: Bearer)",
       "none",
       [](DaemonOptions& o, std::string_view text) {
         o.prometheus.token = text;
         return Status();
       }},
      {"prometheus_cert", "Watching", "FILE",
       "File with a certificate (PEM): figures are served by HTTPS", "none",
       [](DaemonOptions& o, std::string_view text) {
         o.prometheus.certificate = text;
         return Status();
       }},
      {"prometheus_cert_key", "Watching", "FILE", "File with that certificate's private key (PEM)",
       "none",
       [](DaemonOptions& o, std::string_view text) {
         o.prometheus.private_key = text;
         return Status();
       }},
      {"proc", "Giving memory back", "FOLDER", "Folder to read meminfo and pressure/memory from",
       "/proc",
       [](DaemonOptions& o, std::string_view text) {
         o.proc = text;
         return Status();
       }},
      {"cgroup", "Giving memory back", "FOLDER",
       "Folder of the cgroup to watch, with those above it, or none", "the own",
       [](DaemonOptions& o, std::string_view text) {
         o.cgroup = text;
         return Status();
       }},
      {"log", "Watching", "LEVEL", "off, error, warn, info, debug or trace", "info", setLog},
      {"log_format", "Watching", "HOW", "How lines look: text, or json (one object a line)", "text",
       [](DaemonOptions& o, std::string_view text) {
         const auto format = base::parseLogFormat(text);
         if (!format) return Status(notAllowed(text, base::kLogFormats));
         o.log_format = *format;
         return Status();
       }},
  };
  return keys;
}

namespace {

Error unknown(std::string_view key) {
  std::vector<std::string> names;
  for (const DaemonKey& each : daemonKeys()) names.emplace_back(each.key);
  names.emplace_back("quotas");
  return Error{base::unknownKey(key, names)};
}

}  // namespace

Status applyKey(DaemonOptions& options, std::string_view key, std::string_view text) {
  for (const DaemonKey& each : daemonKeys()) {
    if (each.key == key) return each.set(options, text);
  }
  return unknown(key);
}

Status applyKeyQuota(DaemonOptions& options, std::string_view text) {
  const size_t sign = text.find('=');
  const std::string name(text.substr(0, sign));
  if (sign == std::string_view::npos) return notAllowed(text, "NAME=SIZE, such as anna=64GiB");
  if (auto status = transport::checkKeyName(name); !status.ok()) return status;
  return setSize(options.quotas[name], text.substr(sign + 1));
}

Status applyFile(DaemonOptions& options, const std::string& path, bool must) {
  const auto entries = base::readTomlFile(path, must);
  if (!entries.ok()) return entries.error();
  for (const base::TomlEntry& entry : entries.value()) {
    const auto where = [&entry](const std::string& place, const Error& error) {
      return Error{base::format("{}: {}: {}", place, base::printable(entry.key), error.message)};
    };
    if (entry.key == "quotas" && entry.kind == base::TomlEntry::Kind::kTable) {
      for (const base::TomlEntry& quota : entry.inside)
        if (const Status status =
                applyKeyQuota(options, base::format("{}={}", quota.key, quota.text));
            !status.ok())
          return where(quota.place, status.error());
      continue;
    }
    const auto& keys = daemonKeys();
    if (std::none_of(keys.begin(), keys.end(),
                     [&](const DaemonKey& each) { return each.key == entry.key; }))
      return Error{base::format("{}: {}", entry.place,
                                entry.kind == base::TomlEntry::Kind::kTable
                                    ? base::unknownTable(entry.key, "quotas")
                                    : unknown(entry.key).message)};
    const auto value = entry.option();
    if (!value.ok()) return where(entry.place, value.error());
    if (const Status status = applyKey(options, entry.key, value.value()); !status.ok())
      return where(entry.place, status.error());
  }
  return {};
}

}  // namespace olpager::memserver
