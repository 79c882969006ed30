// OpenSSL as this project uses it, apart from the host program's.
#pragma once

#include <openssl/types.h>

namespace olpager::transport {

/// Everything of OpenSSL's is private to this library context: nothing is read from the system's
/// openssl.cnf. Made at the first call and never freed; null where memory is short. Any thread.
OSSL_LIB_CTX* opensslLibrary();

}  // namespace olpager::transport
