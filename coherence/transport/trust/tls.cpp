#include "coherence/transport/trust/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "coherence/transport/trust/openssl_library.h"

namespace olpager::transport {
namespace {

constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr uint8_t kCipherId[2] = {0x13, 0x01};
constexpr size_t kMaxIdentity = 128;

std::string lastError() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "closed by the peer";
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? base::format("error {:x}", code) : text;
}

// The text of a wrong key's failure: with TLS 1.3 at the acceptor, and as the acceptor's alert at
// the connector.
std::string handshakeError() {
  const unsigned long code = ERR_peek_last_error();
  std::string text = lastError();
  switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return "the peer's key of that name is another one; both ends need the same one";
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      return "the peer's key of that name is another one, or it has none; both ends need the same "
             "one (olctl keygen)";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return text + ": the other end speaks another protocol";
    default:
      return text;
  }
}

// A socket to OpenSSL, without the SIGPIPE that its own one can raise in the program that we live
// in.
const BIO_METHOD* socketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write_ex(made, [](BIO* bio, const char* from, size_t length, size_t* put) {
      BIO_clear_retry_flags(bio);
      const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
      const ssize_t result = send(fd, from, length, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (result < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
      *put = result > 0 ? static_cast<size_t>(result) : 0;
      return result > 0 ? 1 : 0;
    });
    BIO_meth_set_read_ex(made, [](BIO* bio, char* into, size_t length, size_t* got) {
      BIO_clear_retry_flags(bio);
      const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
      const ssize_t result = recv(fd, into, length, MSG_DONTWAIT);
      if (result < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
      if (result == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
      *got = result > 0 ? static_cast<size_t>(result) : 0;
      return result > 0 ? 1 : 0;
    });
    BIO_meth_set_ctrl(made, [](BIO* bio, int command, long, void*) -> long {
      if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return made;
  }();
  return method;
}

// The session that stands for a pre-shared key.
SSL_SESSION* sessionOf(SSL* ssl, const Secret& key) {
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId);
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (cipher == nullptr || SSL_SESSION_set1_master_key(session, key.data(), key.size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

}  // namespace

struct TlsSession::Callbacks {
  static TlsSession* of(SSL* ssl) { return static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  static int find(SSL* ssl, const unsigned char* identity, size_t length, SSL_SESSION** session) {
    TlsSession* self = of(ssl);
    *session = nullptr;
    if (length == 0 || length > kMaxIdentity) return 1;  // no such key: the handshake fails
    const std::string name(reinterpret_cast<const char*>(identity), length);
    auto key = self->find_(name);
    if (!key) {
      // The handshake goes on with a key that nobody has, and fails as with a wrong one: a stranger
      // does not learn which names there are.
      self->error_ = "no key of the name that the peer gives";
      randomBytes(key.emplace());
    }
    *session = sessionOf(ssl, *key);
    forget(*key);
    self->identity_ = name;
    return *session != nullptr ? 1 : 0;
  }

  static int use(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* length,
                 SSL_SESSION** session) {
    TlsSession* self = of(ssl);
    if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) {
      *session = nullptr;
      return 1;
    }
    *identity = reinterpret_cast<const unsigned char*>(self->identity_.data());
    *length = self->identity_.size();
    *session = sessionOf(ssl, self->key_);
    return *session != nullptr ? 1 : 0;
  }

  // The list has one name, which is the tag: no protocol is agreed on by it.
  static int hello(SSL* ssl, int* /*alert*/, void* /*argument*/) {
    TlsSession* self = of(ssl);
    const Gate gate = std::exchange(self->gate_, nullptr);  // a client may be asked to speak twice
    if (!gate) return SSL_CLIENT_HELLO_SUCCESS;
    const unsigned char* list = nullptr;
    size_t length = 0;
    std::string tag;
    if (SSL_client_hello_get0_ext(ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &list,
                                  &length) == 1 &&
        length > 3 && list[2] == length - 3)
      tag.assign(reinterpret_cast<const char*>(list) + 3, length - 3);
    self->error_ = gate(tag);
    return self->error_.empty() ? SSL_CLIENT_HELLO_SUCCESS : SSL_CLIENT_HELLO_RETRY;
  }

  static SSL_CTX* context(bool server) {
    SSL_CTX* made = SSL_CTX_new_ex(opensslLibrary(), nullptr,
                                   server ? TLS_server_method() : TLS_client_method());
    if (made == nullptr) return nullptr;
    SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(made, kCipher);
    SSL_CTX_set_num_tickets(made, 0);
    SSL_CTX_set_max_early_data(made, 0);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_clear_options(made, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_clear_mode(made, SSL_MODE_AUTO_RETRY);
    // No certificate is ever configured on either side, so a server can show nothing but the key;
    // the client insists.
    SSL_CTX_set_verify(made, server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
    if (server) {
      SSL_CTX_set_psk_find_session_callback(made, find);
      SSL_CTX_set_client_hello_cb(made, hello, nullptr);
    } else {
      SSL_CTX_set_psk_use_session_callback(made, use);
    }
    return made;
  }
};

Result<std::unique_ptr<TlsSession>> TlsSession::make(int fd, bool server) {
  static SSL_CTX* const contexts[] = {Callbacks::context(false), Callbacks::context(true)};
  SSL_CTX* context = contexts[server ? 1 : 0];
  std::unique_ptr<TlsSession> session(new TlsSession);
  session->ssl_ = context == nullptr ? nullptr : SSL_new(context);
  BIO* bio = session->ssl_ == nullptr ? nullptr : BIO_new(socketMethod());
  if (bio == nullptr) return Error{"TLS: " + lastError()};
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session->ssl_, bio, bio);
  SSL_set_app_data(session->ssl_, session.get());
  if (server) {
    SSL_set_accept_state(session->ssl_);
  } else {
    SSL_set_connect_state(session->ssl_);
  }
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::client(int fd, const std::string& identity,
                                                       const Secret& key, const std::string& tag) {
  auto session = make(fd, false);
  if (session.ok() && !tag.empty()) {
    std::string list(1, static_cast<char>(tag.size()));
    list += tag;
    if (SSL_set_alpn_protos(session.value()->ssl_,
                            reinterpret_cast<const unsigned char*>(list.data()),
                            static_cast<unsigned>(list.size())) != 0)
      return Error{"TLS: " + lastError()};
  }
  if (session.ok()) {
    session.value()->identity_ = identity;
    session.value()->key_ = key;
    SSL_set0_rbio(session.value()->ssl_, BIO_new(BIO_s_mem()));  // nothing ever comes from there
  }
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::server(int fd, KeyFinder find, Gate gate) {
  auto session = make(fd, true);
  if (session.ok()) {
    session.value()->find_ = std::move(find);
    session.value()->gate_ = std::move(gate);
  }
  return session;
}

TlsSession::~TlsSession() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  forget(key_);
}

TlsSession::Step TlsSession::handshake() {
  std::lock_guard lock(mutex_);
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  const int what = SSL_get_error(ssl_, result);
  if (BIO* const socket = SSL_get_wbio(ssl_);
      SSL_get_rbio(ssl_) != socket) {  // a client has spoken
    BIO_up_ref(socket);
    SSL_set0_rbio(ssl_, socket);
  }
  if (result == 1) {
    // Only a session of our key may come out; anything else is a bug or an attack.
    if (SSL_version(ssl_) != TLS1_3_VERSION || SSL_session_reused(ssl_) != 1) {
      error_ = "the handshake ended without the shared key";
      return Step::kFailed;
    }
    forget(key_);
    return Step::kDone;
  }
  switch (what) {
    case SSL_ERROR_WANT_READ:
      return Step::kRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWrite;
    case SSL_ERROR_WANT_CLIENT_HELLO_CB:
      return Step::kRefused;
    default: {
      const unsigned long code = ERR_peek_last_error();
      refused_ =
          what == SSL_ERROR_SSL && ERR_GET_REASON(code) != SSL_R_UNEXPECTED_EOF_WHILE_READING;
      const std::string why = handshakeError();
      if (error_.empty()) error_ = why;
      return Step::kFailed;
    }
  }
}

ssize_t TlsSession::failure(int result) {
  const int system = errno;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return system != 0 ? -system : 0;
    default:
      error_ = lastError();
      return -EPROTO;
  }
}

ssize_t TlsSession::read(void* into, size_t length) {
  std::lock_guard lock(mutex_);
  ERR_clear_error();
  errno = 0;
  size_t got = 0;
  const int result = SSL_read_ex(ssl_, into, length, &got);
  return result == 1 ? static_cast<ssize_t>(got) : failure(result);
}

ssize_t TlsSession::write(const void* from, size_t length) {
  std::lock_guard lock(mutex_);
  ERR_clear_error();
  errno = 0;
  size_t put = 0;
  const int result = SSL_write_ex(ssl_, from, length, &put);
  return result == 1 ? static_cast<ssize_t>(put) : failure(result);
}

Result<Secret> TlsSession::exportSecret(const char* name, std::span<const uint8_t> context) {
  std::lock_guard lock(mutex_);
  Secret secret;
  if (SSL_export_keying_material(ssl_, secret.data(), secret.size(), name, std::strlen(name),
                                 context.data(), context.size(), 1) != 1) {
    return Error{"TLS: " + lastError()};
  }
  return secret;
}

Secret mac(const Secret& key, std::span<const uint8_t> first, std::span<const uint8_t> second) {
  Secret result{};
  size_t length = 0;
  EVP_MAC* method = EVP_MAC_fetch(opensslLibrary(), "HMAC", nullptr);
  EVP_MAC_CTX* context = EVP_MAC_CTX_new(method);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0),
                                   OSSL_PARAM_construct_end()};
  const bool done =
      EVP_MAC_init(context, key.data(), key.size(), parameters) == 1 &&
      EVP_MAC_update(context, first.data(), first.size()) == 1 &&
      (second.empty() || EVP_MAC_update(context, second.data(), second.size()) == 1) &&
      EVP_MAC_final(context, result.data(), &length, result.size()) == 1;
  EVP_MAC_CTX_free(context);
  EVP_MAC_free(method);
  if (!done || length != result.size()) randomBytes(result);  // matches nothing
  return result;
}

bool sameSecret(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void randomBytes(std::span<uint8_t> into) {
  size_t have = 0;
  while (have < into.size()) {
    const ssize_t got = getrandom(into.data() + have, into.size() - have, 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) have += static_cast<size_t>(got);
  }
}

void forget(std::span<uint8_t> secret) { OPENSSL_cleanse(secret.data(), secret.size()); }

}  // namespace olpager::transport
