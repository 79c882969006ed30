// libFuzzer target: texts that users and files give for the network: addresses, key files,
// settings. Each is taken or refused with one line.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/settings.h"
#include "coherence/transport/core/address.h"
#include "coherence/transport/trust/keys.h"

namespace {

void oneLine(const olpager::Error& error) {
  if (error.message.empty() || error.message.find('\n') != std::string::npos) std::abort();
}

// Names are not looked up: a resolver is not what is tested, and may take long.
bool isName(const std::string& text) {
  return text.find_first_not_of("0123456789.:[]abcdefABCDEF") != std::string::npos &&
         !text.starts_with("unix:");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(const uint8_t* data,
                                                                             size_t size) {
  using namespace olpager;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0:
      if (transport::isUnix(text)) {
        if (const auto address = transport::unixAddress(text.substr(5)); !address.ok())
          oneLine(address.error());
      } else if (!isName(text)) {
        const auto all = transport::resolve(text, true);
        if (!all.ok()) oneLine(all.error());
        if (all.ok() && (all.value().empty() || all.value().front().text().empty())) std::abort();
      }
      break;
    case 1: {
      static const int file = memfd_create("keys", MFD_CLOEXEC);
      static const std::string path = "/proc/self/fd/" + std::to_string(file);
      fchmod(file, 0600);
      if (ftruncate(file, 0) != 0 ||
          pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
        return 0;
      const auto keys = transport::loadKeys(path);
      if (!keys.ok()) oneLine(keys.error());
      if (keys.ok() &&
          (keys.value()->size() == 0 || !transport::checkKeyName(keys.value()->own().name).ok()))
        std::abort();
      break;
    }
    default:
      for (const char* key : {"memserver", "replicas", "key", "tls"}) {
        base::Settings settings;
        if (const Status status = base::optionsOf(settings).set(key, text); !status.ok())
          oneLine(status.error());
      }
  }
  return 0;
}
