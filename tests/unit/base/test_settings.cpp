#include "base/settings.h"

#include <filesystem>

#include "tests/catch.h"
#include "tests/temporary_folder.h"

using namespace olpager::base;
namespace fs = std::filesystem;

namespace {

struct Files : olpager::test::TemporaryFolder {
  SettingsSources sources(std::vector<std::string> environment) const {
    environment.push_back("XDG_CONFIG_HOME=" + path + "/xdg");
    return {.system_file = path + "/etc.toml", .environment = std::move(environment)};
  }
};

std::string failureOf(const SettingsSources& sources) {
  const auto settings = loadSettings(sources);
  return settings.ok() ? "" : settings.error().message;
}

}  // namespace

TEST_CASE("without any source the defaults hold", "[base][settings]") {
  Files files;
  const auto settings = loadSettings(files.sources({}));
  REQUIRE(settings.ok());
  CHECK_FALSE(settings.value().vram.given());
  CHECK(settings.value().reach == ReachSetting::kTraced);
  CHECK(settings.value().report == ReportSetting::kNode);
  CHECK(settings.value().log == LogLevel::kWarn);
  CHECK(settings.value().driver.empty());
}

TEST_CASE("paths on a command line may be relative", "[base][settings]") {
  const std::string here = std::filesystem::current_path().string();
  Settings settings;
  const OptionTable table = optionsOf(settings);
  const auto given = [&](const char* key, const char* text) {
    return fromCommandLine(*table.find(key), text);
  };
  CHECK(given("key", "keys/anna.key") == here + "/keys/anna.key");
  CHECK(given("key", "sim") == here + "/sim");
  CHECK(given("driver", "./libcuda.so.1") == here + "/libcuda.so.1");
  CHECK(given("driver", "/opt/libcuda.so.1") == "/opt/libcuda.so.1");
  CHECK(given("driver", "sim") == "sim");
  CHECK(given("vram", "8GiB") == "8GiB");
}

TEST_CASE("later sources win over earlier ones, key by key", "[base][settings]") {
  Files files;
  files.write("etc.toml", "vram = '1GiB'\nhost = '1GiB'\nreach = 'all'\nreport = 'pool'\n");
  files.write("xdg/olpager/olpager.toml", "vram = '2GiB'\nhost = '2GiB'\nreach = 'learned'\n");
  const auto named = files.write("named.toml", "vram = '3GiB'\nhost = 4194304\n");
  const auto settings =
      loadSettings(files.sources({"OL_CONFIG=" + named, "OL_VRAM=25%", "OL_LOG="}));
  REQUIRE(settings.ok());
  CHECK(settings.value().vram == Budget{.bytes = 0, .percent = 25});
  CHECK(settings.value().host.bytes == 4ull << 20);
  CHECK(settings.value().reach == ReachSetting::kLearned);
  CHECK(settings.value().report == ReportSetting::kPool);
}

TEST_CASE("every setting has a variable and a key", "[base][settings]") {
  Files files;
  const auto settings =
      loadSettings(files.sources({"OL_VRAM=64MiB", "OL_HOST=1GiB", "OL_REACH=all", "OL_REPORT=pool",
                                  "OL_VA_BASE=0x212340000000", "OL_VA_SIZE=1TiB", "OL_LOG=debug",
                                  "OL_DRIVER=/usr/lib/libcuda.so.1"}));
  REQUIRE(settings.ok());
  CHECK(settings.value().va_base == 0x212340000000);
  CHECK(settings.value().va_size == 1ull << 40);
  CHECK(settings.value().log == LogLevel::kDebug);
  CHECK(settings.value().driver == "/usr/lib/libcuda.so.1");
  Settings one;
  for (const auto& [key, text] : {std::pair{"vram", "64MiB"},
                                  {"host", "50%"},
                                  {"reach", "all"},
                                  {"report", "pool"},
                                  {"va_base", "0x212340000000"},
                                  {"va_size", "1TiB"},
                                  {"log", "off"},
                                  {"driver", "sim"}}) {
    CHECK(optionsOf(one).set(key, text).ok());
  }
  CHECK_FALSE(optionsOf(one).set("vrom", "1GiB").ok());
}

