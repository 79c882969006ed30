// Shared by the PTX tests: device memory made of host buffers, and a module that is compiled,
// linked and launched in a line.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpunode/simgpu/ptx/ptx.h"

namespace olpager::simgpu::ptx::test {

/// Address space over buffers of its own, with gaps between them.
class TestMemory final : public AddressSpace {
 public:
  std::uint64_t allocate(std::size_t bytes, bool writable = true) {
    const std::unique_lock lock(mutex_);
    const std::uint64_t va = next_;
    Run& run = runs_[va];
    run.storage = std::make_unique<std::byte[]>(bytes + 256);
    const auto raw = reinterpret_cast<std::uintptr_t>(run.storage.get());
    run.host = reinterpret_cast<std::byte*>((raw + 255) & ~std::uintptr_t{255});
    run.bytes = bytes;
    run.writable = writable;
    next_ += (bytes + 0x3FFFFF) & ~std::uint64_t{0x1FFFFF};
    return va;
  }
  /// Unmaps; the storage lives on, as accesses under way may need it.
  void unmap(std::uint64_t va) {
    const std::unique_lock lock(mutex_);
    const auto found = runs_.find(va);
    retired_.push_back(std::move(found->second));
    runs_.erase(found);
    generation_.fetch_add(1);
  }
  template <typename T>
  T* host(std::uint64_t va) {
    Translation t;
    if (!translate(va, false, t)) throw std::runtime_error("address is not mapped");
    return reinterpret_cast<T*>(t.host + (va - t.va_begin));
  }

  bool translate(std::uint64_t va, bool, Translation& out) override {
    const std::shared_lock lock(mutex_);
    auto found = runs_.upper_bound(va);
    if (found == runs_.begin()) return false;
    --found;
    if (va >= found->first + found->second.bytes) return false;
    out = Translation{found->first, found->first + found->second.bytes, found->second.host,
                      found->second.writable};
    return true;
  }
  const std::atomic<std::uint64_t>& generation() const override { return generation_; }

 private:
  struct Run {
    std::unique_ptr<std::byte[]> storage;
    std::byte* host = nullptr;
    std::size_t bytes = 0;
    bool writable = true;
  };
  std::shared_mutex mutex_;
  std::map<std::uint64_t, Run> runs_;
  std::vector<Run> retired_;
  std::uint64_t next_ = 0x2000'4000'0000;
  std::atomic<std::uint64_t> generation_{1};
};

class TextSink final : public PrintfSink {
 public:
  void write(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    text_ += text;
    ++messages_;
  }
  void assertion(std::string_view text) override { write(text); }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  int messages() const { return messages_; }

 private:
  std::mutex mutex_;
  std::string text_;
  int messages_ = 0;
};

inline std::string readFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The file where the build puts a kernel's PTX.
inline std::string kernelFile(const std::string& name) {
  return std::string(PTX_TEST_KERNELS) + "/" + name + ".ptx";
}

/// A linked module with its memory.
class Device {
 public:
  explicit Device(const std::string& ptx_text, unsigned threads = 0)
      : executor(makeThreadPool(threads)) {
    auto compiled = compile(ptx_text, CompileOptions{"test"});
    if (!compiled) throw std::runtime_error(compiled.error().message);
    module = compiled.value();
    const Status linked = module->link([this](const GlobalInfo& global) {
      return memory.allocate(std::max<std::size_t>(1, global.size));
    });
    if (!linked) throw std::runtime_error(linked.error().message);
    for (const GlobalInfo& global : module->globals()) {
      const auto image = module->image(global);
      std::memcpy(memory.host<std::byte>(module->globalAddress(global.name)), image.data(),
                  image.size());
    }
  }
  static Device fromFile(const std::string& name) { return Device(readFile(kernelFile(name))); }

  template <typename T>
  std::uint64_t upload(const std::vector<T>& data, bool writable = true) {
    const std::uint64_t va = memory.allocate(data.size() * sizeof(T), writable);
    std::memcpy(memory.host<T>(va), data.data(), data.size() * sizeof(T));
    return va;
  }
  template <typename T>
  std::vector<T> download(std::uint64_t va, std::size_t count) {
    const T* const p = memory.host<T>(va);
    return std::vector<T>(p, p + count);
  }

  template <typename... Args>
  LaunchResult launch(const std::string& name, Dim3 grid, Dim3 block, Args... args) {
    const Kernel* const kernel = module->kernel(name);
    if (kernel == nullptr) throw std::runtime_error("no kernel " + name);
    std::vector<std::byte> params(kernel->info().param_bytes);
    std::size_t i = 0;
    [[maybe_unused]] const auto add = [&](const auto& value) {
      const ParamInfo& info = kernel->info().params.at(i++);
      if (info.size != sizeof value) throw std::runtime_error("parameter of the wrong size");
      std::memcpy(params.data() + info.offset, &value, sizeof value);
    };
    (add(args), ...);
    if (i != kernel->info().params.size()) throw std::runtime_error("parameters missing");
    config.grid = grid;
    config.block = block;
    config.params = params;
    LaunchResult result = run(*module, *kernel, config, memory, *executor, sink, cancel);
    config.params = {};
    return result;
  }

  TestMemory memory;
  TextSink sink;
  std::unique_ptr<Executor> executor;
  std::shared_ptr<Module> module;
  LaunchConfig config;
  std::atomic<bool> cancel{false};
};

}  // namespace olpager::simgpu::ptx::test
