// Shared by all programs in this folder: options, a verdict, and data that the CPU can compute
// again. A program takes --bytes (the working set) and --seed, prints "OK <what>" and exits 0, or
// says what differs and exits 1. Exit 77: the driver natively lacks what the program tests.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#ifdef __CUDACC__
#define APPS_BOTH __host__ __device__
#else
#define APPS_BOTH
#endif

namespace apps {

struct Options {
  size_t bytes = size_t{16} << 20;
  uint64_t seed = 1;
};

[[noreturn]] inline void finish(int status, const char* head, const char* format,
                                va_list arguments) {
  std::printf("%s ", head);
  std::vprintf(format, arguments);
  std::printf("\n");
  std::fflush(stdout);
  std::exit(status);
}

/// Says what differs and ends the program with 1.
[[noreturn]] inline void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish(1, "FAILED", format, arguments);
}

/// Ends the program with 77: the driver can't do what is tested here, pager or not.
[[noreturn]] inline void skip(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish(77, "SKIPPED", format, arguments);
}

/// The verdict of a program that got to its end.
inline int ok(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::printf("OK ");
  std::vprintf(format, arguments);
  std::printf("\n");
  va_end(arguments);
  return 0;
}

inline Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--bytes") == 0)
      options.bytes = std::strtoull(argv[i + 1], nullptr, 0);
    if (std::strcmp(argv[i], "--seed") == 0) options.seed = std::strtoull(argv[i + 1], nullptr, 0);
  }
  if (options.bytes < (size_t{1} << 20)) fail("--bytes has to be 1 MiB at least");
  return options;
}

/// A word that depends on its place and the seed: what buffers are filled with.
APPS_BOTH inline uint32_t word(uint32_t index, uint32_t seed) {
  uint32_t x = index * 2654435761u ^ (seed * 0x9E3779B9u + 0x7F4A7C15u);
  x ^= x >> 15;
  return x * 0x2C1B3C6Du;
}

/// splitmix64: a small seeded generator for sizes and orders.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t limit) { return next() % limit; }

 private:
  uint64_t state_;
};

}  // namespace apps

// NOLINTBEGIN(cppcoreguidelines-macro-usage): they name the place of the call.
#define RUNTIME_OK(call)                                                  \
  do {                                                                    \
    const cudaError_t rc_ = (call);                                       \
    if (rc_ != cudaSuccess)                                               \
      apps::fail("%s:%d: %s: %d %s", __FILE__, __LINE__, #call, int(rc_), \
                 cudaGetErrorString(rc_));                                \
  } while (0)

#define DRIVER_OK(call)                                                          \
  do {                                                                           \
    const CUresult rc_ = (call);                                                 \
    if (rc_ != CUDA_SUCCESS)                                                     \
      apps::fail("%s:%d: %s: CUresult %d", __FILE__, __LINE__, #call, int(rc_)); \
  } while (0)

#define CHECK(condition, ...)                  \
  do {                                         \
    if (!(condition)) apps::fail(__VA_ARGS__); \
  } while (0)
// NOLINTEND(cppcoreguidelines-macro-usage)

#ifdef __CUDACC__
namespace apps {

/// 16 bytes a thread: cheap for an interpreter and still every byte.
static __global__ void fillKernel(uint4* out, uint32_t count, uint32_t seed) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint32_t v = word(i, seed);
  out[i] = make_uint4(v, v + 1, v + 2, v + 3);
}

static __global__ void addKernel(uint4* out, uint32_t count, uint32_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint4 v = out[i];
  v.x += value, v.y += value, v.z += value, v.w += value;
  out[i] = v;
}

inline unsigned blocks(size_t threads, unsigned block = 256) {
  return unsigned((threads + block - 1) / block);
}

/// buffer[i] = what fillKernel writes. `bytes` is a multiple of 16.
inline void fill(void* buffer, size_t bytes, uint32_t seed, cudaStream_t stream = nullptr) {
  fillKernel<<<blocks(bytes / 16), 256, 0, stream>>>(static_cast<uint4*>(buffer),
                                                     uint32_t(bytes / 16), seed);
  RUNTIME_OK(cudaGetLastError());
}

/// Adds `value` to every 32-bit word.
inline void add(void* buffer, size_t bytes, uint32_t value, cudaStream_t stream = nullptr) {
  addKernel<<<blocks(bytes / 16), 256, 0, stream>>>(static_cast<uint4*>(buffer),
                                                    uint32_t(bytes / 16), value);
  RUNTIME_OK(cudaGetLastError());
}

/// Skips the program where there is one device only.
inline void needTwoDevices() {
  int devices = 0;
  RUNTIME_OK(cudaGetDeviceCount(&devices));
  if (devices < 2) skip("one device only");
}

/// Compares host words with fill(seed) followed by add(value).
inline void verifyHost(const uint32_t* got, size_t bytes, uint32_t seed, uint32_t value,
                       const char* what) {
  for (size_t i = 0; i < bytes / 4; ++i) {
    const uint32_t expected = word(uint32_t(i / 4), seed) + uint32_t(i % 4) + value;
    if (got[i] != expected) fail("%s: word %zu is %#x, expected %#x", what, i, got[i], expected);
  }
}

/// The same for device memory, by a synchronous copy.
inline void verify(const void* buffer, size_t bytes, uint32_t seed, uint32_t value,
                   const char* what) {
  std::vector<uint32_t> got(bytes / 4);
  RUNTIME_OK(cudaMemcpy(got.data(), buffer, bytes, cudaMemcpyDeviceToHost));
  verifyHost(got.data(), bytes, seed, value, what);
}

/// Buffers that fill `bytes` and are used now and then, so that what was used before them becomes
/// the eviction's victim.
class Pressure {
 public:
  Pressure(size_t bytes, size_t piece = size_t{2} << 20) : piece_(piece) {
    for (size_t done = 0; done < bytes; done += piece) {
      void* p = nullptr;
      RUNTIME_OK(cudaMalloc(&p, piece));
      pieces_.push_back(p);
    }
    for (size_t i = 0; i < pieces_.size(); ++i) fill(pieces_[i], piece_, uint32_t(i));
    RUNTIME_OK(cudaDeviceSynchronize());  // apply() may be given a stream that waits for no other
  }
  Pressure(const Pressure&) = delete;
  Pressure& operator=(const Pressure&) = delete;
  ~Pressure() {
    for (void* p : pieces_) cudaFree(p);
  }
  /// Uses every buffer once; each is written.
  void apply(cudaStream_t stream = nullptr) {
    ++rounds_;
    for (void* p : pieces_)
      addKernel<<<blocks(piece_ / 16 / 16), 256, 0, stream>>>(static_cast<uint4*>(p),
                                                              uint32_t(piece_ / 16 / 16), 1);
    RUNTIME_OK(cudaGetLastError());
  }
  /// That no buffer lost a write.
  void check() const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      verify(pieces_[i], piece_ / 16, uint32_t(i), rounds_, "pressure buffer");
    }
  }

 private:
  size_t piece_;
  uint32_t rounds_ = 0;
  std::vector<void*> pieces_;
};

}  // namespace apps
#endif  // __CUDACC__
