// olrun: runs a program under olpager. Checks everything first, so that what is wrong is one line
// here and not a failing cuInit inside the program. Exit status: 2 for what olrun refuses, 127 and
// 126 as a shell's for a program that is not there or can't be run, else the program's own.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/format.h"
#include "base/locate.h"
#include "base/settings.h"
#include "base/text.h"
#include "tools/olrun/cdi.h"
#include "tools/olrun/daemons.h"
#include "tools/olrun/driver_probe.h"
#include "tools/olrun/environment.h"
#include "tools/olrun/local_gpunode.h"
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

// Groups of --help.
constexpr const char* kRun = "The run";
constexpr const char* kContainers = "Containers";

// The arguments of olrun.
struct CommandLine {
  std::vector<base::CommandLine::Given> settings;
  std::string config;
  std::string cdi, out;
  bool cdi_given = false, out_given = false;
  bool check = false;
  bool stats = false;
  bool why = false;
  std::vector<std::string> program;

  bool gives(std::string_view key) const {
    return std::any_of(settings.begin(), settings.end(),
                       [key](const auto& each) { return each.option->key == key; });
  }
};

// Refuses options that make no sense beside --cdi, which runs nothing and looks at no machine.
Status checkCdi(const CommandLine& line) {
  if (line.out_given && !line.cdi_given) return Error{"--out: of no effect without --cdi"};
  if (!line.cdi_given) return {};
  if (auto status = tools::checkCdiName(line.cdi); !status.ok())
    return Error{base::format("--cdi: {}", status.error().message)};
  if (line.out_given && line.out.empty()) return Error{base::givenNothing("--out")};
  if (!line.program.empty())
    return Error{base::format(
        "--cdi: no program is started, and {} is given; leave it out: the container has its "
        "program",
        base::printable(line.program.front()))};
  if (line.check) return Error{"--check: of no effect with --cdi"};
  if (line.stats) return Error{"--stats: of no effect with --cdi"};
  return {};
}

// CLI11 takes what follows a bare "--" for positionals; a program's own arguments must never be
// looked at.
int parse(int argc, char** argv, const base::OptionTable& table, CommandLine& line, bool& done) {
  done = true;
  base::CommandLine command(
      "olrun",
      "Runs a program with its CUDA memory spread over VRAM, host RAM and memory of other "
      "machines.",
      "[OPTION...] -- PROGRAM [ARGUMENT...]",
      {{"olrun -- python train.py",
        "all as it is by itself: free VRAM and 80% of the available RAM"},
       {"olrun --vram 8GiB --memserver 10.0.0.2:7070 --key KEYFILE -- ./simulation",
        "8 GiB of each GPU, and memory of another machine below this one's RAM"},
       {"olrun --gpunode 10.0.0.3:7071 --key KEYFILE -- ./simulation",
        "on the GPUs of another machine"},
       {"olrun --cdi small --vram 8GiB --out /etc/cdi/olpager-small.json",
        "containers with --device olpager.dev/client=small run so"}});
  CLI::App& app = command.app();
  app.prefix_command();
  command.add(table, base::CommandLine::Again::kRefused);
  app.add_option(
         "--config", line.config,
         "A settings file besides /etc/olpager/olpager.toml and ~/.config/olpager/olpager.toml")
      ->type_name("FILE")
      ->group(kRun);
  app.add_flag("--check", line.check, "Run nothing; print each gap of this machine with its fix")
      ->group(kRun);
  app.add_flag("--stats", line.stats, "Print the pager's counters when the program ends")
      ->group(kRun);
  app.add_flag("--why", line.why,
               "Print what cost the program time when it ends, the worst first, and what to do")
      ->group(kRun);
  CLI::Option* const cdi =
      app.add_option("--cdi", line.cdi,
                     "Run nothing; print a CDI file by which container engines give a container "
                     "the library, these settings and the key: --device olpager.dev/client=NAME")
          ->type_name("NAME")
          ->group(kContainers);
  CLI::Option* const out =
      app.add_option("--out", line.out,
                     "Of --cdi: write it to a file; engines look into /etc/cdi (*.json, *.yaml)")
          ->type_name("FILE")
          ->group(kContainers);

  const std::vector<std::string> all(argv + 1, argv + argc);
  const auto separator = std::find(all.begin(), all.end(), "--");
  const bool separated = separator != all.end();
  const std::vector<std::string> after(separated ? separator + 1 : all.end(), all.end());
  if (const auto status = command.parse({all.begin(), separator}, &line.program)) return *status;
  auto given = command.given();
  if (!given.ok()) return refuse(given.error().message);
  line.settings = std::move(given).value();
  if (separated) {
    if (!line.program.empty()) line.program.emplace_back("--");
    line.program.insert(line.program.end(), after.begin(), after.end());
  }
  line.cdi_given = cdi->count() != 0;
  line.out_given = out->count() != 0;
  if (const Status status = checkCdi(line); !status.ok()) return refuse(status.error().message);
  if (line.program.empty() && !line.check && !line.cdi_given)
    return refuse("no program given: olrun [options] -- program [arguments]");
  done = false;
  return 0;
}

