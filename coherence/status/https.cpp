#include "coherence/status/https.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "base/fd.h"
#include "base/format.h"
#include "coherence/transport/trust/key_access.h"
#include "coherence/transport/trust/openssl_library.h"

namespace olpager::status {
namespace {

std::string lastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text == nullptr ? "it can't be read" : text;
}

// An open file of secrets that nobody else may read.
Result<base::UniqueFd> openSecret(const std::string& path) {
  base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || fstat(file.get(), &about) != 0)
    return Error{base::format("{}: {}", path, std::strerror(errno))};
  if (!S_ISREG(about.st_mode)) return Error{base::format("{}: not a regular file", path)};
  if (auto status = transport::checkKeyAccess(about.st_mode, about.st_uid, geteuid(), path);
      !status.ok())
    return status.error();
  return file;
}

}  // namespace

Certificate::~Certificate() { SSL_CTX_free(context_); }

Result<std::unique_ptr<Certificate>> Certificate::load(const std::string& certificate,
                                                       const std::string& private_key) {
  if (auto secret = openSecret(private_key); !secret.ok()) return secret.error();
  SSL_CTX* const context =
      SSL_CTX_new_ex(transport::opensslLibrary(), nullptr, TLS_server_method());
  if (context == nullptr) return Error{"TLS: " + lastError()};
  std::unique_ptr<Certificate> made(new Certificate(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                   SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Nobody is there to be asked for a passphrase.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1)
    return Error{base::format("{}: no certificate (PEM): {}", certificate, lastError())};
  if (SSL_CTX_use_PrivateKey_file(context, private_key.c_str(), SSL_FILETYPE_PEM) != 1)
    return Error{base::format("{}: no private key of {} (PEM, without a passphrase): {}",
                              private_key, certificate, lastError())};
  return made;
}

std::unique_ptr<HttpsSession> HttpsSession::make(const Certificate& certificate, int socket) {
  SSL* const ssl = SSL_new(certificate.context_);
  if (ssl == nullptr) return nullptr;
  std::unique_ptr<HttpsSession> made(new HttpsSession(ssl));
  if (SSL_set_fd(ssl, socket) != 1) return nullptr;
  SSL_set_accept_state(ssl);
  made->wants_ = POLLIN;
  return made;
}

HttpsSession::~HttpsSession() { SSL_free(ssl_); }

ssize_t HttpsSession::result(int done) {
  if (done > 0) return done;
  const int why = SSL_get_error(ssl_, done);
  ERR_clear_error();
  if (why == SSL_ERROR_ZERO_RETURN) return 0;
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
    wants_ = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    errno = EAGAIN;
  } else {
    errno = EPROTO;
  }
  return -1;
}

ssize_t HttpsSession::read(void* into, size_t length) {
  ERR_clear_error();
  return result(SSL_read(ssl_, into, static_cast<int>(std::min<size_t>(length, INT_MAX))));
}

ssize_t HttpsSession::write(const void* from, size_t length) {
  constexpr size_t kMost = 1 << 20;  // others are waiting
  ERR_clear_error();
  return result(SSL_write(ssl_, from, static_cast<int>(std::min(length, kMost))));
}

void HttpsSession::writesOn() { wants_ = POLLOUT; }

void HttpsSession::finish() {
  ERR_clear_error();
  (void)SSL_shutdown(ssl_);
  ERR_clear_error();
}

Result<std::string> loadToken(const std::string& path) {
  constexpr size_t kLeast = 16, kMost = 256;
  auto file = openSecret(path);
  if (!file.ok()) return file.error();
  std::string text;
  char bytes[kMost + 2];
  for (ssize_t got; (got = read(file.value().get(), bytes, sizeof bytes)) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error{base::format("{}: {}", path, std::strerror(errno))};
    text.append(bytes, static_cast<size_t>(got));
    if (text.size() > kMost + 1) break;
  }
  if (text.ends_with('\n')) text.pop_back();
  const bool good =
      text.size() >= kLeast && text.size() <= kMost &&
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (!good)
    return Error{
        base::format("{}: not a token: one line of {} to {} characters without blanks, as "
                     "openssl rand -hex 32 writes it",
                     path, kLeast, kMost)};
  return text;
}

bool bringsToken(std::string_view request, std::string_view token) {
  constexpr std::string_view kName = "authorization:", kScheme = "bearer";
  const auto is = [](std::string_view text, std::string_view name) {
    return text.size() >= name.size() && strncasecmp(text.data(), name.data(), name.size()) == 0;
  };
  const auto trim = [](std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
      text.remove_suffix(1);
    return text;
  };
  bool brings = false;
  for (size_t at = request.find('\n'); at < request.size();) {
    const size_t end = std::min(request.find('\n', at + 1), request.size());
    std::string_view line = request.substr(at + 1, end - at - 1);
    at = end;
    if (!is(line, kName)) continue;
    line = trim(line.substr(kName.size()));
    if (!is(line, kScheme)) continue;
    line = line.substr(kScheme.size());
    if (line.empty() || (line.front() != ' ' && line.front() != '\t')) continue;
    line = trim(line);
    if (line.size() == token.size() && CRYPTO_memcmp(line.data(), token.data(), token.size()) == 0)
      brings = true;
  }
  return brings;
}

}  // namespace olpager::status
