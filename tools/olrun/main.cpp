// olrun: runs a program under olpager. Checks everything first, so that what is wrong is one line here and not a
// failing cuInit inside the program. Exit status: 2 for what olrun refuses, 127 and 126 as a shell's for a program that
// is not there or can't be run, else the program's own.
#include <sys/mman.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/locate.h"
#include "base/settings.h"
#include "base/text.h"
#include "tools/olrun/daemons.h"
#include "tools/olrun/driver_probe.h"
#include "tools/olrun/environment.h"
#include "tools/olrun/machine_check.h"
#include "tools/olrun/program.h"
#include "tools/olrun/run.h"

namespace {

using namespace olpager;

constexpr int kRefused = 2;
// A page is less than this of any device of 200 MiB or more.
constexpr double kPercentToAsk = 1;

int refuse(const std::string& line) {
  base::print(stderr, "olrun: {}\n", line);
  return kRefused;
}

// Whether a program is forwarded decides which settings can have an effect.
enum class Mode : uint8_t { kBoth, kLocal, kForwarded };

// One setting as an option of the command line.
struct SettingOption {
  const char* option;
  const char* key;
  const char* variable;
  const char* type;
  const char* help;
  Mode mode = Mode::kLocal;
  std::string text{};
  bool given = false;
};

struct CommandLine {
  std::vector<SettingOption> settings = {
      {"--vram", "vram", "OL_VRAM", "SIZE",
       "VRAM to use on each device: 8GiB, 50% (default: what is free less a reserve)"},
      {"--host", "host", "OL_HOST", "SIZE", "Host RAM to use: 32GiB, 50% (default: 80% of what is available)"},
      {"--reach", "reach", "OL_REACH", "REACH",
       "What a launch is taken to reach: traced, all or learned (default: traced)"},
      {"--report", "report", "OL_REPORT", "REPORT", "Memory that the program is told of: node or pool (default: node)"},
      {"--va-base", "va_base", "OL_VA_BASE", "ADDRESS", "Where the global address range begins"},
      {"--va-size", "va_size", "OL_VA_SIZE", "SIZE", "Its size (default: 16TiB)"},
      {"--memserver", "memserver", "OL_MEMSERVER", "HOST:PORT,...",
       "Memory of other machines (olmemserver): below host RAM. As often as there are machines; none: without"},
      {"--replicas", "replicas", "OL_REPLICAS", "N", "Memservers that hold each page: 1 or 2 (default: 1)"},
      {"--gpunode", "gpunode", "OL_GPUNODE", "HOST:PORT,...",
       "Run all GPU work on another machine (olgpunode): no GPU and no driver is needed here. As often as there are "
       "machines; none: not",
       Mode::kBoth},
      {"--view", "view", "OL_VIEW", "VIEW", "Of the gpunodes' GPUs: discrete, each is a device of its own (default)",
       Mode::kForwarded},
      {"--transport", "transport", "OL_TRANSPORT", "HOW", "To the gpunodes: auto, tcp or shm (default: auto)",
       Mode::kForwarded},
      {"--key", "key", "OL_KEY", "FILE", "Key for memservers and gpunodes (olctl keygen)", Mode::kBoth},
      {"--tls", "tls", "OL_TLS", "WHAT", "What goes to them encrypted: all, control or off (default: all)",
       Mode::kBoth},
      {"--log", "log", "OL_LOG", "LEVEL", "off, error, warn, info, debug or trace (default: warn)", Mode::kBoth},
      {"--driver", "driver", "OL_DRIVER", "DRIVER",
       "Path of the libcuda to use; sim: the simulated GPU (default: the loader's)"},
      {"--exportable", "exportable", "OL_EXPORTABLE", "OWNER",
       "Whose exportable memory of cuMemCreate is: driver, which keeps it in VRAM and exports it, or pager, which "
       "pages it "
       "(default: driver)",
       Mode::kBoth},
      {"--pack", "pack", "OL_PACK", "WHETHER",
       "What streams crosses the bus packed where it packs: on or off (default: on)"},
  };
  std::string config;
  bool check = false;
  bool stats = false;
  std::vector<std::string> program;
};

// CLI11 takes what follows a bare "--" for positionals; a program's own arguments must never be looked at.
int parse(int argc, char** argv, CommandLine& line, bool& done) {
  done = true;
  CLI::App app(
      "Runs a program with its CUDA memory spread over VRAM and host RAM.\n"
      "olrun [options] -- program [arguments]",
      "olrun");
  app.set_version_flag("--version", std::string("olrun ") + OLPAGER_VERSION);
  app.prefix_command();
  std::vector<CLI::Option*> settings;
  for (auto& setting : line.settings) {
    CLI::Option* const option = app.add_option(setting.option, setting.text, setting.help)->type_name(setting.type);
    if (setting.key == std::string_view("memserver") || setting.key == std::string_view("gpunode"))
      option->multi_option_policy(CLI::MultiOptionPolicy::Join)->delimiter(',');
    settings.push_back(option);
  }
  app.add_option("--config", line.config,
                 "A settings file besides /etc/olpager/olpager.toml and ~/.config/olpager/olpager.toml")
      ->type_name("FILE");
  app.add_flag("--check", line.check, "Run nothing; print each gap of this machine with its fix");
  app.add_flag("--stats", line.stats, "Print the pager's counters when the program ends");

  std::vector<std::string> before(argv + 1, argv + argc);
  const auto separator = std::find(before.begin(), before.end(), "--");
  const bool separated = separator != before.end();
  const std::vector<std::string> after(separated ? separator + 1 : before.end(), before.end());
  std::vector<std::string> options(before.begin(), separator);
  std::reverse(options.begin(), options.end());
  try {
    app.parse(options);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& failure) {
    return refuse(base::format("{} (olrun --help lists the options)", failure.what()));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    SettingOption& setting = line.settings[i];
    setting.given = settings[i]->count() != 0;
    if (setting.given && setting.text.empty())
      return refuse(settings[i]->get_delimiter() == ',' ? base::givenNothing(setting.option, "none")
                                                        : base::givenNothing(setting.option));
  }
  line.program = app.remaining();
  if (!line.program.empty() && line.program.front().starts_with('-')) {
    return refuse(base::format("unknown option {} (olrun --help lists the options)", line.program.front()));
  }
  if (separated) {
    if (!line.program.empty()) line.program.emplace_back("--");
    line.program.insert(line.program.end(), after.begin(), after.end());
  }
  if (line.program.empty() && !line.check) return refuse("no program given: olrun [options] -- program [arguments]");
  done = false;
  return 0;
}

// What lies in [base, base + size) of this process already: "[stack]", a library, or an address.
std::string occupant(uint64_t base, uint64_t size) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &from, &to) != 2 || to <= base || from >= base + size) continue;
    const auto name = line.find_first_of("/[");
    return base::format("{} at 0x{:x}", name == std::string::npos ? "a mapping" : line.substr(name), from);
  }
  return "a mapping";
}

