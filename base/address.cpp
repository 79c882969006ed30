#include "base/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "base/text.h"

namespace olpager::base {

Status checkAddress(std::string_view text, AddressUse use, uint16_t usual) {
  const std::string shown = printable(text);
  const bool unix_too = use != AddressUse::kListenHere;
  const auto refused = [&](const std::string& why) {
    return Error{base::format("'{}' {}; allowed: host:port or [v6]:port{}", shown, why,
                              unix_too ? ", or unix:/path" : ", of loopback")};
  };
  if (unix_too && text.starts_with("unix:")) {
    if (text.size() == 5) return refused("names no path");
    return {};
  }
  if (text.empty()) return refused("is no address");
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos) {
    const std::string_view rest = text.substr(scheme + 3);
    const std::string host = printable(rest.substr(0, rest.find('/')));
    const bool has_port = host.find(':', host.rfind(']') + 1) != std::string::npos;
    return refused(
        base::format("is a URL; say {}{} alone", host, has_port ? "" : base::format(":{}", usual)));
  }
  const size_t colon = text.rfind(':');
  const bool bare_v6 = text.front() == '[' ? text.back() == ']' : text.find(':') != colon;
  if (bare_v6 && text.front() != '[')
    return refused(base::format("is ambiguous: an IPv6 address stands in brackets, such as [{}]:{}",
                                shown, usual));
  if (colon == std::string_view::npos || bare_v6) {
    if (text.find_first_not_of("0123456789") == std::string_view::npos)
      return refused(base::format("names no host, such as 127.0.0.1:{}", shown));
    return refused(base::format("names no port, such as {}:{}", shown, usual));
  }
  if (colon == 0) {
    return refused(
        use == AddressUse::kListen
            ? base::format("names no host, such as 127.0.0.1{}; for every network: [::]{}", shown,
                           shown)
            : base::format("names no host, such as 127.0.0.1{}", shown));
  }
  const std::string_view port = text.substr(colon + 1);
  if (port.empty()) return refused(base::format("names no port, such as {}{}", shown, usual));
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const unsigned least = use == AddressUse::kConnect ? 1 : 0;
  if (error != std::errc() || end != port.data() + port.size() || number < least || number > 65535)
    return refused(base::format("names the port '{}', which is no number from {} to 65535",
                                printable(port), least));
  return {};
}

Result<std::vector<std::string>> parseRails(std::string_view text) {
  std::vector<std::string> rails;
  if (text == "none") return rails;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string one(rest.substr(0, comma));
    in6_addr parsed{};
    const bool v6 = inet_pton(AF_INET6, one.c_str(), &parsed) == 1;
    if (v6 && IN6_IS_ADDR_LINKLOCAL(&parsed))
      return Error{base::format("'{}' is of the own link alone, and says nothing to a peer", one)};
    if (!v6 && inet_pton(AF_INET, one.c_str(), &parsed) != 1) {
      return Error{
          base::format("'{}' is no address of a card; allowed: IPv4 or IPv6 addresses of "
                       "this host without a port, such as 10.0.0.2,10.1.0.2; or none",
                       printable(one))};
    }
    if (std::find(rails.begin(), rails.end(), one) != rails.end())
      return Error{base::format("{} is named twice; each card once", one)};
    rails.push_back(one);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (rails.size() > kMostRails)
    return Error{base::format("{} cards; a link has at most {}", rails.size(), kMostRails)};
  return rails;
}

}  // namespace olpager::base
