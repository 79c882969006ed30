// Keys with names. A file has one or several, a line each: NAME:64 hexadecimal digits. A node
// connects with the first of its file and accepts all of it. Thread-safety: immutable once loaded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "coherence/transport/trust/tls.h"

namespace olpager::transport {

struct NamedKey {
  std::string name;  // letters, digits, '.', '_', '-'; at most 64
  Secret secret{};
};

/// A greeting shows by it, before any proof, that its sender has the key, or has seen a greeting by
/// it: others take no place of those who do. The tag is no proof: it is the same each time.
std::string greetingTag(const Secret& key);

class KeyRing {
 public:
  explicit KeyRing(std::vector<NamedKey> keys);
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  const NamedKey& own() const { return keys_.front(); }
  std::optional<Secret> find(const std::string& name) const;
  /// The name of the key that has this tag; "" for none.
  std::string nameOf(const std::string& tag) const;
  size_t size() const { return keys_.size(); }

 private:
  std::vector<NamedKey> keys_;  // never empty
  std::vector<std::string> tags_;
};

/// Refuses a file that others can read or change, or of somebody else (key_access.h).
Result<std::shared_ptr<const KeyRing>> loadKeys(const std::string& path);
/// A fresh key in a new file of mode 0600; an existing file is refused.
Status createKeyFile(const std::string& path, const std::string& name);
Status checkKeyName(const std::string& name);

}  // namespace olpager::transport
