// Runs a kernel of the pager's on the simulated GPU's interpreter, over buffers of the test alone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string_view>
#include <vector>

#include "gpunode/simgpu/ptx/ptx.h"
#include "tests/catch.h"

namespace olpager::kernels::test {

namespace ptx = simgpu::ptx;

// Device addresses are host addresses; only the test's buffers are mapped.
class Buffers : public ptx::AddressSpace {
 public:
  template <typename T>
  uint64_t add(std::vector<T>& buffer, bool writable) {
    auto* begin = reinterpret_cast<std::byte*>(buffer.data());
    const auto address = reinterpret_cast<uint64_t>(begin);
    runs_.push_back({address, address + buffer.size() * sizeof(T), begin, writable});
    return address;
  }
  bool translate(uint64_t va, bool write, ptx::Translation& out) override {
    for (const ptx::Translation& run : runs_) {
      if (va < run.va_begin || va >= run.va_end || (write && !run.writable)) continue;
      out = run;
      return true;
    }
    return false;
  }
  const std::atomic<uint64_t>& generation() const override { return generation_; }

 private:
  std::vector<ptx::Translation> runs_;
  std::atomic<uint64_t> generation_{1};
};

class NoOutput : public ptx::PrintfSink {
  void write(std::string_view) override {}
  void assertion(std::string_view) override {}
};

struct alignas(16) Vector {
  uint64_t words[2];
};

template <typename Parameters>
void launch(const char* text, const char* name, const Parameters& parameters, ptx::Dim3 grid,
            uint32_t threads, Buffers& memory) {
  auto compiled = ptx::compile(text, {.name = name});
  if (!compiled.ok()) FAIL(compiled.error().message);
  ptx::Module& module = *compiled.value();
  REQUIRE(module.link().ok());
  const ptx::Kernel* kernel = module.kernel(name);
  REQUIRE(kernel != nullptr);
  REQUIRE(kernel->info().param_bytes == sizeof(Parameters));
  static const auto executor = ptx::makeThreadPool(2);
  NoOutput sink;
  std::atomic<bool> cancel{false};
  ptx::LaunchConfig config;
  config.grid = grid;
  config.block = {threads, 1, 1};
  config.params = {reinterpret_cast<const std::byte*>(&parameters), sizeof(parameters)};
  const ptx::LaunchResult result =
      ptx::run(module, *kernel, config, memory, *executor, sink, cancel);
  INFO(result.message);
  REQUIRE(result.ok());
  std::cout << name << ": " << static_cast<double>(result.thread_instructions) / 1e6
            << " million thread instructions\n";
}

}  // namespace olpager::kernels::test
