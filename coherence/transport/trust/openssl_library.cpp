#include "coherence/transport/trust/openssl_library.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>

namespace olpager::transport {

OSSL_LIB_CTX* opensslLibrary() {
  static OSSL_LIB_CTX* const context = [] {
    OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
    return OSSL_LIB_CTX_new();
  }();
  return context;
}

}  // namespace olpager::transport
