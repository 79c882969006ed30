// A connected, non-blocking socket, in the clear or under TLS. Thread-safety: one reader and one
// writer at a time.
#pragma once

#include <sys/uio.h>

#include <memory>

#include "base/fd.h"
#include "coherence/transport/trust/tls.h"

namespace olpager::transport {

class Stream {
 public:
  Stream() = default;
  Stream(base::UniqueFd fd, std::unique_ptr<TlsSession> tls)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  int fd() const { return fd_.get(); }
  bool encrypted() const { return tls_ != nullptr; }
  TlsSession* tls() const { return tls_.get(); }
  /// The bytes that follow are in the clear, in both directions.
  void endTls() { tls_.reset(); }
  void startTls(std::unique_ptr<TlsSession> tls) { tls_ = std::move(tls); }
  void close() {
    tls_.reset();
    fd_.reset();
  }
  base::UniqueFd takeFd() { return std::move(fd_); }

  /// Bytes moved (maybe fewer than asked for), 0 at the end of the stream, or a negative errno
  /// (-EAGAIN: not now). Reading reports failed writes as well.
  ssize_t read(const iovec* parts, size_t count);
  ssize_t write(const iovec* parts, size_t count);
  /// "connection reset by peer", for a negative result of the above.
  std::string errorText(ssize_t result) const;

 private:
  ssize_t readNow(const iovec* parts, size_t count);
  ssize_t writeNow(const iovec* parts, size_t count);

  base::UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
  int write_error_ = 0;  // atomic: the writer's, looked at by the reader
};

/// Drops `bytes` from the front of parts[first..count); the new first.
size_t advance(iovec* parts, size_t first, size_t count, size_t bytes);

}  // namespace olpager::transport