TEST_CASE("a key that nothing names is taken from systemd's credentials", "[base][settings]") {
  Files files;
  const std::string folder = std::filesystem::path(files.write("olpager.key", "x")).parent_path();
  const std::string variable = "CREDENTIALS_DIRECTORY=" + folder;
  CHECK(loadSettings(files.sources({variable})).value().key == folder + "/olpager.key");
  CHECK(loadSettings(files.sources({variable, "OL_KEY=/other"})).value().key == "/other");
  CHECK(loadSettings(files.sources({variable + "/none"})).value().key.empty());
}

TEST_CASE("a wrong file says where, what and what is allowed", "[base][settings]") {
  Files files;
  const auto [text, line, expected] = GENERATE(table<const char*, int, const char*>({
      {"vram = '1GiB'\nvrom = '1GiB'\n", 2,
       "unknown key 'vrom'; allowed, the nearest first: vram, "},
      {"\n[local]\nvram = '1GiB'\n", 2, "unknown table 'local'"},
      {"vram = '8 Gigs'\n", 1, "vram: '8 Gigs' is not a size"},
      {"vram = '1MiB'\n", 1, "vram: '1MiB' is below one page; allowed: 2MiB or more"},
      {"host = '120%'\n", 1, "host: '120%'"},
      {"host = true\n", 1, "host is of type boolean"},
      {"host = -4194304\n", 1, "host is of type integer"},
      {"reach = 3\n", 1, "reach is of type integer; allowed: a string"},
      {"require = 'rdma'\n", 1, "require: 'rdma' is not allowed; allowed: gpudirect or none"},
      {"reach = 'some'\n", 1, "reach: 'some' is not allowed; allowed: traced, all or learned"},
      {"report = 'disk'\n", 1, "report: 'disk' is not allowed; allowed: node or pool"},
      {"log = 'loud'\n", 1, "allowed: off, error"},
      {"driver = './libcuda.so'\n", 1, "allowed: the absolute path"},
      {"va_base = 0x1001\n", 1, "va_base: '4097' is not allowed"},
      {"va_size = '0'\n", 1, "va_size: '0' is not allowed"},
      {"\n\nvram = \n", 3, ""},
      {"\nvram = 8GiB  # mine\n", 2, "vram = 8GiB: a text needs quotes: vram = \"8GiB\""},
      {"vram = 50%\n", 1, "vram = 50%: a text needs quotes: vram = \"50%\""},
      {"driver = /usr/lib/libcuda.so.1", 1, "driver = \"/usr/lib/libcuda.so.1\""},
      {"log = info\n", 1, "log = \"info\""},
      {"replicas = 2\nreplicas = 2\n", 2, "replicas"},
      {"disk = 'mnt:4MiB'\n", 1, "disk: 'mnt:4MiB' is not allowed; allowed: FOLDER:SIZE"},
      {"disk = '/mnt'\n", 1, "disk: '/mnt' is not allowed; allowed: FOLDER:SIZE"},
      {"disk = '/mnt:much'\n", 1, "disk: 'much' is not a size"},
      {"disk = '/mnt:1MiB'\n", 1, "disk: '1MiB' is below one page"},
      {"disk = ['/mnt:4MiB', '/mnt:4MiB']\n", 1, "disk: /mnt:4MiB is named twice"},
      {"disk = 7\n", 1, "disk is of type integer; allowed: a string or an array of strings"},
      {"memserver = 7\n", 1,
       "memserver is of type integer; allowed: a string or an array of strings"},
      {"memserver = ['a:1', 2]\n", 1, "memserver is of type array"},
      {"memserver = [['a:1']]\n", 1, "memserver is of type array"},
      {"memserver = ['a:1', 'a:1']\n", 1, "memserver: a:1 is named twice"},
  }));
  const auto path = files.write("etc.toml", text);
  const auto failure = failureOf(files.sources({}));
  CHECK(failure.rfind(path + ":" + std::to_string(line) + ": ", 0) == 0);
  CHECK(failure.find(expected) != std::string::npos);
  CHECK(failure.find('\n') == std::string::npos);
}

