#include "gpunode/supervisor/options.h"

#include <algorithm>
#include <charconv>

#include "base/address.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/settings.h"
#include "base/size_words.h"
#include "base/text.h"
#include "base/toml_file.h"
#include "gpunode/worker/setup.h"

namespace olpager::gpunode {
namespace {

Error notAllowed(std::string_view text, std::string_view allowed) {
  return Error{base::format("'{}' is not allowed; allowed: {}", text, allowed)};
}

// What a session's own setting would take.
Status checked(std::string_view key, std::string_view text, std::string& into) {
  base::Settings probe;
  if (auto status = base::applySetting(probe, key, text); !status.ok()) return status;
  into = text;
  return {};
}

Status number(std::string_view text, uint32_t least, uint32_t most, uint32_t& into) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return notAllowed(text, base::format("{} to {}", least, most));
  into = value;
  return {};
}

Status setListen(SupervisorOptions& options, std::string_view text) {
  if (auto status = base::checkAddress(text, base::AddressUse::kListen, base::kGpunodePort);
      !status.ok())
    return status;
  options.listen = text;
  return {};
}
Status setDriver(SupervisorOptions& options, std::string_view text) {
  return checked("driver", text, options.driver);
}
Status setVram(SupervisorOptions& options, std::string_view text) {
  base::Settings probe;
  auto status = base::applySetting(probe, "vram", text);
  if (status.ok()) options.vram = probe.vram;
  return status;
}
template <base::Budget SupervisorOptions::*kMember>
Status setMemory(SupervisorOptions& options, std::string_view text) {
  base::Settings probe;
  auto status = base::applySetting(probe, "host", text);
  if (status.ok()) options.*kMember = probe.host;
  return status;
}
Status setDevice(SupervisorOptions& options, std::string_view text) {
  std::vector<uint32_t> devices;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    uint32_t index = 0;
    if (auto status = number(text.substr(at, end - at), 0, kMostDevices - 1, index); !status.ok())
      return notAllowed(
          text, base::format("numbers of GPUs with commas between them, such as 0,2; up to {}",
                             kMostDevices - 1));
    if (std::find(devices.begin(), devices.end(), index) != devices.end())
      return Error{base::format("GPU {} is named twice", index)};
    devices.push_back(index);
    at = end + 1;
  }
  options.devices = devices;
  return {};
}
Status setKey(SupervisorOptions& options, std::string_view text) {
  return checked("key", text, options.key);
}
Status setTls(SupervisorOptions& options, std::string_view text) {
  if (text != "all" && text != "control" && text != "off")
    return notAllowed(text, "all, control or off");
  options.tls = text == "all"       ? transport::Tls::kAll
                : text == "control" ? transport::Tls::kControl
                                    : transport::Tls::kOff;
  return {};
}
Status setTransport(SupervisorOptions& options, std::string_view text) {
  if (text != "auto" && text != "tcp" && text != "shm" && text != "verbs")
    return notAllowed(text, "auto, tcp, shm or verbs");
  options.choice = text == "tcp"     ? transport::Choice::kTcp
                   : text == "shm"   ? transport::Choice::kShm
                   : text == "verbs" ? transport::Choice::kVerbs
                                     : transport::Choice::kAuto;
  return {};
}
Status setRails(SupervisorOptions& options, std::string_view text) {
  auto rails = base::parseRails(text);
  if (!rails.ok()) return rails.error();
  options.rails = std::move(rails.value());
  return {};
}
Status setCache(SupervisorOptions& options, std::string_view text) {
  if (text != "none" && !text.starts_with('/'))
    return notAllowed(text, "the absolute path of a folder, or none");
  options.cache = text;
  return {};
}
Status setCacheSize(SupervisorOptions& options, std::string_view text) {
  const auto bytes = base::parseSize(text);
  if (!bytes.ok()) return bytes.error();
  if (bytes.value() < base::kSettingsPageBytes)
    return base::belowPage(text, base::kSettingsPageBytes);
  options.cache_bytes = bytes.value();
  return {};
}
template <bool SupervisorOptions::*kMember>
Status setSwitch(SupervisorOptions& options, std::string_view text) {
  if (text != "on" && text != "off") return notAllowed(text, "on or off");
  options.*kMember = text == "on";
  return {};
}
Status setSessions(SupervisorOptions& options, std::string_view text) {
  return number(text, 1, 1024, options.sessions);
}
Status setKeySessions(SupervisorOptions& options, std::string_view text) {
  return number(text, 1, 1024, options.key_sessions);
}
Status setGrace(SupervisorOptions& options, std::string_view text) {
  uint32_t seconds = 0;
  if (auto status = number(text, 2, 3600, seconds); !status.ok()) return status;
  options.grace_ms = seconds * 1000;
  return {};
}
Status setPrometheus(SupervisorOptions& options, std::string_view text) {
  if (text != "none") {
    if (auto status =
            base::checkAddress(text, base::AddressUse::kListenHere, base::kMetricsPort + 1);
        !status.ok())
      return Error{status.error().message + "; or none"};
  }
  options.prometheus.address = text == "none" ? "" : text;
  return {};
}
template <std::string status::MetricsOptions::*kMember>
Status setMetricsFile(SupervisorOptions& options, std::string_view text) {
  options.prometheus.*kMember = text;
  return {};
}
Status setLogFormat(SupervisorOptions& options, std::string_view text) {
  const auto format = base::parseLogFormat(text);
  if (!format) return notAllowed(text, base::kLogFormats);
  options.log_format = *format;
  return {};
}
Status setWorkerLog(SupervisorOptions& options, std::string_view text) {
  options.worker_log = base::parseLogLevel(text);
  return options.worker_log ? Status() : notAllowed(text, base::kLogLevels);
}
Status setLog(SupervisorOptions& options, std::string_view text) {
  const auto level = base::parseLogLevel(text);
  if (!level) return notAllowed(text, base::kLogLevels);
  options.log = *level;
  return {};
}

}  // namespace