// The occupant of [base, base + size) in this process: "[stack]", a library, or an address.
std::string occupant(uint64_t base, uint64_t size) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx", &from, &to) != 2 || to <= base ||
        from >= base + size)
      continue;
    const auto name = line.find_first_of("/[");
    return base::format("{} at 0x{:x}", name == std::string::npos ? "a mapping" : line.substr(name),
                        from);
  }
  return "a mapping";
}

// The range the program is to have, tried here: its own layout is much like ours. Only when the
// user chose it; the built-in range is free in every layout that Linux makes.
Status checkRange(const base::Settings& settings) {
  const uint64_t size = settings.va_size != 0 ? settings.va_size : 16ull << 40;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < size) {
    return Error{
        base::format("the address space is limited to {} and the range takes {}: ulimit -v "
                     "unlimited, or a smaller "
                     "--va-size",
                     base::formatSize(limit.rlim_cur), base::exactSize(size))};
  }
  if (settings.va_base == 0) return {};
  void* const wanted = reinterpret_cast<void*>(settings.va_base);
  void* const got = mmap(wanted, size, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  const int why = errno;
  if (got != MAP_FAILED) munmap(got, size);
  if (got == wanted) return {};
  if (got != MAP_FAILED || why == EEXIST) {
    return Error{base::format(
        "the range 0x{:x} + {} is taken ({}); choose another --va-base, such as 0x210000000000",
        settings.va_base, base::exactSize(size), occupant(settings.va_base, size))};
  }
  return Error{
      base::format("the range 0x{:x} + {} can't be reserved: {}; choose another --va-base or a "
                   "smaller --va-size",
                   settings.va_base, base::exactSize(size), std::strerror(why))};
}

// As the library has it, which knows the devices as well.
Status checkVram(const base::Budget& budget, const tools::DriverFacts& facts) {
  if (budget.percent == 0 || facts.least_vram == 0) return {};
  if (static_cast<double>(facts.least_vram) * budget.percent / 100 >=
      static_cast<double>(base::kSettingsPageBytes))
    return {};
  return Error{base::format("--vram: {} of the {} of device {} is below one page ({})",
                            base::exactBudget(budget), base::formatSize(facts.least_vram),
                            facts.least_device, base::exactSize(base::kSettingsPageBytes))};
}

// A gpunode that is to be started.
bool namesLocal(const std::vector<std::string>& gpunodes) {
  return std::find(gpunodes.begin(), gpunodes.end(), base::kLocalGpunode) != gpunodes.end();
}

// The mode (local or forwarded) decides which settings can have an effect. Those of kLocal also
// have one with a gpunode that is started here.
enum class Mode : uint8_t { kBoth, kLocal, kForwarded };