TEST_CASE("what a file names can be left out for one run", "[base][settings]") {
  Files files;
  files.write("etc.toml", "memserver = ['a:1', 'unix:/b']\ngpunode = 'c:1'\n");
  const auto all = loadSettings(files.sources({}));
  REQUIRE(all.ok());
  CHECK(all.value().memservers == std::vector<std::string>{"a:1", "unix:/b"});
  CHECK(all.value().gpunodes == std::vector<std::string>{"c:1"});
  const auto none = loadSettings(files.sources({"OL_MEMSERVER=none", "OL_GPUNODE=none"}));
  REQUIRE(none.ok());
  CHECK(none.value().memservers.empty());
  CHECK(none.value().gpunodes.empty());
  files.write("xdg/olpager/olpager.toml", "memserver = []\n");
  const auto emptied = loadSettings(files.sources({"OL_GPUNODE="}));
  REQUIRE(emptied.ok());
  CHECK(emptied.value().memservers.empty());
  CHECK(emptied.value().gpunodes == std::vector<std::string>{"c:1"});
}

TEST_CASE("disks are folders with sizes", "[base][settings]") {
  Files files;
  files.write("etc.toml", "disk = ['/mnt/a:4MiB', '/mnt/with:colon:1.5GiB']\n");
  const auto two = loadSettings(files.sources({}));
  REQUIRE(two.ok());
  CHECK(two.value().disks ==
        std::vector<DiskSetting>{{"/mnt/a", 4ull << 20}, {"/mnt/with:colon", 3ull << 29}});
  CHECK(two.value().disk_encrypt);
  const auto one = loadSettings(files.sources({"OL_DISK=/:2MiB", "OL_DISK_ENCRYPT=off"}));
  REQUIRE(one.ok());
  CHECK(one.value().disks == std::vector<DiskSetting>{{"/", 2ull << 20}});
  CHECK_FALSE(one.value().disk_encrypt);
  CHECK(loadSettings(files.sources({"OL_DISK=none"})).value().disks.empty());
}

TEST_CASE("a program may have several gpunodes, each once", "[base][settings]") {
  Files files;
  files.write("etc.toml", "gpunode = ['a:1', '[::1]:2']\nview = 'discrete'\n");
  const auto listed = loadSettings(files.sources({}));
  REQUIRE(listed.ok());
  CHECK(listed.value().gpunodes == std::vector<std::string>{"a:1", "[::1]:2"});
  const auto named = loadSettings(files.sources({"OL_GPUNODE=b:1,c:2,d:3"}));
  REQUIRE(named.ok());
  CHECK(named.value().gpunodes == std::vector<std::string>{"b:1", "c:2", "d:3"});
  CHECK(failureOf(files.sources({"OL_GPUNODE=b:1,b:1"})).find("b:1 is named twice") !=
        std::string::npos);
  CHECK(failureOf(files.sources({"OL_GPUNODE=b:1,,c:1"})).find("host:port") != std::string::npos);
  CHECK(failureOf(files.sources({"OL_VIEW=both"})).find("discrete or unified") !=
        std::string::npos);
  std::string many = "a:1";
  for (unsigned i = 2; i <= kMostGpunodes + 1; ++i) many += ",a:" + std::to_string(i);
  CHECK(failureOf(files.sources({"OL_GPUNODE=" + many})).find("17 gpunodes") != std::string::npos);
}

TEST_CASE("a gpunode local has the address of the one that olrun has started", "[base][settings]") {
  Files files;
  files.write("etc.toml", "gpunode = [\"local\", \"b:1\"]\n");
  const auto named = loadSettings(files.sources({}));
  REQUIRE(named.ok());
  CHECK(named.value().gpunodes == std::vector<std::string>{"local", "b:1"});
  CHECK(named.value().local_gpunode.empty());
  const olpager::Status not_started = checkLocalStarted(named.value());
  REQUIRE_FALSE(not_started.ok());
  CHECK(not_started.error().message.find("olrun --gpunode local") != std::string::npos);

  const auto started = loadSettings(files.sources({"OL_LOCAL_GPUNODE=/run/x.sock"}));
  REQUIRE(started.ok());
  CHECK(started.value().gpunodes == std::vector<std::string>{"unix:/run/x.sock", "b:1"});
  CHECK(started.value().local_gpunode == "unix:/run/x.sock");
  CHECK(started.value().local_key == "/run/x.sock.key");
  CHECK(started.value().warnings.empty());
  CHECK(checkLocalStarted(started.value()).ok());

  const auto other =
      loadSettings(files.sources({"OL_LOCAL_GPUNODE=/run/x.sock", "OL_GPUNODE=c:2"}));
  REQUIRE(other.ok());
  CHECK(other.value().gpunodes == std::vector<std::string>{"c:2"});
  CHECK(other.value().local_gpunode.empty());
  CHECK(failureOf(files.sources({"OL_GPUNODE=local,local"})).find("local is named twice") !=
        std::string::npos);
}

