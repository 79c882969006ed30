// Pages as they lie on a disk: AES-256 in XTS mode, by a key that only this process has and that is
// written nowhere.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace olpager::disk {

/// Two keys of AES-256, forgotten with the object. The keys lie on a page of their own that is in
/// no core dump and in no forked child, and that goes to no swap where RLIMIT_MEMLOCK allows so.
/// OpenSSL's contexts in each PageCipher hold the keys too, in ordinary memory, as long as they
/// live. Thread-safety: none needed, it never changes.
class CipherKey {
 public:
  /// A key from the system's random numbers. An Error where there are none, or no page.
  static Result<std::unique_ptr<CipherKey>> make();
  ~CipherKey();
  CipherKey(const CipherKey&) = delete;
  CipherKey& operator=(const CipherKey&) = delete;

 private:
  friend class PageCipher;
  static constexpr size_t kBytes = 64, kPage = 4096;
  CipherKey() = default;
  uint8_t* bytes_ = nullptr;  // a page
};

/// Encrypts and decrypts. One page is one data unit of XTS; its tweak is `number`, which its caller
/// uses for one writing of one page alone, so that equal bytes never look equal.
///
/// Thread-safety: one thread. Errors: false, with nothing that can be used in `to`.
class PageCipher {
 public:
  /// An Error where OpenSSL has no such cipher or memory is short.
  static Result<std::unique_ptr<PageCipher>> make(const CipherKey& key);
  ~PageCipher();
  PageCipher(const PageCipher&) = delete;
  PageCipher& operator=(const PageCipher&) = delete;

  /// `bytes`: a multiple of 16, at most 16 MiB. `from` and `to` may be the same memory.
  bool encrypt(uint64_t number, const void* from, void* to, size_t bytes) {
    return run(encrypting_, number, from, to, bytes);
  }
  bool decrypt(uint64_t number, const void* from, void* to, size_t bytes) {
    return run(decrypting_, number, from, to, bytes);
  }

 private:
  PageCipher() = default;
  static bool run(EVP_CIPHER_CTX* context, uint64_t number, const void* from, void* to,
                  size_t bytes);

  EVP_CIPHER_CTX* encrypting_ = nullptr;
  EVP_CIPHER_CTX* decrypting_ = nullptr;
};

}  // namespace olpager::disk
