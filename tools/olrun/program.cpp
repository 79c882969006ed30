#include "tools/olrun/program.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/format.h"
#include "base/text.h"

namespace olpager::tools {
namespace {

bool isFile(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

// A 64-bit program's segments; none: it is something else.
std::vector<Elf64_Phdr> segmentsOf(int file) {
  Elf64_Ehdr header;
  if (pread(file, &header, sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr))
    return {};
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const size_t bytes = segments.size() * sizeof(Elf64_Phdr);
  if (pread(file, segments.data(), bytes, static_cast<off_t>(header.e_phoff)) !=
      static_cast<ssize_t>(bytes))
    return {};
  return segments;
}

bool isElf32(int file) {
  unsigned char ident[EI_NIDENT];
  return pread(file, ident, sizeof ident, 0) == static_cast<ssize_t>(sizeof ident) &&
         std::memcmp(ident, ELFMAG, SELFMAG) == 0 && ident[EI_CLASS] == ELFCLASS32;
}

bool isLoader(const Elf64_Phdr& segment) { return segment.p_type == PT_INTERP; }

// Why LD_PRELOAD would not reach this program; "" when it does. Scripts are judged by the kernel's
// interpreter at exec.
std::string unreachable(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) == 0 && (about.st_mode & (S_ISUID | S_ISGID)) != 0 &&
      geteuid() != 0) {
    return "is set-uid, so the loader ignores LD_PRELOAD";
  }
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  if (isElf32(file.get())) return "is a 32-bit program";
  const auto segments = segmentsOf(file.get());
  if (segments.empty() || std::any_of(segments.begin(), segments.end(), isLoader)) return {};
  return "is statically linked, so no library can be preloaded";
}

// The text of a file at an offset, up to a character, as far as the kernel looks for it.
std::string textAt(int file, off_t offset, char end) {
  char text[256];  // BINPRM_BUF_SIZE
  const ssize_t got = pread(file, text, sizeof text, offset);
  const std::string_view all(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return std::string(all.substr(0, all.find(end)));
}

// The missing file that the kernel needs to start this one; it calls that "No such file", as if the
// file were not. "" when all is there.
std::string notStartable(const std::string& path) {
  const auto missing = [&path](const char* what, const std::string& needed, const char* mend) {
    if (access(needed.c_str(), F_OK) == 0) return std::string();
    return base::format("{}: its {} {}: {}; {}", path, what, base::printable(needed),
                        std::strerror(errno), mend);
  };
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return {};
  if (const std::string line = textAt(file.get(), 0, '\n'); line.starts_with("#!")) {
    if (line.ends_with('\r'))
      return base::format(
          "{}: its first line ends as Windows ends lines (CR LF), which belongs to the "
          "interpreter's name here; tr -d '\\r' mends it",
          path);
    const size_t begin = line.find_first_not_of(" \t", 2);
    if (begin == std::string::npos) return {};
    const size_t end = line.find_first_of(" \t", begin);
    return missing("interpreter", line.substr(begin, end - begin),
                   "install it, or correct the first line");
  }
  for (const Elf64_Phdr& segment : segmentsOf(file.get())) {
    if (!isLoader(segment)) continue;
    return missing("loader", textAt(file.get(), static_cast<off_t>(segment.p_offset), '\0'),
                   "it was built for another system's C library");
  }
  return {};
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
  if (std::string why = notStartable(program.path); !why.empty()) {
    program = {};
    program.exit_code = 126;
    program.problem = std::move(why);
    return program;
  }
  if (auto why = unreachable(program.path); !why.empty()) {
    program.warning = base::format("{} {}: it runs without olpager", program.path, why);
  }
  return program;
}

}  // namespace olpager::tools
