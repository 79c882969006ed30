// conformance [--driver PATH] [--section NAME] [--list]: records every driver behaviour that the
// pager relies on as sorted key = value lines on standard output. Each section runs in a process of
// its own with a time limit.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "record.h"

namespace conformance {
namespace {

struct Section {
  const char* name;
  void (*run)();
};

constexpr Section kSections[] = {
    {"device", sectionDevice},
    {"context", sectionContext},
    {"memory", sectionMemory},
    {"pointers", sectionPointers},
    {"vmm", sectionVmm},
    {"pools", sectionPools},
    {"managed", sectionManaged},
    {"copies", sectionCopies},
    {"modules", sectionModules},
    {"launch", sectionLaunch},
    {"streams", sectionStreams},
    {"capture", sectionCapture},
    {"graphs", sectionGraphs},
    {"graph_copies", sectionGraphCopies},
    {"lookup", sectionLookup},
    {"atomics", sectionAtomics},
    {"bad_handles", sectionBadHandles},
    {"nulls", sectionNulls},
    {"sticky_unmapped", sectionStickyUnmapped},
    {"sticky_read_only", sectionStickyReadOnly},
    {"sticky_freed", sectionStickyFreed},
};
constexpr int kSectionSeconds = 60;

/// Runs one section in a child and gathers its lines; says how it ended when that was not by
/// itself.
std::vector<std::string> runSection(const char* self, const char* driver, const char* name) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) {
    std::perror("conformance: pipe");
    std::exit(2);
  }
  const pid_t child = fork();
  if (child < 0) {
    std::perror("conformance: fork");
    std::exit(2);
  }
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execl(self, self, "--driver", driver, "--section", name, static_cast<char*>(nullptr));
    std::perror("conformance: exec");
    _exit(127);
  }
  close(pipe_ends[1]);
  std::string text;
  bool timed_out = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kSectionSeconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd waiting{pipe_ends[0], POLLIN, 0};
    if (left.count() <= 0 || poll(&waiting, 1, int(left.count())) == 0) {
      timed_out = true;
      kill(child, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t got = read(pipe_ends[0], buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, size_t(got));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    // Only whole lines of ours: a driver's own chatter is not an answer.
    const std::string line = text.substr(begin, end - begin);
    if (line.find(" = ") != std::string::npos) lines.push_back(line);
    begin = end + 1;
  }
  std::string how = "completed";
  if (timed_out) {
    how = "timed out";
  } else if (WIFSIGNALED(status)) {
    how = "signal " + std::to_string(WTERMSIG(status));
  } else if (WEXITSTATUS(status) != 0) {
    how = "exit " + std::to_string(WEXITSTATUS(status));
  }
  lines.push_back(std::string("section.") + name + " = " + how);
  return lines;
}

int usage() {
  std::fprintf(stderr, "usage: conformance [--driver PATH] [--section NAME] [--list]\n");
  return 2;
}

int run(int argc, char** argv) {
  const char* driver = "libcuda.so.1";
  const char* only = nullptr;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--driver") == 0 && i + 1 < argc) {
      driver = argv[++i];
    } else if (std::strcmp(argv[i], "--section") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--list") == 0) {
      list = true;
    } else {
      return usage();
    }
  }
  if (list) {
    for (const Section& section : kSections) std::printf("%s\n", section.name);
    return 0;
  }
  if (only != nullptr) {
    for (const Section& section : kSections) {
      if (std::strcmp(section.name, only) != 0) continue;
      openDriver(driver);
      section.run();
      std::fflush(stdout);
      return 0;
    }
    return usage();
  }
  std::vector<std::string> lines;
  for (const Section& section : kSections) {
    std::vector<std::string> more = runSection("/proc/self/exe", driver, section.name);
    lines.insert(lines.end(), more.begin(), more.end());
  }
  std::sort(lines.begin(), lines.end());
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) { return conformance::run(argc, argv); }
