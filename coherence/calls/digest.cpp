#include "coherence/calls/digest.h"

#include <openssl/evp.h>

namespace olpager::calls {

bool digestOf(std::span<const std::byte> bytes, Digest& digest) {
  unsigned length = 0;
  digest = {};
  return EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) ==
             1 &&
         length == digest.size();
}

}  // namespace olpager::calls
