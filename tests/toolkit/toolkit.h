// Shared by the programs here. Each uses one library of the toolkit, compares what the GPU computed
// with the CPU, and ends with one line on standard output:
//   NAME: ok ...          0; what follows is the same wherever the program runs on the same GPU
//   NAME: WRONG ...       1: a result is not what it has to be
//   NAME: no result ...   3: a call of the library or of CUDA failed, and said so
// Before it, "NAME: started" once the library has made its handles.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace toolkit {

inline const char* g_name = "";

[[noreturn]] inline void finish(int status, const char* verdict, const char* format,
                                va_list arguments) {
  std::printf("%s: %s ", g_name, verdict);
  std::vprintf(format, arguments);
  std::printf("\n");
  std::fflush(stdout);
  std::exit(status);
}
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void wrong(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish(1, "WRONG", format, arguments);
}
[[noreturn]] __attribute__((format(printf, 1, 2))) inline void ok(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  finish(0, "ok", format, arguments);
}
[[noreturn]] inline void failed(const char* what, int status) {
  std::printf("%s: no result: %s: %d\n", g_name, what, status);
  std::fflush(stdout);
  std::exit(3);
}
inline void started() {
  std::printf("%s: started\n", g_name);
  std::fflush(stdout);
}

/// FNV-1a over everything that is added.
class Hash {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); ++i)
      hash_ = (hash_ ^ bytes[i]) * 0x100000001b3ull;
  }
  unsigned long long value() const { return hash_; }

 private:
  unsigned long long hash_ = 0xcbf29ce484222325ull;
};

/// In [-1, 1), depends on seed and place alone.
inline float number(uint32_t index, uint32_t seed) {
  uint32_t x = index * 2654435761u ^ (seed * 0x9E3779B9u + 0x7F4A7C15u);
  x ^= x >> 15;
  x *= 0x2C1B3C6Du;
  x ^= x >> 13;
  return static_cast<float>(static_cast<int32_t>(x) / 2147483648.0);
}
inline std::vector<float> numbers(size_t count, uint32_t seed) {
  std::vector<float> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = number(static_cast<uint32_t>(i), seed);
  return made;
}

/// Device memory that holds `count` elements, from and to vectors.
template <typename T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    if (const cudaError_t error = cudaMalloc(&data_, count * sizeof(T)); error != cudaSuccess)
      failed("cudaMalloc", error);
  }
  explicit Device(const std::vector<T>& from) : Device(from.size()) {
    if (const cudaError_t error =
            cudaMemcpy(data_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
        error != cudaSuccess)
      failed("cudaMemcpy to the device", error);
  }
  ~Device() { (void)cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> into(count_);
    if (const cudaError_t error =
            cudaMemcpy(into.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
        error != cudaSuccess)
      failed("cudaMemcpy from the device", error);
    return into;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

}  // namespace toolkit

// For every library: 0 is success.
#define MUST(call)                                                                                 \
  do {                                                                                             \
    if (const int status_ = static_cast<int>(call); status_ != 0) toolkit::failed(#call, status_); \
  } while (0)
