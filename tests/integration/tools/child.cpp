#include "tests/integration/tools/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/fd.h"

namespace olpager::test {

Outcome runChild(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment, const std::string& folder) {
  int out_ends[2];
  int err_ends[2];
  if (pipe2(out_ends, O_CLOEXEC) != 0 || pipe2(err_ends, O_CLOEXEC) != 0)
    throw std::runtime_error("pipe");
  base::UniqueFd out(out_ends[0]);
  base::UniqueFd out_to(out_ends[1]);
  base::UniqueFd err(err_ends[0]);
  base::UniqueFd err_to(err_ends[1]);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    dup2(out_to.get(), STDOUT_FILENO);
    dup2(err_to.get(), STDERR_FILENO);
    for (const auto& entry : environment) putenv(const_cast<char*>(entry.c_str()));
    if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(125);
    alarm(30);
    std::vector<char*> argv;
    for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(125);
  }
  out_to.reset();
  err_to.reset();
  Outcome outcome;
  pollfd both[] = {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}};
  std::string* const texts[] = {&outcome.out, &outcome.err};
  for (int open = 2; open > 0;) {
    poll(both, 2, -1);
    for (int i = 0; i < 2; i++) {
      if (both[i].fd < 0 || both[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(both[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else {
        both[i].fd = -1;
        open--;
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return outcome;
}

}  // namespace olpager::test
