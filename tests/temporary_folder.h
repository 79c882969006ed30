// A folder of a test's own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace olpager::test {

/// Under /tmp; goes with this object.
struct TemporaryFolder {
  TemporaryFolder() {
    char name[] = "/tmp/olpager-test-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("no folder can be made in /tmp");
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// Writes a file below it, making folders on the way; returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto file = std::filesystem::path(path) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }

  std::string path;
};

}  // namespace olpager::test
