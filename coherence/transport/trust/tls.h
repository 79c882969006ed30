// One TLS 1.3 session over a socket, with a pre-shared key and an ephemeral Diffie-Hellman exchange
// (psk_dhe_ke) and nothing else: no certificates, no resumption, no early data, no configuration
// file. The key's name is the PSK identity.
//
// Thread-safety: any thread; read and write take the session's lock. The socket is the caller's and
// non-blocking.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

struct ssl_st;

namespace olpager::transport {

using Secret = std::array<uint8_t, 32>;

class TlsSession {
 public:
  /// Finds the key of an identity that a client claims.
  using KeyFinder = std::function<std::optional<Secret>(const std::string& identity)>;
  /// Looks at a client's first words before anything is computed for it: its tag ("" without one).
  /// "", or why it is not to go on.
  using Gate = std::function<std::string(const std::string& tag)>;

  /// `tag`: for the other end's gate, 255 bytes at most.
  static Result<std::unique_ptr<TlsSession>> client(int fd, const std::string& identity,
                                                    const Secret& key, const std::string& tag = "");
  static Result<std::unique_ptr<TlsSession>> server(int fd, KeyFinder find, Gate gate = {});
  ~TlsSession();

  enum class Step : uint8_t { kDone, kRead, kWrite, kFailed, kRefused };
  /// Goes on with the handshake; kRead and kWrite: when the socket is ready for it. A client's
  /// first step only speaks, so that its caller can look at what arrives: it may be no TLS.
  /// kRefused: the gate did; nothing has been said to the client.
  Step handshake();
  /// The client's, once the handshake is done.
  const std::string& identity() const { return identity_; }
  /// True if the handshake failed, and the other end has said so, or does not speak this protocol.
  /// A network that failed is none of these.
  bool refused() const {
    std::lock_guard lock(mutex_);
    return refused_;
  }
  /// Why it failed, for the log.
  std::string error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }

  /// As the system calls: bytes, 0 at the end, or a negative errno (-EAGAIN: later; -EPROTO:
  /// error()).
  ssize_t read(void* into, size_t length);
  ssize_t write(const void* from, size_t length);

  /// Secrets that both ends derive from this session, by name.
  Result<Secret> exportSecret(const char* name, std::span<const uint8_t> context);

 private:
  TlsSession() = default;
  static Result<std::unique_ptr<TlsSession>> make(int fd, bool server);
  struct Callbacks;
  friend struct Callbacks;
  ssize_t failure(int result);

  mutable std::mutex mutex_;
  ssl_st* ssl_ = nullptr;
  std::string identity_;
  Secret key_{};
  KeyFinder find_;
  Gate gate_;  // until it has been asked
  bool refused_ = false;
  std::string error_;
};

/// HMAC-SHA256.
Secret mac(const Secret& key, std::span<const uint8_t> first, std::span<const uint8_t> second = {});
/// Without telling by its time where they differ.
bool sameSecret(std::span<const uint8_t> a, std::span<const uint8_t> b);
/// From the system; ends the process in the one case that it can't give any.
void randomBytes(std::span<uint8_t> into);
void forget(std::span<uint8_t> secret);

}  // namespace olpager::transport
