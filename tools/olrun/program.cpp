#include "tools/olrun/program.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/fd.h"
#include "base/format.h"

namespace olpager::tools {
namespace {

bool isFile(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

// Why LD_PRELOAD would not reach this program; "" when it does. Scripts are judged by the kernel's
// interpreter at exec.
std::string unreachable(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) == 0 && (about.st_mode & (S_ISUID | S_ISGID)) != 0 &&
      geteuid() != 0) {
    return "is set-uid, so the loader ignores LD_PRELOAD";
  }
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Elf64_Ehdr header;
  if (!file ||
      pread(file.get(), &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return {};
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "is a 32-bit program";
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const auto bytes = static_cast<ssize_t>(segments.size() * sizeof(Elf64_Phdr));
  if (header.e_phentsize != sizeof(Elf64_Phdr) ||
      pread(file.get(), segments.data(), static_cast<size_t>(bytes),
            static_cast<off_t>(header.e_phoff)) != bytes) {
    return {};
  }
  for (const auto& segment : segments) {
    if (segment.p_type == PT_INTERP) return {};
  }
  return "is statically linked, so no library can be preloaded";
}

}  // namespace

Program findProgram(const std::string& name, const std::string& search_path) {
  Program program;
  std::string seen;
  if (name.find('/') != std::string::npos) {
    seen = name;
  } else {
    for (size_t at = 0; at <= search_path.size() && program.path.empty();) {
      const size_t end = std::min(search_path.find(':', at), search_path.size());
      const std::string folder = end == at ? "." : search_path.substr(at, end - at);
      const std::string candidate = base::format("{}/{}", folder, name);
      if (isFile(candidate)) {
        if (seen.empty()) seen = candidate;
        if (access(candidate.c_str(), X_OK) == 0) program.path = candidate;
      }
      at = end + 1;
    }
  }
  if (program.path.empty() && !seen.empty() && isFile(seen) && access(seen.c_str(), X_OK) == 0)
    program.path = seen;
  if (program.path.empty()) {
    struct stat about {};
    const bool there = !seen.empty() && stat(seen.c_str(), &about) == 0;
    program.exit_code = there ? 126 : 127;
    program.problem =
        there ? base::format("{}: is not an executable file; chmod +x it, or name its interpreter",
                             seen)
        : seen.empty() ? base::format("{}: no such program on PATH", name)
                       : base::format("{}: no such program", name);
    return program;
  }
  if (auto why = unreachable(program.path); !why.empty()) {
    program.warning = base::format("{} {}: it runs without olpager", program.path, why);
  }
  return program;
}

}  // namespace olpager::tools
