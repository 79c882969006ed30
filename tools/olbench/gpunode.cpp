#include "tools/olbench/gpunode.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "base/locate.h"

extern char** environ;

namespace olpager::tools::bench {
namespace {

std::string programPath() {
  const std::filesystem::path here = std::filesystem::path(base::currentExecutable()).parent_path();
  for (const char* place : {"olgpunode", "../../gpunode/supervisor/olgpunode"}) {
    if (std::filesystem::exists(here / place)) return here / place;
  }
  throw std::runtime_error("olgpunode is not beside olbench: build it");
}

}  // namespace

Gpunode::Gpunode(const Options& options, const std::vector<std::string>& more) {
  const std::string program = programPath();
  std::vector<std::string> words = {program, "--listen", "127.0.0.1:0", "--vram",
                                    std::to_string(options.vram)};
  if (options.driver.starts_with('/')) words.insert(words.end(), {"--driver", options.driver});
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
  log_.reset(ends[0]);
  base::UniqueFd into(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, into.get(), STDERR_FILENO);
  const int error =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("olgpunode: " + std::string(std::strerror(error)));
  into.reset();
  std::string line;
  for (char c = 0; read(log_.get(), &c, 1) == 1;) {
    if (c != '\n') {
      line += c;
      continue;
    }
    if (const size_t at = line.find("listening at "); at != std::string::npos) {
      address_ = line.substr(at + 13);
      break;
    }
    line.clear();
  }
  if (address_.empty()) {
    waitpid(pid_, nullptr, 0);
    throw std::runtime_error("olgpunode has not started");
  }
  drain_ = std::thread([this] {
    char bytes[4096];
    while (read(log_.get(), bytes, sizeof bytes) > 0) {
    }
  });
}

Gpunode::~Gpunode() {
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
  drain_.join();
}

}  // namespace olpager::tools::bench
