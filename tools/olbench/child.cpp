#include "tools/olbench/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "base/fd.h"
#include "base/format.h"
#include "base/locate.h"
#include "tools/olbench/filling.h"
#include "tools/olbench/managed.h"
#include "tools/olbench/unified.h"

extern char** environ;

namespace olpager::tools::bench {
namespace {

constexpr int kResultDescriptor = 3;

template <typename Value>
std::string commaList(const std::vector<Value>& values) {
  std::string list;
  for (const auto& value : values) list += (list.empty() ? "" : ",") + std::to_string(value);
  return list;
}

std::vector<std::string> argumentsFor(With with, const std::string& measurement,
                                      const Options& options) {
  std::vector<std::string> arguments = {"olbench",
                                        "--child",
                                        measurement,
                                        "--pointers",
                                        commaList(options.pointers),
                                        "--allocations",
                                        std::to_string(options.allocations),
                                        "--launches",
                                        std::to_string(options.launches),
                                        "--allocation",
                                        std::to_string(options.allocation),
                                        "--bytes",
                                        std::to_string(options.bytes),
                                        "--passes",
                                        std::to_string(options.passes),
                                        "--rounds",
                                        std::to_string(options.rounds)};
  if (options.write) arguments.emplace_back("--write");
  if (options.one_buffer) arguments.emplace_back("--one-buffer");
  // The driver alone holds everything: there is no budget to go beyond.
  if (measurement == "unified")
    arguments.insert(arguments.end(), {"--vram", std::to_string(options.vram)});
  if (options.paging && with == With::kPager)
    arguments.insert(arguments.end(), {"--paging", "--vram", std::to_string(options.vram)});
  return arguments;
}

/// The caller's environment without its own settings of the pager, and with those of this
/// measurement.
std::vector<std::string> environmentFor(With with, const Options& options,
                                        const std::string& self) {
  const std::string library = base::locateLibrary(self, "libolpager.so");
  const std::string links = base::locateLinkFolder(self);
  std::vector<std::string> entries;
  std::string library_path;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.starts_with("LD_LIBRARY_PATH="))
      library_path = text.substr(strlen("LD_LIBRARY_PATH="));
    if (text.starts_with("LD_PRELOAD=") || text.starts_with("LD_LIBRARY_PATH=")) continue;
    if (text.starts_with("OL_") && !text.starts_with("OL_SIM_") && !text.starts_with("OL_LOG="))
      continue;
    entries.push_back(text);
  }
  if (with != With::kNative) {
    if (library.empty() || links.empty())
      throw std::runtime_error("libolpager.so is not beside olbench: build or install it");
    entries.push_back("LD_PRELOAD=" + library);
    library_path = links + (library_path.empty() ? "" : ":" + library_path);
    if (with == With::kForward) {
      entries.push_back("OL_GPUNODE=" + options.gpunode);
      entries.push_back("OL_TRANSPORT=" + options.transport);
      entries.push_back("OL_VIEW=" + options.view);
      entries.push_back("LD_LIBRARY_PATH=" + library_path);
      return entries;
    }
    // A bare name is found by the loader here and by the pager's own search there.
    if (options.driver.starts_with('/')) entries.push_back("OL_DRIVER=" + options.driver);
    entries.push_back("OL_VRAM=" + std::to_string(options.vram));
    if (!options.pack) entries.push_back("OL_PACK=off");
    if (!options.arenas.empty()) entries.push_back("OL_ARENAS=" + options.arenas);
    if (options.host != 0) entries.push_back("OL_HOST=" + std::to_string(options.host));
    if (!options.memservers.empty()) {
      entries.push_back("OL_MEMSERVER=" + options.memservers);
      entries.push_back("OL_REPLICAS=" + std::to_string(options.replicas));
    }
  }
  if (!library_path.empty()) entries.push_back("LD_LIBRARY_PATH=" + library_path);
  return entries;
}

std::vector<char*> pointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int runAsChild(const std::string& measurement, const Options& options) {
  nlohmann::json result;
  try {
    if (measurement == "launch") {
      result = measureLaunch(options);
    } else if (measurement == "swap") {
      result = measureSwap(options);
    } else if (measurement == "decode") {
      result = measureDecode(options);
    } else if (measurement == "train") {
      result = measureTrain(options);
    } else if (measurement == "copy") {
      result = measureCopy(options);
    } else if (measurement == "sampled") {
      result = measureSampled(options);
    } else if (measurement == "forward") {
      result = measureForwarded(options);
    } else if (measurement == "unified") {
      result = measureUnifiedChild(options);
    } else if (measurement == "between") {
      result = measureBetween(options);
    } else if (measurement == "managed") {
      result = measureManaged(options);
    } else if (measurement == "managed walk") {
      result = measureManagedWalk(options);
    } else if (measurement == "filling") {
      result = measureFilling(options);
    } else if (measurement == "resident") {
      result = measureResident(options);
    } else {
      throw std::runtime_error("no measurement " + measurement);
    }
  } catch (const std::exception& error) {
    result = {{"error", error.what()}};
  }
  const std::string text = result.dump();
  return write(kResultDescriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size())
             ? 0
             : 1;
}

nlohmann::json runChild(With with, const std::string& measurement, const Options& options) {
  const std::string self = base::currentExecutable();
  std::vector<std::string> arguments = argumentsFor(with, measurement, options);
  if (with == With::kNative) arguments.insert(arguments.end(), {"--driver", options.driver});
  std::vector<std::string> environment = environmentFor(with, options, self);
  std::vector<char*> argv = pointersTo(arguments);
  std::vector<char*> envp = pointersTo(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error(base::format("pipe: {}", strerror(errno)));
  base::UniqueFd read_end(ends[0]);
  base::UniqueFd write_end(ends[1]);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error(base::format("fork: {}", strerror(errno)));
  if (child == 0) {
    // dup2 leaves close-on-exec set when both are the same.
    if (ends[1] == kResultDescriptor) {
      fcntl(ends[1], F_SETFD, 0);
    } else {
      dup2(ends[1], kResultDescriptor);
    }
    dup2(STDERR_FILENO, STDOUT_FILENO);  // only the parent's figures go to standard output
    execve(self.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  write_end.reset();
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(read_end.get(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const char* where = with == With::kPager     ? "through the pager"
                      : with == With::kForward ? "forwarded"
                                               : "natively";
  nlohmann::json result = nlohmann::json::parse(text, nullptr, false);
  if (result.is_discarded() || result.is_null()) {
    throw std::runtime_error(
        base::format("{} {} ended with {} {} and no result", measurement, where,
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)));
  }
  if (result.contains("error")) {
    throw std::runtime_error(
        base::format("{} {}: {}", measurement, where, result["error"].get<std::string>()));
  }
  return result;
}

}  // namespace olpager::tools::bench
