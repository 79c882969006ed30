// Copies of every size and shape between pinned, registered, managed and device memory in one
// stream, with kernels, memsets, host functions and the CPU changing all of them in between, and
// nothing waited for but where the CPU looks. The result is that of the same steps on plain memory.
#include "common.h"

namespace {

// The host's buffers: pinned, registered, managed.
constexpr size_t kDevices = 3, kPinned = 4, kRegistered = 2, kHosts = kPinned + kRegistered + 2;

__global__ void addBytes(uint8_t* at, uint32_t count, uint8_t value) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) at[i] = uint8_t(at[i] + value);
}

/// A buffer and what has to be in it when the stream is done.
struct Buffer {
  uint8_t* at = nullptr;     // as the CPU reaches it, if it does
  uint8_t* there = nullptr;  // as kernels do
  std::vector<uint8_t> model;
};

struct Addition {
  uint8_t* at;
  size_t count;
  uint8_t value;
};

void addOnCpu(void* data) {
  const auto* const what = static_cast<Addition*>(data);
  for (size_t i = 0; i < what->count; ++i) what->at[i] = uint8_t(what->at[i] + what->value);
  delete what;
}

class Steps {
 public:
  explicit Steps(const apps::Options& options) : random_(options.seed) {
    RUNTIME_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (size_t i = 0; i < kDevices + kHosts; ++i) {
      Buffer& buffer = buffers_[i];
      const size_t bytes =
          i % 2 == 0 ? 5'000 + random_.below(9'000) : options.bytes / 8 + random_.below(3'000);
      buffer.model.assign(bytes, 0);
      if (i < kDevices) {
        RUNTIME_OK(cudaMalloc(&buffer.at, bytes));
      } else if (i < kDevices + kPinned) {
        RUNTIME_OK(cudaHostAlloc(&buffer.at, bytes, cudaHostAllocMapped));
      } else if (isRegistered(i)) {
        constexpr size_t kPage = 4096;
        buffer.at =
            static_cast<uint8_t*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
        RUNTIME_OK(cudaHostRegister(buffer.at, bytes, cudaHostRegisterMapped));
      } else {
        RUNTIME_OK(cudaMallocManaged(&buffer.at, bytes));
      }
      buffer.there = buffer.at;
      if (isRegistered(i)) RUNTIME_OK(cudaHostGetDevicePointer(&buffer.there, buffer.at, 0));
      for (auto& byte : buffer.model) byte = uint8_t(random_.next());
      if (i < kDevices)
        RUNTIME_OK(cudaMemcpy(buffer.at, buffer.model.data(), bytes, cudaMemcpyHostToDevice));
      else
        std::memcpy(buffer.at, buffer.model.data(), bytes);
    }
  }

  void step() {
    switch (random_.below(9)) {
      case 0:
      case 1:
        return copy(true);
      case 2:
        return copy(false);
      case 3:
        return rectangle();
      case 4:
        return kernel();
      case 5:
        return function();
      case 6:
        return byCpu();
      case 7:
        return fill();
      default:
        return copyAcross();
    }
  }

  void check() {
    RUNTIME_OK(cudaStreamSynchronize(stream_));
    for (size_t i = 0; i < kDevices + kHosts; ++i) {
      std::vector<uint8_t> got(buffers_[i].model.size());
      if (i < kDevices)
        RUNTIME_OK(cudaMemcpy(got.data(), buffers_[i].at, got.size(), cudaMemcpyDeviceToHost));
      else
        std::memcpy(got.data(), buffers_[i].at, got.size());
      for (size_t at = 0; at < got.size(); ++at)
        CHECK(got[at] == buffers_[i].model[at],
              "after step %zu: buffer %zu has %#x at %zu, not %#x", steps_, i, got[at], at,
              buffers_[i].model[at]);
    }
  }

  void run(size_t steps) {
    for (steps_ = 1; steps_ <= steps; ++steps_) {
      step();
      if (random_.below(40) == 0) check();
    }
    check();
  }

  ~Steps() {
    for (size_t i = 0; i < kDevices + kHosts; ++i) {
      const bool pinned = i >= kDevices && i < kDevices + kPinned;
      if (isRegistered(i)) {
        RUNTIME_OK(cudaHostUnregister(buffers_[i].at));
        std::free(buffers_[i].at);
      } else {
        RUNTIME_OK(pinned ? cudaFreeHost(buffers_[i].at) : cudaFree(buffers_[i].at));
      }
    }
    cudaStreamDestroy(stream_);
  }

 private:
  static bool isRegistered(size_t i) {
    return i >= kDevices + kPinned && i < kDevices + kPinned + kRegistered;
  }
  Buffer& device() { return buffers_[random_.below(kDevices)]; }
  Buffer& any() { return buffers_[random_.below(kDevices + kHosts)]; }
  Buffer& host() { return buffers_[kDevices + random_.below(kHosts)]; }

  /// Some bytes that both have, often only a few, now and then all.
  size_t some(size_t most) {
    const uint64_t kind = random_.below(4);
    return kind == 0 ? most : 1 + random_.below(kind == 1 ? most : most < 700 ? most : 700);
  }

