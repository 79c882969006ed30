#include "disk/cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/mman.h>

#include <array>
#include <cstring>

#include "coherence/transport/trust/openssl_library.h"

namespace olpager::disk {

Result<std::unique_ptr<CipherKey>> CipherKey::make() {
  std::unique_ptr<CipherKey> key(new CipherKey);
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Error{"disk: no memory is left for the key of what is written"};
  key->bytes_ = static_cast<uint8_t*>(page);
  (void)madvise(page, kPage, MADV_DONTDUMP);
  (void)madvise(page, kPage, MADV_WIPEONFORK);
  (void)mlock(page, kPage);
  OSSL_LIB_CTX* const library = transport::opensslLibrary();
  if (library == nullptr || RAND_priv_bytes_ex(library, key->bytes_, kBytes, 256) != 1)
    return Error{
        "disk: no key for what is written can be made, since the system gives no random numbers; "
        "disk_encrypt = off writes it as it is"};
  return key;
}

CipherKey::~CipherKey() {
  if (bytes_ == nullptr) return;
  OPENSSL_cleanse(bytes_, kBytes);
  munmap(bytes_, kPage);
}

Result<std::unique_ptr<PageCipher>> PageCipher::make(const CipherKey& key) {
  std::unique_ptr<PageCipher> made(new PageCipher);
  EVP_CIPHER* const method = EVP_CIPHER_fetch(transport::opensslLibrary(), "AES-256-XTS", nullptr);
  made->encrypting_ = EVP_CIPHER_CTX_new();
  made->decrypting_ = EVP_CIPHER_CTX_new();
  constexpr std::array<uint8_t, 16> kFirst{};
  const auto starts = [&](EVP_CIPHER_CTX* context, int encrypts) {
    return method != nullptr && context != nullptr &&
           EVP_CipherInit_ex2(context, method, key.bytes_, kFirst.data(), encrypts, nullptr) == 1;
  };
  const bool well = starts(made->encrypting_, 1) && starts(made->decrypting_, 0);
  EVP_CIPHER_free(method);
  if (!well)
    return Error{
        "disk: AES-256-XTS can't be started (is memory short?); disk_encrypt = off writes pages as "
        "they are"};
  return made;
}

PageCipher::~PageCipher() {
  EVP_CIPHER_CTX_free(encrypting_);
  EVP_CIPHER_CTX_free(decrypting_);
}

bool PageCipher::run(EVP_CIPHER_CTX* context, uint64_t number, const void* from, void* to,
                     size_t bytes) {
  std::array<uint8_t, 16> tweak{};
  std::memcpy(tweak.data(), &number, sizeof number);
  int length = 0;
  return EVP_CipherInit_ex2(context, nullptr, nullptr, tweak.data(), -1, nullptr) == 1 &&
         EVP_CipherUpdate(context, static_cast<uint8_t*>(to), &length,
                          static_cast<const uint8_t*>(from), static_cast<int>(bytes)) == 1 &&
         static_cast<size_t>(length) == bytes;
}

}  // namespace olpager::disk
