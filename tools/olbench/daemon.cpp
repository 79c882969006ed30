#include "tools/olbench/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "base/fd.h"
#include "base/locate.h"

extern char** environ;

namespace olpager::tools::bench {
namespace {

std::string programPath() {
  const std::filesystem::path here = std::filesystem::path(base::currentExecutable()).parent_path();
  for (const char* place : {"olmemserver", "../../memserver/server/olmemserver"}) {
    if (std::filesystem::exists(here / place)) return here / place;
  }
  throw std::runtime_error("olmemserver is not beside olbench: build it");
}

}  // namespace

Daemon::Daemon(const std::string& transport, uint64_t memory, uint64_t slab) {
  const std::string program = programPath();
  std::vector<std::string> words = {
      program,       "--config", "/dev/null",           "--listen", "127.0.0.1:0",
      "--transport", transport,  "--reserve",           "64MiB",    "--log",
      "error",       "--memory", std::to_string(memory)};
  if (slab != 0) words.insert(words.end(), {"--slab", std::to_string(slab)});
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
  const base::UniqueFd from(ends[0]);
  base::UniqueFd into(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, into.get(), STDOUT_FILENO);
  const int error =
      posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("olmemserver: " + std::string(std::strerror(error)));
  into.reset();
  std::string line;
  for (char c = 0; line.find('\n') == std::string::npos && read(from.get(), &c, 1) == 1;) line += c;
  const size_t on = line.find(" on ");
  if (on == std::string::npos) {
    waitpid(pid_, nullptr, 0);
    throw std::runtime_error("olmemserver has not started, see above");
  }
  address_ = line.substr(on + 4, line.find('\n') - on - 4);
}

Daemon::~Daemon() {
  kill(pid_, SIGKILL);  // nobody's memory is in it any more: no reason to wait for leases
  waitpid(pid_, nullptr, 0);
}

}  // namespace olpager::tools::bench