Mode modeOf(std::string_view key) {
  constexpr std::string_view kOfBoth[] = {"gpunode", "transport", "rails",      "key",
                                          "tls",     "managed",   "exportable", "log"};
  if (key == "view" || key == "route") return Mode::kForwarded;
  const bool both = std::find(std::begin(kOfBoth), std::end(kOfBoth), key) != std::end(kOfBoth);
  return both ? Mode::kBoth : Mode::kLocal;
}

// An option that was asked for and can't be had is no setting to ignore. (Files and variables may
// name settings of both.)
Status checkOptions(const CommandLine& line, const std::vector<std::string>& gpunodes) {
  const auto hasNone = [&](Mode mode) {
    if (gpunodes.empty()) return mode == Mode::kForwarded;
    return mode == Mode::kLocal && !namesLocal(gpunodes);
  };
  for (const auto& [option, text] : line.settings) {
    if (text == "none" || !hasNone(modeOf(option->key))) continue;
    const std::string name = base::optionName(*option);
    return Error{gpunodes.empty()
                     ? base::format("{}: of no effect without a gpunode (--gpunode)", name)
                     : base::format("{}: of no effect with the gpunode {}, whose own settings hold "
                                    "(man olgpunode); leave it out, or run here: --gpunode none",
                                    name, gpunodes.front())};
  }
  return {};
}

// Replicas are of pages at memservers.
Status checkReplicas(const CommandLine& line, const base::Settings& settings) {
  if (!line.gives("replicas") || settings.replicas == 1 || !settings.memservers.empty()) return {};
  return Error{
      base::format("--replicas {}: there is no memserver to hold them: name {} or more with "
                   "--memserver HOST:PORT, or "
                   "leave --replicas out",
                   settings.replicas, settings.replicas)};
}

// Options of the unified view alone.
Status checkView(const CommandLine& line, const base::Settings& settings) {
  if (settings.view == base::ViewSetting::kUnified) return {};
  for (const char* const key : {"route", "managed"}) {
    if (!line.gives(key) || (settings.gpunodes.empty() && key == std::string_view("managed")))
      continue;
    return Error{
        base::format("--{}: of no effect where each GPU is a device of its own; --view unified "
                     "makes one of them",
                     key)};
  }
  return {};
}

Status checkTransport(const CommandLine& line, const base::Settings& settings) {
  if (!settings.memservers.empty() || !settings.gpunodes.empty()) return {};
  for (const char* const name : {"transport", "rails"}) {
    if (line.gives(name))
      return Error{
          base::format("--{}: of no effect without a memserver (--memserver) or a gpunode "
                       "(--gpunode)",
                       name)};
  }
  return {};
}

// One that does not serve the program would make its cuInit fail. If memservers have two replicas
// of each page one may be away.
Status checkDaemons(const base::Settings& settings) {
  const auto asked = tools::askDaemons(settings);
  if (!asked.ok()) return asked.error();
  const bool one_will_do =
      settings.replicas > 1 &&
      std::any_of(asked.value().begin(), asked.value().end(), [](const auto& answer) {
        return answer.problem.empty() && answer.kind == std::string_view("memserver");
      });
  for (const auto& answer : asked.value()) {
    if (answer.problem.empty() || (answer.away && one_will_do)) continue;
    return Error{base::format("{} (without it: --{} none)", answer.problem, answer.kind)};
  }
  return {};
}