TEST_CASE("the unified view has one gpunode or several, and no memory that stays in one GPU's VRAM",
          "[base][settings]") {
  Files files;
  const auto one = loadSettings(files.sources({"OL_VIEW=unified", "OL_GPUNODE=a:1"}));
  REQUIRE(one.ok());
  CHECK(one.value().view == ViewSetting::kUnified);
  const auto two = loadSettings(files.sources({"OL_VIEW=unified", "OL_GPUNODE=a:1,b:1"}));
  REQUIRE(two.ok());
  CHECK(two.value().gpunodes.size() == 2);
  const std::vector<std::string> exports = {"OL_VIEW=unified", "OL_EXPORTABLE=driver"};
  CHECK(loadSettings(files.sources(exports)).ok());  // without a gpunode the view says nothing
  CHECK(failureOf(files.sources({exports[0], exports[1], "OL_GPUNODE=a:1"}))
            .rfind("OL_EXPORTABLE: 'driver' is not allowed in the unified view", 0) == 0);
}

TEST_CASE("operations of the unified view go to owners, in turns, or to a gpunode that is named",
          "[base][settings]") {
  Files files;
  const std::string unified = "OL_VIEW=unified", both = "OL_GPUNODE=a:1,local";
  const auto routeOf = [&](const std::vector<std::string>& variables) {
    const auto loaded = loadSettings(files.sources(variables));
    REQUIRE(loaded.ok());
    return loaded.value().route;
  };
  CHECK(routeOf({unified, both}) == kRouteOwner);
  CHECK(routeOf({unified, both, "OL_ROUTE=rr"}) == kRouteRoundRobin);
  CHECK(routeOf({unified, both, "OL_ROUTE=a:1"}) == "a:1");
  CHECK(routeOf({unified, both, "OL_ROUTE=local", "OL_LOCAL_GPUNODE=/run/x.sock"}) == "local");
  CHECK(routeOf({unified, both, "OL_ROUTE=local/1"}) == "local/1");
  CHECK(routeOf({unified, both, "OL_ROUTE=a:1/12"}) == "a:1/12");
  CHECK(routeOf({unified, "OL_GPUNODE=unix:/run/1", "OL_ROUTE=unix:/run/1"}) == "unix:/run/1");
  CHECK(failureOf(files.sources({unified, both, "OL_ROUTE=b:1"})) ==
        "OL_ROUTE: 'b:1' is not allowed; allowed: owner, rr, or a gpunode as --gpunode names it, "
        "with /N for its GPU N where it has several: a:1, local");
  for (const char* const none : {"b:1/0", "local/", "a:1/x", "/1"})
    CHECK_FALSE(loadSettings(files.sources({unified, both, "OL_ROUTE=" + std::string(none)})).ok());
  CHECK(failureOf(files.sources({"OL_ROUTE=owener"})) ==
        "OL_ROUTE: 'owener' is not allowed; allowed: owner, rr, local, or a gpunode as --gpunode "
        "names it, with /N for its GPU N where it has several");
  // The origin is the last file that gave it.
  files.write("etc.toml", "view = 'unified'\nroute = 'b:1'\n");
  CHECK(failureOf(files.sources({both})).find("etc.toml:2: route: 'b:1' is not allowed") !=
        std::string::npos);
  CHECK(routeOf({both, "OL_ROUTE=rr"}) == kRouteRoundRobin);
  SettingsSources sources = files.sources({both, "OL_ROUTE=c:1"});
  CHECK(failureOf(sources).rfind("OL_ROUTE: 'c:1' is not allowed", 0) == 0);
  sources.options = {{"OL_ROUTE", "--route"}};
  CHECK(failureOf(sources).rfind("--route: 'c:1' is not allowed", 0) == 0);
}

