#include "base/credentials.h"

#include <sys/stat.h>

#include <cstdlib>

namespace olpager::base {

std::string credentialFile(std::string_view folder, std::string_view name) {
  if (!folder.starts_with('/')) return "";
  std::string path = std::string(folder) + "/" + std::string(name);
  struct stat about {};
  return stat(path.c_str(), &about) == 0 ? path : "";
}

std::string ownCredentialFile(std::string_view name) {
  const char* const folder = std::getenv("CREDENTIALS_DIRECTORY");
  return folder == nullptr ? "" : credentialFile(folder, name);
}

}  // namespace olpager::base
