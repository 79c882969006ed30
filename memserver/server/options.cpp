#include "memserver/server/options.h"

#include "base/format.h"
#include "coherence/transport/trust/keys.h"

namespace olpager::memserver {
namespace {

using base::notAllowed;
using base::Setter;
namespace setter = base::setter;

constexpr uint32_t kLeastTime = 100, kMostTime = 24 * 3'600'000;  // ms
constexpr uint64_t kMostSlab = 64ull << 30;

Status checkListen(std::string_view one) {
  return base::checkAddress(one, base::AddressUse::kListen, base::kMemserverPort);
}

Setter slab(uint64_t& into) {
  return [&into](std::string_view text) -> Status {
    uint64_t bytes = 0;
    if (const Status status = setter::size(bytes)(text); !status.ok()) return status;
    if (bytes % base::kSettingsPageBytes != 0 || bytes > kMostSlab)
      return notAllowed(text, "a multiple of 2MiB, up to 64GiB");
    into = bytes;
    return {};
  };
}

// NAME=SIZE, several with commas between.
Setter keyQuotas(std::map<std::string, uint64_t>& into) {
  return [&into](std::string_view text) -> Status {
    for (bool last = false; !last;) {
      const size_t comma = text.find(',');
      const std::string_view one = text.substr(0, comma);
      const size_t sign = one.find('=');
      const std::string name(one.substr(0, sign));
      if (sign == std::string_view::npos) return notAllowed(one, "NAME=SIZE, such as anna=64GiB");
      if (auto status = transport::checkKeyName(name); !status.ok()) return status;
      if (auto status = setter::size(into[name])(one.substr(sign + 1)); !status.ok()) return status;
      last = comma == std::string_view::npos;
      text.remove_prefix(last ? text.size() : comma + 1);
    }
    return {};
  };
}

Setter numa(int& into) {
  return [&into](std::string_view text) -> Status {
    uint32_t node = 0;
    if (text == "auto") {
      into = -2;
    } else if (text == "none") {
      into = -1;
    } else if (!setter::number(node, 0, 1023)(text).ok()) {
      return notAllowed(text, "auto, none or a node's number");
    } else {
      into = static_cast<int>(node);
    }
    return {};
  };
}

}  // namespace

base::OptionTable optionsOf(DaemonOptions& o) {
  constexpr const char *kMemory = "Memory", *kSessions = "Sessions",
                       *kGiving = "Giving memory back";
  const auto time = [](uint32_t& ms) { return setter::time(ms, kLeastTime, kMostTime); };
  std::vector<base::Option> rows = {
      {"listen", status::kNetwork, "HOST:PORT,...",
       "Where sessions connect: host:port, [v6]:port, unix:/path; several with commas",
       "127.0.0.1:7070", setter::addresses(o.listen, checkListen, "address")},
      {"memory", kMemory, "SIZE",
       "What to donate: a size, a percentage of what is available, or auto (what is available less "
       "the reserve)",
       "auto", setter::budget(o.memory, "auto")},
      {"reserve", kMemory, "SIZE",
       "What is left to the machine: a size, or a percentage of its memory", "5%, at least 1GiB",
       setter::budget(o.reserve)},
      {"slab", base::kHidden, "SIZE", "The unit that is lent, a multiple of 2MiB", "by the memory",
       slab(o.slab)},
      {"lease_time", kSessions, "SECONDS",
       "How long a lost session's memory is kept for it: 30s, 500ms, 5min", "30s",
       time(o.lease_ms)},
      {"quota", kSessions, "SIZE", "The most that one session may lease", "none",
       setter::size(o.quota)},
      {"key_quota", kSessions, "NAME=SIZE",
       "The most that all sessions of a key may lease, as often as there are such keys; in a file "
       "the table [quotas]",
       "", keyQuotas(o.quotas), "quotas"},
      {"sessions", kSessions, "NUMBER", "The most sessions at a time", "1024",
       setter::number(o.sessions, 1, 65536)},
      {"recall", kGiving, "HOW",
       "soft: memory that a session does not release stays; hard: it is taken when the time is "
       "over",
       "soft", setter::word(o.hard_recall, {{"soft", false}, {"hard", true}})},
      {"recall_time", kGiving, "SECONDS", "How long sessions have to release what is recalled",
       "10s", time(o.recall_ms)},
      {"calm_time", base::kHidden, "SECONDS",
       "How long there must be no pressure before memory is donated again", "30s", time(o.calm_ms)},
      {"pressure_some", base::kHidden, "PERCENT",
       "Memory pressure (PSI, some, 10 s) from which memory is given back", "20%",
       setter::percent(o.pressure_some)},
      {"pressure_full", base::kHidden, "PERCENT", "The same of PSI's full", "5%",
       setter::percent(o.pressure_full)},
      {"shutdown_timeout", kGiving, "SECONDS",
       "How long to wait for sessions to move their pages when it is ended", "60s",
       time(o.shutdown_ms)},
      {"numa", kMemory, "NODE",
       "NUMA node that memory comes from first: auto (the network card's), none, or a number",
       "auto", numa(o.numa)},
      {"huge", kMemory, "on|off", "Ask for transparent huge pages: on or off", "on",
       setter::onOff(o.huge)},
      {"lock", kMemory, "on|off",
       "Keep memory from being swapped out, as far as the limit allows: on or off", "on",
       setter::onOff(o.lock)},
      {"proc", base::kHidden, "FOLDER", "Folder to read meminfo and pressure/memory from", "/proc",
       setter::text(o.proc)},
      {"cgroup", kGiving, "FOLDER", "Folder of the cgroup to watch, with those above it, or none",
       "the own", setter::text(o.cgroup)},
  };
  status::addRows(rows, o, kCredential, base::kMetricsPort);
  return base::OptionTable(std::move(rows));
}

}  // namespace olpager::memserver