TEST_CASE("a wrong variable says which", "[base][settings]") {
  Files files;
  CHECK(failureOf(files.sources({"OL_VRAM=lots"})).rfind("OL_VRAM: 'lots' is not a size", 0) == 0);
  CHECK(
      failureOf(files.sources({"OL_CONFIG=olpager.toml"})).rfind("OL_CONFIG: 'olpager.toml'", 0) ==
      0);
  CHECK(failureOf(files.sources({"OL_CONFIG=/nowhere/olpager.toml"}))
            .rfind("/nowhere/olpager.toml: can't be read", 0) == 0);
  CHECK(failureOf(files.sources({"OL_VA_BASE=0x7ff000000000"}))
            .rfind("OL_VA_BASE: 0x7ff000000000 and va_size 16TiB end above", 0) == 0);
}

TEST_CASE("what is required and can't be is refused", "[base][settings]") {
  Files files;
  CHECK(failureOf(files.sources({"OL_REQUIRE=gpudirect"}))
            .rfind("OL_REQUIRE: 'gpudirect' is about the way to memservers, and none is named",
                   0) == 0);
  CHECK(failureOf(files.sources({"OL_REQUIRE=gpudirect", "OL_MEMSERVER=host:1", "OL_GPUNODE=h:2"}))
            .rfind("OL_REQUIRE: 'gpudirect' is of programs with a driver of their own", 0) == 0);
  CHECK(failureOf(files.sources({"OL_REQUIRE=none", "OL_GPUNODE=h:2"})).empty());
  const auto good = loadSettings(files.sources({"OL_REQUIRE=gpudirect", "OL_MEMSERVER=host:1"}));
  REQUIRE(good.ok());
  CHECK(good.value().require_gpudirect);
}

TEST_CASE("a refusal is one line, whatever was given", "[base][settings]") {
  Settings settings;
  for (const char* key : {"memserver", "disk", "replicas", "key", "tls", "reach", "log"}) {
    const auto status = optionsOf(settings).set(key, "a\nb\x1b[31m\xff");
    REQUIRE(!status.ok());
    INFO(status.error().message);
    CHECK(status.error().message.find_first_of("\n\x1b\xff") == std::string::npos);
    CHECK(status.error().message.find("a?b?[31m?") != std::string::npos);
  }
}

TEST_CASE("an unknown OL_ variable is a warning, known ones of other parts are not",
          "[base][settings]") {
  Files files;
  const auto settings = loadSettings(
      files.sources({"OL_VRMA=8GiB", "OL_SIM_VRAM=64MiB", "OL_COUNTERS_KEEP=1", "OLD=1"}));
  REQUIRE(settings.ok());
  REQUIRE(settings.value().warnings.size() == 1);
  CHECK(settings.value().warnings[0] ==
        "OL_VRMA=8GiB: no such setting, ignored; did you mean OL_VRAM?");
}

TEST_CASE("a setting of tests works, and no list has it", "[base][settings]") {
  Files files;
  const auto suggested = loadSettings(files.sources({"OL_ROUT=rr"}));
  REQUIRE(suggested.ok());
  REQUIRE(suggested.value().warnings.size() == 1);
  CHECK(suggested.value().warnings[0].find("OL_ROUTE") == std::string::npos);
  files.write("etc.toml", "rout = 'rr'\n");
  CHECK(failureOf(files.sources({})).find("route") == std::string::npos);
  files.write("etc.toml", "route = 'rr'\n");
  CHECK(loadSettings(files.sources({})).value().route == kRouteRoundRobin);
}

TEST_CASE("the working directory is never looked at", "[base][settings]") {
  Files files;
  files.write("olpager.toml", "nonsense");
  files.write("olpager/olpager.toml", "nonsense");
  files.write(".config/olpager/olpager.toml", "nonsense");
  const auto back = fs::current_path();
  fs::current_path(files.path);
  CHECK(failureOf({.system_file = "/nowhere", .environment = {"XDG_CONFIG_HOME=.", "HOME=."}})
            .empty());
  fs::current_path(back);
}