const std::vector<SupervisorKey>& supervisorKeys() {
  static const std::vector<SupervisorKey> kKeys = {
      {"listen", "Network", "HOST:PORT", "Where clients are accepted, host:port or unix:/path",
       "127.0.0.1:7071", setListen},
      {"driver", "GPUs", "FILE",
       "The driver's libcuda.so.1 by its path, or sim for the simulated GPU",
       "as the loader finds it", setDriver},
      {"device", "GPUs", "NUMBER,...",
       "The GPUs that sessions see, such as 0,2, counted as nvidia-smi does", "all", setDevice},
      {"vram", "Memory", "SIZE",
       "The most VRAM that a session may use of each device, in bytes or per cent",
       "what is free; a fair share where there are several", setVram},
      {"memory", "Memory", "SIZE",
       "The most RAM that a session's pages may use, and as much again its pinned memory",
       "what all have together; a fair share where there are several",
       setMemory<&SupervisorOptions::memory>},
      {"total-memory", "Memory", "SIZE",
       "RAM that all sessions' pages and pinned memory are to have together",
       "80 % of what is available when it starts", setMemory<&SupervisorOptions::total_memory>},
      {"key", "Network", "FILE", "The file with the keys of clients; needed beyond loopback",
       "$CREDENTIALS_DIRECTORY/olgpunode.key, where it is; else none", setKey},
      {"tls", "Network", "WHAT", "What is encrypted: all, control or off", "all", setTls},
      {"transport", "Network", "HOW", "auto, tcp, shm or verbs", "auto", setTransport},
      {"rails", "Network", "ADDRESS,...",
       "This machine's RDMA cards, if links are to have several: addresses with commas between",
       "the card at the address that a client connects to", setRails},
      {"cache", "Modules", "FOLDER", "The folder for modules that clients have sent, or none",
       "$CACHE_DIRECTORY, else olpager in $XDG_CACHE_HOME, ~/.cache or /var/cache", setCache},
      {"cache-size", "Modules", "SIZE", "The most that the modules of one key may take there",
       "4GiB", setCacheSize},
      {"confine", "Sessions", "on|off",
       "Whether workers may start no programs and open no connections: on or off", "on",
       setSwitch<&SupervisorOptions::confine>},
      {"straight", "Network", "on|off",
       "Whether copies to and from a program's other gpunodes go straight there: on or off", "on",
       setSwitch<&SupervisorOptions::straight>},
      {"sessions", "Sessions", "NUMBER", "The most at a time", "64", setSessions},
      {"key-sessions", "Sessions", "NUMBER", "The most at a time of one key", "no limit of its own",
       setKeySessions},
      {"grace", "Sessions", "SECONDS",
       "Seconds for which a program that has lost its connection tries to connect again", "10",
       setGrace},
      {"prometheus", "Watching", "HOST:PORT",
       "Where figures are served for Prometheus: host:port; beyond loopback with a token", "none",
       setPrometheus},
      {"prometheus-token", "Watching", "FILE",
       "File with the token that whoever asks for figures has to bring (Authorization: Bearer)",
       "none", setMetricsFile<&status::MetricsOptions::token>},
      {"prometheus-cert", "Watching", "FILE",
       "File with a certificate (PEM): figures are served by HTTPS", "none",
       setMetricsFile<&status::MetricsOptions::certificate>},
      {"prometheus-cert-key", "Watching", "FILE", "File with that certificate's private key (PEM)",
       "none", setMetricsFile<&status::MetricsOptions::private_key>},
      {"log", "Watching", "LEVEL", "off, error, warn, info, debug or trace", "info", setLog},
      {"log-format", "Watching", "HOW", "How lines look: text, or json (one object a line)", "text",
       setLogFormat},
      {"worker-log", "Watching", "LEVEL", "The same as --log for the workers of sessions",
       "warn; from debug on as --log", setWorkerLog},
  };
  return kKeys;
}

namespace {

// As a file has them: the command line's are looked at before.
Error unknown(std::string_view key) {
  std::vector<std::string> names;
  for (const auto& known : supervisorKeys()) {
    names.emplace_back(known.key);
    std::replace(names.back().begin(), names.back().end(), '-', '_');
  }
  return Error{base::unknownKey(key, names)};
}

bool isKey(std::string_view name) {
  const auto& keys = supervisorKeys();
  return std::any_of(keys.begin(), keys.end(),
                     [name](const SupervisorKey& known) { return known.key == name; });
}

}  // namespace

Status applyFile(SupervisorOptions& options, const std::string& path, bool must) {
  const auto entries = base::readTomlFile(path, must);
  if (!entries.ok()) return entries.error();
  for (const base::TomlEntry& entry : entries.value()) {
    std::string name = entry.key;
    std::replace(name.begin(), name.end(), '_', '-');
    const auto value = entry.option();
    if (!isKey(name))
      return Error{base::format("{}: {}", entry.place,
                                entry.kind == base::TomlEntry::Kind::kTable
                                    ? base::unknownTable(entry.key)
                                    : unknown(entry.key).message)};
    const Status status =
        value.ok() ? applyOption(options, name, value.value()) : Status(value.error());
    if (!status.ok())
      return Error{base::format("{}: {}: {}", entry.place, base::printable(entry.key),
                                status.error().message)};
  }
  return {};
}

Status applyOption(SupervisorOptions& options, std::string_view key, std::string_view text) {
  for (const auto& known : supervisorKeys()) {
    if (key == known.key) return known.set(options, text);
  }
  return unknown(key);
}

}  // namespace olpager::gpunode
