// Managed buffers of some pages, which kernels and host functions of one stream change in turns,
// and the value that each of the used words has then. A kernel finds a buffer by its address, or by
// the table alone.
#pragma once

#include <unistd.h>

#include "common.h"

constexpr size_t kPageWords = (size_t{2} << 20) / 4, kPages = 3;
constexpr uint32_t kBuffers = 4, kUsed = 32;

__global__ void change(uint32_t* buffer, uint32_t factor, uint32_t add) {
  uint32_t& word = buffer[size_t{blockIdx.x} * kPageWords + threadIdx.x];
  word = word * factor + add;
}

/// Each kKernel is a kernel of its own, which a driver may load by itself.
template <int kKernel>
__global__ void changeThrough(uint32_t** table, uint32_t which, uint32_t factor, uint32_t add) {
  uint32_t& word = table[which][size_t{blockIdx.x} * kPageWords + threadIdx.x];
  word = word * factor + add + kKernel;
}

class HostChanges {
 public:
  explicit HostChanges(cudaStream_t stream) : stream_(stream) {
    for (uint32_t*& buffer : buffers_) {
      RUNTIME_OK(cudaMallocManaged(&buffer, kPages * kPageWords * 4));
      std::memset(buffer, 0, kPages * kPageWords * 4);
    }
    RUNTIME_OK(cudaMalloc(&table_, sizeof buffers_));
    RUNTIME_OK(cudaMemcpy(table_, buffers_, sizeof buffers_, cudaMemcpyHostToDevice));
  }

  void byKernel(uint32_t which, uint32_t factor, uint32_t add) {
    change<<<kPages, kUsed, 0, stream_>>>(buffers_[which], factor, add);
    expect(which, factor, add);
  }
  template <int kKernel>
  void byTable(uint32_t which, uint32_t factor, uint32_t add) {
    changeThrough<kKernel><<<kPages, kUsed, 0, stream_>>>(table_, which, factor, add);
    expect(which, factor, add + kKernel);
  }
  /// By a host function, which sleeps before.
  void byHost(uint32_t which, uint32_t add, useconds_t after) {
    RUNTIME_OK(cudaLaunchHostFunc(stream_, onHost, new Change{buffers_[which], add, after}));
    expect(which, kHostFactor, add);
  }

  const uint32_t* buffer(uint32_t which) const { return buffers_[which]; }
  uint32_t expected(uint32_t which) const { return expected_[which]; }
  /// Once the stream is synchronised.
  void check() const {
    for (uint32_t which = 0; which < kBuffers; ++which)
      for (size_t page = 0; page < kPages; ++page)
        for (uint32_t i = 0; i < kUsed; ++i)
          CHECK(buffers_[which][page * kPageWords + i] == expected_[which],
                "buffer %u has %#x, not %#x", which, buffers_[which][page * kPageWords + i],
                expected_[which]);
  }

 private:
  static constexpr uint32_t kHostFactor = 5;
  struct Change {
    uint32_t* buffer;
    uint32_t add;
    useconds_t after;
  };
  static void onHost(void* data) {
    const auto* const made = static_cast<Change*>(data);
    if (made->after != 0) usleep(made->after);
    for (size_t page = 0; page < kPages; ++page)
      for (uint32_t i = 0; i < kUsed; ++i) {
        uint32_t& word = made->buffer[page * kPageWords + i];
        word = word * kHostFactor + made->add;
      }
    delete made;
  }
  void expect(uint32_t which, uint32_t factor, uint32_t add) {
    expected_[which] = expected_[which] * factor + add;
  }

  cudaStream_t stream_;
  uint32_t* buffers_[kBuffers] = {};
  uint32_t** table_ = nullptr;
  uint32_t expected_[kBuffers] = {};
};