// A folder that can't be used would make the program's cuInit fail as well.
Status checkDisks(const base::Settings& settings) {
  for (const base::DiskSetting& disk : settings.disks)
    if (access(disk.folder.c_str(), W_OK | X_OK) != 0)
      return Error{
          base::format("the folder {} of --disk can't be written to: {} (without it: "
                       "--disk none)",
                       base::printable(disk.folder), std::strerror(errno))};
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

int printCdi(const CommandLine& line, const base::Settings& settings,
             const tools::Environment& environment, const tools::CdiParts& parts) {
  const auto text = tools::cdiText(line.cdi, settings, environment, parts);
  if (!text.ok()) return refuse(text.error().message);
  if (!line.out_given) {
    base::print("{}", text.value());
    return 0;
  }
  if (auto status = tools::writeCdi(line.out, text.value()); !status.ok())
    return refuse(status.error().message);
  base::print("{}: for containers with --device {}={}\n", line.out, tools::kCdiKind, line.cdi);
  return 0;
}

// For this process, and the program that it becomes. The settings name it by its address then.
Status startLocal(const std::string& self, tools::Environment& environment,
                  base::Settings& settings) {
  const auto started = tools::startLocalGpunode(settings, environment, self);
  if (!started.ok()) return started.error();
  environment.set(base::kLocalVariable, started.value());
  auto loaded = base::loadSettings({.environment = environment.entries()});
  if (!loaded.ok()) return loaded.error();
  settings = std::move(loaded).value();
  return {};
}

int run(int argc, char** argv) {
  base::Settings alone;  // what options say, whatever files and variables do
  const base::OptionTable table = base::optionsOf(alone);
  CommandLine line;
  bool done = false;
  if (const int status = parse(argc, argv, table, line, done); done) return status;

  // Settings: files and variables as the library will read them, then the options over them.
  tools::Environment environment(base::SettingsSources::currentEnvironment());
  if (!line.config.empty()) environment.set("OL_CONFIG", base::absolutePath(line.config));
  std::map<std::string, std::string> options;
  for (const auto& [option, text] : line.settings) {
    const std::string variable = base::variableName(*option);
    options[variable] = base::optionName(*option);
    if (auto status = option->set(text); !status.ok())
      return refuse(base::format("{}: {}", options[variable], status.error().message));
    environment.set(variable, text);
    // Asked for here: another one than that of a program that has started olrun.
    if (option->key == "gpunode") environment.remove(base::kLocalVariable);
  }
  // A container is not its maker's: settings of a user's own are not the container's.
  if (line.cdi_given) {
    for (const char* const user : {"HOME", "XDG_CONFIG_HOME"}) environment.remove(user);
  }
  auto loaded =
      base::loadSettings({.environment = environment.entries(), .options = std::move(options)});
  if (!loaded.ok()) return refuse(loaded.error().message);
  base::Settings& settings = loaded.value();
  if (auto status = checkOptions(line, settings.gpunodes); !status.ok())
    return refuse(status.error().message);
  if (auto status = checkTransport(line, settings); !status.ok())
    return refuse(status.error().message);
  if (auto status = checkReplicas(line, settings); !status.ok())
    return refuse(status.error().message);
  if (auto status = checkView(line, settings); !status.ok()) return refuse(status.error().message);
  if (line.why && !settings.gpunodes.empty() && !namesLocal(settings.gpunodes) &&
      settings.view != base::ViewSetting::kUnified) {
    return refuse(
        base::format("--why: no pager counts here with the gpunode {}; with --view unified the "
                     "program's moves are counted",
                     settings.gpunodes.front()));
  }
  if (line.stats && !settings.gpunodes.empty() && !namesLocal(settings.gpunodes)) {
    return refuse(
        base::format("--stats: no pager counts here with the gpunode {}; olpagestat --node {} "
                     "shows what its sessions use",
                     settings.gpunodes.front(), settings.gpunodes.front()));
  }

  const std::string self = base::currentExecutable();
  const std::string library = base::locateLibrary(self, "libolpager.so");
  const std::string link_folder = base::locateLinkFolder(self);
  std::string driver = settings.driver;
  if (driver == "sim") driver = base::locateLibrary(self, "libolsimcuda.so");
  if (settings.driver.empty()) driver = "libcuda.so.1";
  if (line.cdi_given) {
    return printCdi(
        line, settings, environment,
        {library, base::locateLibrary(self, "libolsimcuda.so"), base::locateNvmlFolder(self)});
  }
  const bool forwarded = !settings.gpunodes.empty(), local = namesLocal(settings.gpunodes);
  const bool here = !forwarded || local;  // this machine's driver and memory are used
  if (line.check) {
    const Status started = local ? startLocal(self, environment, settings) : Status();
    return printFindings(tools::checkMachine(settings, {library, link_folder, driver},
                                             started.ok() ? "" : started.error().message));
  }

  const tools::Program program = tools::findProgram(line.program.front(), environment.get("PATH"));
  if (program.path.empty()) {
    refuse(program.problem);
    return program.exit_code;
  }
  if (driver.empty() && here) {
    return refuse(
        base::format("libolsimcuda.so, the simulated GPU, is not in the build or installation of "
                     "{}; install it: "
                     "package olpager-simgpu",
                     self));
  }
  // A forwarded program needs no driver here. To start one takes long: that is done where a budget
  // may be too small on some device.
  const tools::Probe probe = settings.vram.percent != 0 && settings.vram.percent < kPercentToAsk
                                 ? tools::Probe::kVram
                                 : tools::Probe::kLoad;
  const auto probed = here ? tools::probeDriver(driver, probe, library)
                           : Result<tools::DriverFacts>(tools::DriverFacts{});
  if (!probed.ok()) {
    return refuse(base::format("driver: {}; {}", probed.error().message,
                               settings.driver.empty()
                                   ? "install the NVIDIA driver, name it with --driver, or use a "
                                     "GPU elsewhere (--gpunode) or the simulated one (--driver sim)"
                                   : "--driver takes the path of a libcuda.so.1, or sim"));
  }
  if (auto status = checkVram(settings.vram, probed.value()); !status.ok())
    return refuse(status.error().message);
  if (auto status = here ? checkRange(settings) : Status{}; !status.ok())
    return refuse(status.error().message);
  if (library.empty() || link_folder.empty()) {
    return refuse(base::format(
        "{} is not in the build or installation of {}; build it: meson compile -C build",
        library.empty() ? "libolpager.so" : "the folder olpager-lib", self));
  }
  const bool keeps = line.stats || line.why;
  const uint64_t kept = keeps ? tools::keepCounters(environment) : 0;
  if (local) {
    if (auto status = startLocal(self, environment, settings); !status.ok())
      return refuse("gpunode local: " + status.error().message);
  }
  if (auto status = checkDaemons(settings); !status.ok()) return refuse(status.error().message);
  if (here)
    if (auto status = checkDisks(settings); !status.ok()) return refuse(status.error().message);
  if (!program.warning.empty()) base::print(stderr, "olrun: warning: {}\n", program.warning);

  if (settings.driver == "sim") environment.set("OL_DRIVER", driver);
  if (auto status = tools::addPreload(environment, library); !status.ok())
    return refuse(status.error().message);
  if (auto status = tools::addLibraryFolder(environment, link_folder); !status.ok())
    return refuse(status.error().message);
  // Without a driver there is no NVML either: the gpunode's devices are shown instead.
  if (const std::string nvml = base::locateNvmlFolder(self); forwarded && !nvml.empty()) {
    if (auto status = tools::addLibraryFolder(environment, nvml); !status.ok())
      return refuse(status.error().message);
  }
  environment.set("TRITON_LIBCUDA_PATH", link_folder);
  std::string defaults;
  for (const std::string& variable : tools::addFrameworkDefaults(environment, forwarded))
    defaults += " " + variable;
  const bool informs = settings.log >= base::LogLevel::kInfo;
  if (informs && local)
    base::print(stderr, "olrun: gpunode local: olpagestat --node {} --key {} shows it\n",
                settings.local_gpunode, settings.local_key);
  if (informs && !defaults.empty())
    base::print(stderr, "olrun: for frameworks:{} (a variable that you set stays as it is)\n",
                defaults);
  return keeps ? tools::runWithStats(
                     program.path, line.program, environment, informs,
                     {.token = kept, .elsewhere = local, .stats = line.stats, .why = line.why})
               : tools::replaceBy(program.path, line.program, environment, informs);
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
