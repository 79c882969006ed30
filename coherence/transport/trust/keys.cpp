#include "coherence/transport/trust/keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>

#include "base/fd.h"
#include "base/format.h"
#include "coherence/transport/trust/key_access.h"

namespace olpager::transport {
namespace {

constexpr size_t kMaxFile = 1 << 20;

int hexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool parseSecret(std::string_view text, Secret& into) {
  if (text.size() != 2 * into.size()) return false;
  for (size_t i = 0; i < into.size(); ++i) {
    const int high = hexDigit(text[2 * i]), low = hexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    into[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
}

// Why a line that is no key is none, as far as people get it wrong by the way they carried the file
// here; else what a line is. Says nothing of what the line holds.
std::string whyNoKey(std::string_view line) {
  constexpr std::string_view kForm = "NAME:64 hexadecimal digits, as olctl keygen writes it";
  if (line.ends_with('\r'))
    return base::format("the line ends as Windows ends lines (CR LF), not {}; tr -d '\\r' mends it",
                        kForm);
  if (line.starts_with("\xef\xbb\xbf") || line.starts_with("\xff\xfe") ||
      line.starts_with("\xfe\xff"))
    return base::format("a byte-order mark begins the file, not {}; save it as plain ASCII", kForm);
  if (line.starts_with("-----BEGIN ") || line.starts_with("ssh-"))
    return base::format("a key or certificate of TLS or SSH (PEM), not {}", kForm);
  return base::format("not {}", kForm);
}

}  // namespace

std::string greetingTag(const Secret& key) {
  constexpr uint8_t kWhat[] = {'g', 'r', 'e', 'e', 't', 'i', 'n', 'g'};
  constexpr size_t kBytes = 16;
  const Secret all = mac(key, kWhat);
  std::string text;
  for (size_t i = 0; i < kBytes; ++i) text += base::format("{:02x}", all[i]);
  return text;
}

KeyRing::KeyRing(std::vector<NamedKey> keys) : keys_(std::move(keys)) {
  for (const auto& key : keys_) tags_.push_back(greetingTag(key.secret));
}

std::string KeyRing::nameOf(const std::string& tag) const {
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  std::string name;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (sameSecret(bytes(tags_[i]), bytes(tag))) name = keys_[i].name;
  }
  return name;
}

KeyRing::~KeyRing() {
  for (auto& key : keys_) forget(key.secret);
}

std::optional<Secret> KeyRing::find(const std::string& name) const {
  for (const auto& key : keys_) {
    if (key.name == name) return key.secret;
  }
  return std::nullopt;
}

Status checkKeyName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= 64 &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
                    });
  if (!good)
    return Error{
        base::format("'{}' is no name for a key: 1 to 64 letters, digits, '.', '_' or '-'", name)};
  return {};
}

Status checkKeyAccess(mode_t mode, uid_t owner, uid_t self, const std::string& path) {
  if (owner != self && owner != 0) {
    return Error{base::format("key file {}: belongs to user {}; it has to be this user's or root's",
                              path, owner)};
  }
  // Root has chosen the group that may read its file (0440, 0640). With access lists, as systemd's
  // credentials have, the group's bits are the most that anybody in the list has.
  const mode_t others = owner == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((mode & others) == 0) return {};
  return Error{
      base::format("key file {}: others can read or change it (mode {:o}); run: chmod {} {}", path,
                   mode & 07777u, owner == 0 ? "g-wx,o=" : "600", path)};
}

Result<std::shared_ptr<const KeyRing>> loadKeys(const std::string& path) {
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file && (errno == ENOENT || errno == ENOTDIR))
    return Error{base::format(
        "key file {}: {}; a key is looked for by {}; by daemons {}; olctl keygen makes one", path,
        std::strerror(errno), kProgramKeyPlaces, kDaemonKeyPlaces)};
  if (!file || fstat(file.get(), &about) != 0)
    return Error{base::format("key file {}: {}", path, std::strerror(errno))};
  if (!S_ISREG(about.st_mode)) return Error{base::format("key file {}: not a regular file", path)};
  // Before it is read: what it says is another's. The mode is looked at only of a key file: nobody
  // is to be told to change that of another file.
  if (auto status = checkKeyAccess(about.st_mode & ~mode_t{077}, about.st_uid, geteuid(), path);
      !status.ok())
    return status.error();
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(file.get(), buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{base::format("key file {}: {}", path, std::strerror(errno))};
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxFile)
      return Error{base::format("key file {}: larger than {} bytes", path, kMaxFile)};
  }
  std::vector<NamedKey> keys;
  std::set<std::string> names;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const size_t colon = line.find(':');
    NamedKey key;
    if (colon != std::string_view::npos) key.name = line.substr(0, colon);
    if (!checkKeyName(key.name).ok() || !parseSecret(line.substr(colon + 1), key.secret)) {
      return Error{base::format("key file {}:{}: {}", path, number, whyNoKey(line))};
    }
    if (!names.insert(key.name).second) {
      return Error{base::format("key file {}:{}: a second key named {}", path, number, key.name)};
    }
    keys.push_back(std::move(key));
  }
  std::fill(text.begin(), text.end(), '\0');
  if (keys.empty()) return Error{base::format("key file {}: no key in it", path)};
  if (auto status = checkKeyAccess(about.st_mode, about.st_uid, geteuid(), path); !status.ok())
    return status.error();
  return std::shared_ptr<const KeyRing>(std::make_shared<KeyRing>(std::move(keys)));
}

Status createKeyFile(const std::string& path, const std::string& name) {
  if (auto status = checkKeyName(name); !status.ok()) return status;
  Secret secret;
  randomBytes(secret);
  std::string line = name + ":";
  for (const uint8_t byte : secret) line += base::format("{:02x}", byte);
  line += '\n';
  forget(secret);
  const base::UniqueFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file && errno == EEXIST)
    return Error{
        base::format("{}: {}; give another name, or remove it", path, std::strerror(EEXIST))};
  if (!file) return Error{base::format("{}: {}", path, std::strerror(errno))};
  const ssize_t put = write(file.get(), line.data(), line.size());
  const bool written = put == static_cast<ssize_t>(line.size()) && fsync(file.get()) == 0;
  std::fill(line.begin(), line.end(), '\0');
  if (!written) {
    const int why = errno;
    unlink(path.c_str());
    return Error{base::format("{}: {}", path, std::strerror(why))};
  }
  return {};
}

}  // namespace olpager::transport
