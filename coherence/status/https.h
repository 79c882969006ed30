// The server's side of HTTPS, for figures: a certificate and its key from files, one TLS session
// (1.2 or 1.3) a connection. Nothing of the system's openssl.cnf is read.
//
// Thread-safety: a Certificate is immutable once loaded; a session is one thread's. Sockets are the
// caller's and non-blocking; the caller keeps SIGPIPE away.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

struct ssl_st;
struct ssl_ctx_st;

namespace olpager::status {

class Certificate {
 public:
  /// PEM. The private key is refused where others can read it (key_access.h).
  static Result<std::unique_ptr<Certificate>> load(const std::string& certificate,
                                                   const std::string& private_key);
  ~Certificate();
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

 private:
  friend class HttpsSession;
  explicit Certificate(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

class HttpsSession {
 public:
  /// nullptr: there is no memory for it.
  static std::unique_ptr<HttpsSession> make(const Certificate& certificate, int socket);
  ~HttpsSession();
  HttpsSession(const HttpsSession&) = delete;
  HttpsSession& operator=(const HttpsSession&) = delete;

  /// As the system calls, with the handshake first: bytes, 0 at the end, -1 with errno (EAGAIN: as
  /// soon as wants() is there).
  ssize_t read(void* into, size_t length);
  ssize_t write(const void* from, size_t length);
  /// POLLIN or POLLOUT: what is to be waited for, after EAGAIN or writesOn().
  short wants() const { return wants_; }
  /// There is more to write, as soon as the socket takes it.
  void writesOn();
  /// Tells the other end that nothing more comes.
  void finish();

 private:
  explicit HttpsSession(ssl_st* ssl) : ssl_(ssl) {}
  ssize_t result(int done);
  ssl_st* const ssl_;
  short wants_ = 0;
};

/// The token of a file: one line, 16 to 256 characters without blanks. The Error says nothing of
/// the file's contents. A file that others can read is refused (key_access.h).
Result<std::string> loadToken(const std::string& path);
/// True if a request (its header, as it came) brings that token: Authorization: Bearer TOKEN. How
/// long the comparison takes tells nothing of the token but its length.
bool bringsToken(std::string_view request, std::string_view token);

}  // namespace olpager::status