// The range the program is to have, tried here: its own layout is much like ours. Only when the user chose it; the
// built-in range is free in every layout that Linux makes.
Status checkRange(const base::Settings& settings) {
  const uint64_t size = settings.va_size != 0 ? settings.va_size : 16ull << 40;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size) {
    return Error{
        base::format("the address space is limited to {} and the range takes {}: ulimit -v unlimited, or a smaller "
                     "--va-size",
                     base::formatSize(limit.rlim_cur), base::exactSize(size))};
  }
  if (settings.va_base == 0) return {};
  void* const wanted = reinterpret_cast<void*>(settings.va_base);
  void* const got =
      mmap(wanted, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  const int why = errno;
  if (got != MAP_FAILED) munmap(got, size);
  if (got == wanted) return {};
  if (got != MAP_FAILED || why == EEXIST) {
    return Error{base::format("the range 0x{:x} + {} is taken ({}); choose another --va-base, such as 0x210000000000",
                              settings.va_base, base::exactSize(size), occupant(settings.va_base, size))};
  }
  return Error{
      base::format("the range 0x{:x} + {} can't be reserved: {}; choose another --va-base or a smaller --va-size",
                   settings.va_base, base::exactSize(size), std::strerror(why))};
}

// As the library has it, which knows the devices as well.
Status checkVram(const base::Budget& budget, const tools::DriverFacts& facts) {
  if (budget.percent == 0 || facts.least_vram == 0) return {};
  if (static_cast<double>(facts.least_vram) * budget.percent / 100 >= static_cast<double>(base::kSettingsPageBytes))
    return {};
  return Error{base::format("--vram: {} of the {} of device {} is below one page ({})", base::exactBudget(budget),
                            base::formatSize(facts.least_vram), facts.least_device,
                            base::exactSize(base::kSettingsPageBytes))};
}

