// Managed memory: the CPU and the GPU take turns; files, threads and the driver itself write into
// it.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "common.h"

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  const uint32_t seed = uint32_t(options.seed);
  const size_t bytes = options.bytes / 4 & ~size_t{4095};
  apps::Pressure pressure(options.bytes / 2);  // device memory that pages meanwhile
  uint32_t* shared;
  RUNTIME_OK(cudaMallocManaged(&shared, bytes));
  for (size_t i = 0; i < bytes / 4; ++i)
    shared[i] = apps::word(uint32_t(i / 4), seed) + uint32_t(i % 4);
  for (uint32_t round = 1; round <= 2; ++round) {
    apps::add(shared, bytes, 1);
    pressure.apply();
    RUNTIME_OK(cudaDeviceSynchronize());
    apps::verifyHost(shared, bytes, seed, 2 * round - 1, "after the GPU");
    for (size_t i = 0; i < bytes / 4; ++i) ++shared[i];
  }
  apps::verifyHost(shared, bytes, seed, 4, "after the CPU");
  // Library and system calls on it, from several threads.
  char path[] = "/tmp/olpager-managed-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0, "mkstemp failed");
  unlink(path);
  CHECK(pwrite(file, shared, bytes, 0) == ssize_t(bytes), "pwrite of managed memory failed");
  std::vector<uint32_t> copy(bytes / 4);
  CHECK(pread(file, copy.data(), bytes, 0) == ssize_t(bytes), "pread failed");
  apps::verifyHost(copy.data(), bytes, seed, 4, "written to a file");
  uint32_t* target;
  RUNTIME_OK(cudaMallocManaged(&target, bytes));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const size_t part = bytes / 4;
      CHECK(pread(file, reinterpret_cast<char*>(target) + size_t(t) * part, part,
                  off_t(size_t(t) * part)) == ssize_t(part),
            "pread into managed memory failed");
    });
  }
  for (std::thread& thread : threads) thread.join();
  apps::add(target, bytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());
  apps::verifyHost(target, bytes, seed, 5, "read from a file, then the GPU");
  FILE* sink = std::fopen("/dev/null", "w");
  CHECK(std::fwrite(target, 1, bytes, sink) == bytes, "fwrite of managed memory failed");
  std::fclose(sink);
  // The driver writes an answer into it, and copies from it as from any host memory.
  struct Info {
    size_t free_bytes, total_bytes;
  } * info;
  RUNTIME_OK(cudaMallocManaged(&info, sizeof *info));
  RUNTIME_OK(cudaMemGetInfo(&info->free_bytes, &info->total_bytes));
  CHECK(info->total_bytes >= info->free_bytes && info->total_bytes > 0,
        "memory info in managed memory is %zu of %zu", info->free_bytes, info->total_bytes);
  uint32_t* device;
  RUNTIME_OK(cudaMalloc(&device, bytes));
  RUNTIME_OK(cudaMemcpy(device, target, bytes, cudaMemcpyHostToDevice));
  apps::verify(device, bytes, seed, 5, "copied from managed memory");
  // A host function and a kernel, both using it, in order.
  RUNTIME_OK(cudaLaunchHostFunc(
      nullptr, [](void* p) { ++*static_cast<uint32_t*>(p); }, target));
  apps::add(target, bytes, 1);
  RUNTIME_OK(cudaDeviceSynchronize());
  CHECK(target[0] == apps::word(0, seed) + 5 + 2, "host function and kernel left %#x", target[0]);
  pressure.check();
  RUNTIME_OK(cudaFree(shared));
  RUNTIME_OK(cudaFree(target));
  return apps::ok("managed memory of %zu KiB", bytes >> 10);
}
