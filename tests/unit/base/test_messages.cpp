// Messages for users about names and addresses that can't be.
#include <fstream>

#include "base/address.h"
#include "base/credentials.h"
#include "base/nearest.h"
#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager;
using namespace olpager::base;

TEST_CASE("the nearest name is the one that is meant", "[base][nearest]") {
  const std::vector<std::string> options = {"--vram",  "--view", "--host",   "--memserver",
                                            "--tls",   "--log",  "--config", "--replicas",
                                            "--check", "--stats"};
  for (const auto& [word, meant] : {std::pair{"--vrma", "--vram"},
                                    {"-vram", "--vram"},
                                    {"--VRAM", "--vram"},
                                    {"--mem", "--memserver"},
                                    {"--memservers", "--memserver"},
                                    {"--mem_server", "--memserver"},
                                    {"--conf", "--config"},
                                    {"--tsl", "--tls"},
                                    {"--replica", "--replicas"},
                                    {"--xyz", ""},
                                    {"--", ""},
                                    {"", ""}}) {
    INFO(word);
    CHECK(nearest(word, options) == meant);
  }
  CHECK(nearest("--vram", {}).empty());
  CHECK(didYouMean("vrom", {"host", "vram"}) == "; did you mean vram?");
  CHECK(didYouMean("quite-another", {"host", "vram"}).empty());
  CHECK(byNearness("host", {"vram", "ghost", "host"}) ==
        std::vector<std::string>{"host", "ghost", "vram"});
  CHECK(unknownKey("vr\nm", {"host", "vram"}) ==
        "unknown key 'vr?m'; allowed, the nearest first: vram, host");
  CHECK(unknownTable("a\nb") ==
        "unknown table 'a?b'; settings are in no table: take the line [a?b] out, and leave KEY = "
        "VALUE");
  CHECK(unknownTable("quota", "quotas").find("the only one is [quotas]") != std::string::npos);
  CHECK(nearest(std::string(1 << 20, 'v'), options).empty());  // in no time
}

TEST_CASE("an address has a host and a port", "[base][address]") {
  for (const char* good : {"a:1", "127.0.0.1:65535", "[::1]:7070", "unix:/run/x", "host.name:7071"})
    CHECK(checkAddress(good, AddressUse::kConnect, kGpunodePort).ok());
  CHECK(checkAddress("127.0.0.1:0", AddressUse::kListen, kGpunodePort).ok());
  CHECK(checkAddress("[::]:0", AddressUse::kListen, kGpunodePort).ok());
  const auto why = [](const char* text, AddressUse use = AddressUse::kConnect) {
    const Status status = checkAddress(text, use, kGpunodePort);
    return status.ok() ? std::string() : status.error().message;
  };
  CHECK(why("box") ==
        "'box' names no port, such as box:7071; allowed: host:port or [v6]:port, or unix:/path");
  CHECK(why("box:").starts_with("'box:' names no port, such as box:7071"));
  CHECK(why("[::1]").starts_with("'[::1]' names no port, such as [::1]:7071"));
  CHECK(why("http://box:7071/").starts_with("'http://box:7071/' is a URL; say box:7071 alone;"));
  CHECK(why("tcp://box").starts_with("'tcp://box' is a URL; say box:7071 alone;"));
  CHECK(why("http://[::1]").starts_with("'http://[::1]' is a URL; say [::1]:7071 alone;"));
  CHECK(why("://").starts_with("'://' is a URL"));
  CHECK(why("::1").starts_with(
      "'::1' is ambiguous: an IPv6 address stands in brackets, such as [::1]:7071"));
  CHECK(why("7071").starts_with("'7071' names no host, such as 127.0.0.1:7071"));
  CHECK(why(":7071").starts_with("':7071' names no host, such as 127.0.0.1:7071;"));
  CHECK(why(":7071", AddressUse::kListen).find("for every network: [::]:7071") !=
        std::string::npos);
  for (const char* port : {"box:65536", "box:-1", "box:http", "box:0", "box:1x"})
    CHECK(why(port).find("which is no number from 1 to 65535") != std::string::npos);
  CHECK(!why("").empty());
  CHECK(!why("unix:").empty());
  CHECK(!why("unix:/run/x", AddressUse::kListenHere).empty());  // figures are served over IP
  CHECK(why("b\nx").find('\n') == std::string::npos);
}

TEST_CASE("rails are numeric addresses without a port, each once", "[base][address]") {
  REQUIRE(parseRails("10.0.0.2,fd00::2").ok());
  CHECK(parseRails("10.0.0.2,fd00::2").value() == std::vector<std::string>{"10.0.0.2", "fd00::2"});
  REQUIRE(parseRails("none").ok());
  CHECK(parseRails("none").value().empty());
  const auto why = [](const char* text) {
    const auto rails = parseRails(text);
    return rails.ok() ? std::string() : rails.error().message;
  };
  CHECK(why("10.0.0.2,box") ==
        "'box' is no address of a card; allowed: IPv4 or IPv6 addresses of this host without a "
        "port, such as 10.0.0.2,10.1.0.2; or none");
  for (const char* wrong : {"", ",", "10.0.0.2,", "10.0.0.2:7070", "[fd00::2]", "mlx5_0"})
    CHECK(why(wrong).find("is no address of a card") != std::string::npos);
  CHECK(why("fe80::1") == "'fe80::1' is of the own link alone, and says nothing to a peer");
  CHECK(why("10.0.0.2,10.0.0.3,10.0.0.2") == "10.0.0.2 is named twice; each card once");
  CHECK(why("10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5") == "5 cards; a link has at most 4");
  CHECK(why("b\nx").find('\n') == std::string::npos);
}

TEST_CASE("systemd's folder of credentials", "[base][credentials]") {
  const olpager::test::TemporaryFolder folder;
  CHECK(credentialFile(folder.path, "olpager.key").empty());
  std::ofstream(folder.path + "/olpager.key") << "x";
  CHECK(credentialFile(folder.path, "olpager.key") == folder.path + "/olpager.key");
  CHECK(credentialFile("", "olpager.key").empty());
  CHECK(credentialFile("relative", "olpager.key").empty());
}