// What was asked for by an option and can't be had is no setting to ignore. (Files and variables may name settings of both.)
Status checkOptions(const std::vector<SettingOption>& options, const std::vector<std::string>& gpunodes) {
  const Mode other = gpunodes.empty() ? Mode::kForwarded : Mode::kLocal;
  for (const auto& option : options) {
    if (!option.given || option.text == "none" || option.mode != other) continue;
    return Error{
        gpunodes.empty()
            ? base::format("{}: of no effect without a gpunode (--gpunode)", option.option)
            : base::format("{}: of no effect with the gpunode {}, whose own settings hold (man olgpunode); leave it "
                           "out, or run here: --gpunode none",
                           option.option, gpunodes.front())};
  }
  return {};
}

// One that does not serve the program would make its cuInit fail.
Status checkDaemons(const base::Settings& settings) {
  const auto asked = tools::askDaemons(settings);
  if (!asked.ok()) return asked.error();
  for (const auto& answer : asked.value()) {
    if (!answer.problem.empty()) return Error{base::format("{} (without it: --{} none)", answer.problem, answer.kind)};
  }
  return {};
}

int printFindings(const std::vector<tools::Finding>& findings) {
  bool gaps = false;
  for (const auto& finding : findings) {
    const bool gap = finding.kind == tools::Finding::Kind::kGap;
    gaps = gaps || gap;
    base::print("{:<5}{:<14}{}\n",
                gap                                           ? "GAP"
                : finding.kind == tools::Finding::Kind::kNote ? "note"
                                                              : "ok",
                finding.subject, finding.text);
  }
  base::print("{}\n", gaps ? "This machine has gaps, see above." : "Nothing is missing.");
  return gaps ? 1 : 0;
}

