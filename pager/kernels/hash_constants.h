// Constants of the page hash, shared by the kernel and the C++ reference. Any odd numbers without
// structure serve; these are digits of the fractional part of the square roots of 2 to 53 in
// hexadecimal, made odd.
#pragma once

#define OLPAGER_KEY_SEED 0x6a09e667f3bcc908ull
/// Generator of the keys of one thread: k(t, i + 1) = k(t, i) * this; 5 mod 8 for the longest
/// period.
#define OLPAGER_KEY_STEP 0xbb67ae8584caa73dull
/// The hash of no words.
#define OLPAGER_HASH_LOW 0x3c6ef372fe94f82bull
#define OLPAGER_HASH_HIGH 0xa54ff53a5f1d36f1ull
/// L(lane): {low, high} for the eight words that one key serves.
#define OLPAGER_LANE_KEYS                                                                         \
  {0x510e527fade682d1ull, 0x9b05688c2b3e6c1full}, {0x1f83d9abfb41bd6bull, 0x5be0cd19137e2179ull}, \
      {0xcbbb9d5dc1059ed9ull, 0x629a292a367cd507ull},                                             \
      {0x9159015a3070dd17ull, 0x152fecd8f70e5939ull},                                             \
      {0x67332667ffc00b31ull, 0x8eb44a8768581511ull},                                             \
      {0xdb0c2e0d64f98fa7ull, 0x47b5481dbefa4fa5ull},                                             \
      {0xae5f9156e7b6d99bull, 0xcf6c85d39d1a1e15ull}, {                                           \
    0x2f73477d6a4563cbull, 0x6d1826cafd82e1edull                                                  \
  }