  // Either way, waited for or not.
  void copy(bool in_order) {
    const bool to_device = random_.below(2) == 0;
    Buffer& near = host();
    Buffer& far = device();
    const size_t bytes =
        some(near.model.size() < far.model.size() ? near.model.size() : far.model.size());
    const size_t at = random_.below(near.model.size() - bytes + 1),
                 there = random_.below(far.model.size() - bytes + 1);
    uint8_t* const to = to_device ? far.at + there : near.at + at;
    const uint8_t* const from = to_device ? near.at + at : far.at + there;
    const auto kind = random_.below(2) == 0 ? cudaMemcpyDefault
                      : to_device           ? cudaMemcpyHostToDevice
                                            : cudaMemcpyDeviceToHost;
    if (in_order) {
      RUNTIME_OK(cudaMemcpyAsync(to, from, bytes, kind, stream_));
    } else {
      RUNTIME_OK(cudaStreamSynchronize(stream_));
      RUNTIME_OK(cudaMemcpy(to, from, bytes, kind));
    }
    if (to_device)
      std::memcpy(far.model.data() + there, near.model.data() + at, bytes);
    else
      std::memcpy(near.model.data() + at, far.model.data() + there, bytes);
  }

  // A rectangle with other distances between the rows on both sides.
  void rectangle() {
    const bool to_device = random_.below(2) == 0;
    Buffer& near = host();
    Buffer& far = device();
    const size_t width = 1 + random_.below(60), height = 1 + random_.below(40);
    const size_t near_pitch = width + random_.below(20), far_pitch = width + random_.below(20);
    const size_t at = random_.below(near.model.size() - near_pitch * height),
                 there = random_.below(far.model.size() - far_pitch * height);
    if (to_device)
      RUNTIME_OK(cudaMemcpy2DAsync(far.at + there, far_pitch, near.at + at, near_pitch, width,
                                   height, cudaMemcpyHostToDevice, stream_));
    else
      RUNTIME_OK(cudaMemcpy2DAsync(near.at + at, near_pitch, far.at + there, far_pitch, width,
                                   height, cudaMemcpyDeviceToHost, stream_));
    for (size_t y = 0; y < height; ++y) {
      uint8_t* const one = near.model.data() + at + y * near_pitch;
      uint8_t* const other = far.model.data() + there + y * far_pitch;
      std::memcpy(to_device ? other : one, to_device ? one : other, width);
    }
  }

  // Only short parts of pinned memory: the kernel goes over the link.
  void kernel() {
    const bool pinned = random_.below(3) == 0;
    Buffer& buffer = pinned ? host() : device();
    const size_t count = some(pinned ? 3'000 : buffer.model.size());
    const size_t at = random_.below(buffer.model.size() - count + 1);
    const uint8_t value = uint8_t(random_.next());
    addBytes<<<apps::blocks(count), 256, 0, stream_>>>(buffer.there + at, uint32_t(count), value);
    RUNTIME_OK(cudaGetLastError());
    for (size_t i = 0; i < count; ++i) buffer.model[at + i] = uint8_t(buffer.model[at + i] + value);
  }

  void function() {
    Buffer& buffer = host();
    const size_t count = some(2'000), at = random_.below(buffer.model.size() - count + 1);
    const uint8_t value = uint8_t(random_.next());
    RUNTIME_OK(cudaLaunchHostFunc(stream_, addOnCpu, new Addition{buffer.at + at, count, value}));
    for (size_t i = 0; i < count; ++i) buffer.model[at + i] = uint8_t(buffer.model[at + i] + value);
  }

  void byCpu() {
    Buffer& buffer = host();
    const size_t count = some(buffer.model.size()),
                 at = random_.below(buffer.model.size() - count + 1);
    RUNTIME_OK(cudaStreamSynchronize(stream_));
    for (size_t i = 0; i < count; ++i)
      buffer.at[at + i] = buffer.model[at + i] = uint8_t(buffer.model[at + i] * 5 + i);
  }

  // Fills any memory, waited for or not.
  void fill() {
    Buffer& to = any();
    const size_t words = some(to.model.size() / 4),
                 at = random_.below(to.model.size() / 4 - words + 1) * 4;
    const int value = int(random_.below(256));
    const bool in_order = random_.below(2) == 0;
    if (in_order) {
      RUNTIME_OK(cudaMemsetAsync(to.there + at, value, words * 4, stream_));
    } else {
      RUNTIME_OK(cudaStreamSynchronize(stream_));
      RUNTIME_OK(cudaMemset(to.there + at, value, words * 4));
      RUNTIME_OK(cudaDeviceSynchronize());
    }
    std::memset(to.model.data() + at, value, words * 4);
  }

  // Between any two, as if they were both of the device.
  void copyAcross() {
    Buffer& to = any();
    Buffer& from = any();
    if (&to == &from) return;
    const size_t bytes =
        some(to.model.size() < from.model.size() ? to.model.size() : from.model.size());
    RUNTIME_OK(cudaMemcpyAsync(to.there, from.there, bytes, cudaMemcpyDefault, stream_));
    std::memcpy(to.model.data(), from.model.data(), bytes);
  }

  apps::Random random_;
  cudaStream_t stream_;
  Buffer buffers_[kDevices + kHosts];
  size_t steps_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kSteps = 400;
  {
    Steps steps(options);
    steps.run(kSteps);
  }
  return apps::ok("%zu steps with pinned memory, seed %llu", kSteps,
                  (unsigned long long)options.seed);
}