int run(int argc, char** argv) {
  CommandLine line;
  bool done = false;
  if (const int status = parse(argc, argv, line, done); done) return status;

  // Settings: files and variables as the library will read them, then the options over them.
  tools::Environment environment(base::SettingsSources::currentEnvironment());
  if (!line.config.empty()) environment.set("OL_CONFIG", base::absolutePath(line.config));
  for (auto& setting : line.settings) {
    if (!setting.given) continue;
    setting.text = base::fromCommandLine(setting.key, setting.text);
    base::Settings alone;
    if (auto status = base::applySetting(alone, setting.key, setting.text); !status.ok()) {
      return refuse(base::format("{}: {}", setting.option, status.error().message));
    }
    environment.set(setting.variable, setting.text);
  }
  const auto loaded = base::loadSettings({.environment = environment.entries()});
  if (!loaded.ok()) return refuse(loaded.error().message);
  const base::Settings& settings = loaded.value();
  if (auto status = checkOptions(line.settings, settings.gpunodes); !status.ok()) return refuse(status.error().message);
  if (line.stats && !settings.gpunodes.empty()) {
    return refuse(base::format(
        "--stats: no pager counts here with the gpunode {}; olpagestat --node {} shows what its sessions use",
        settings.gpunodes.front(), settings.gpunodes.front()));
  }

  const std::string self = base::currentExecutable();
  const std::string library = base::locateLibrary(self, "libolpager.so");
  const std::string link_folder = base::locateLinkFolder(self);
  std::string driver = settings.driver;
  if (driver == "sim") driver = base::locateLibrary(self, "libolsimcuda.so");
  if (settings.driver.empty()) driver = "libcuda.so.1";
  const bool forwarded = !settings.gpunodes.empty();
  if (line.check) return printFindings(tools::checkMachine(settings, library, link_folder, driver));

  const tools::Program program = tools::findProgram(line.program.front(), environment.get("PATH"));
  if (program.path.empty()) {
    refuse(program.problem);
    return program.exit_code;
  }
  if (driver.empty() && !forwarded) {
    return refuse(base::format("libolsimcuda.so, the simulated GPU, is not in the build or installation of {}", self));
  }
  // A forwarded program needs no driver here. To start one takes long: that is done where a budget may be too small on some device.
  const tools::Probe probe =
      settings.vram.percent != 0 && settings.vram.percent < kPercentToAsk ? tools::Probe::kVram : tools::Probe::kLoad;
  const auto probed =
      forwarded ? Result<tools::DriverFacts>(tools::DriverFacts{}) : tools::probeDriver(driver, probe, library);
  if (!probed.ok()) {
    return refuse(base::format("driver: {}; {}", probed.error().message,
                               settings.driver.empty() ? "install the NVIDIA driver, name it with --driver, or use a "
                                                         "GPU elsewhere (--gpunode) or the simulated one (--driver sim)"
                                                       : "--driver takes the path of a libcuda.so.1, or sim"));
  }
  if (auto status = checkVram(settings.vram, probed.value()); !status.ok()) return refuse(status.error().message);
  if (auto status = forwarded ? Status{} : checkRange(settings); !status.ok()) return refuse(status.error().message);
  if (library.empty() || link_folder.empty()) {
    return refuse(base::format("{} is not in the build or installation of {}; build it: meson compile -C build",
                               library.empty() ? "libolpager.so" : "the folder olpager-lib", self));
  }
  if (auto status = checkDaemons(settings); !status.ok()) return refuse(status.error().message);
  if (!program.warning.empty()) base::print(stderr, "olrun: warning: {}\n", program.warning);

  if (settings.driver == "sim") environment.set("OL_DRIVER", driver);
  if (auto status = tools::addPreload(environment, library); !status.ok()) return refuse(status.error().message);
  if (auto status = tools::addLibraryFolder(environment, link_folder); !status.ok())
    return refuse(status.error().message);
  // Where there is no driver there is no NVML either: the gpunode's devices are shown instead.
  if (const std::string nvml = base::locateNvmlFolder(self); forwarded && !nvml.empty()) {
    if (auto status = tools::addLibraryFolder(environment, nvml); !status.ok()) return refuse(status.error().message);
  }
  environment.set("TRITON_LIBCUDA_PATH", link_folder);
  std::string allocators;
  for (const std::string& variable : tools::addAllocators(environment)) allocators += " " + variable;
  if (settings.log >= base::LogLevel::kInfo && !allocators.empty())
    base::print(stderr, "olrun: frameworks allocate as they need:{} (a variable that you set stays)\n", allocators);
  // NCCL judges by this machine's PCI bus which GPUs reach each other's memory, and a gpunode's are on another one: it would take
  // the way through memory of this machine, which kernels there can't wait for. With this it asks the driver.
  if (forwarded && environment.get("NCCL_P2P_LEVEL").empty()) {
    environment.set("NCCL_P2P_LEVEL", "SYS");
    if (settings.log >= base::LogLevel::kInfo)
      base::print(stderr, "olrun: NCCL_P2P_LEVEL=SYS is set: GPUs of a gpunode reach each other as its driver says\n");
  }
  return line.stats ? tools::runWithStats(program.path, line.program, environment)
                    : tools::replaceBy(program.path, line.program, environment);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "olrun: %s\n", failure.what());
    return kRefused;
  }
}
