// A program that brings its own C++ runtime, linked in, and uses OpenSSL and oneTBB, which
// libraries below it may have been built with as well: exceptions, streams and locales work, tasks
// of TBB copy and compute on the GPU, and OpenSSL agrees with itself on what came back.
#include <openssl/evp.h>
#include <tbb/parallel_for.h>

#include <array>
#include <atomic>
#include <sstream>
#include <stdexcept>
#include <string>

#include "common.h"

namespace {

using Digest = std::array<unsigned char, 32>;

Digest digestOf(const void* bytes, size_t length) {
  Digest digest{};
  unsigned got = 0;
  if (EVP_Digest(bytes, length, digest.data(), &got, EVP_sha256(), nullptr) != 1 ||
      got != digest.size())
    throw std::runtime_error("EVP_Digest failed");
  return digest;
}

void need(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::ostringstream text;
  text << what << " failed with " << int(result);
  throw std::runtime_error(text.str());
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  constexpr size_t kPiece = size_t{2} << 20;
  const int pieces = int(options.bytes / kPiece);
  DRIVER_OK(cuInit(0));
  CUcontext context;
  DRIVER_OK(cuDevicePrimaryCtxRetain(&context, 0));
  DRIVER_OK(cuCtxSetCurrent(context));
  std::vector<CUdeviceptr> device(size_t(pieces) * 2);
  for (CUdeviceptr& p : device) DRIVER_OK(cuMemAlloc(&p, kPiece));
  std::vector<Digest> before(size_t(pieces), Digest{});
  std::atomic<int> right{0};
  const auto task = [&](int i) {
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::vector<uint32_t> words(kPiece / 4);
    for (size_t w = 0; w < words.size(); ++w)
      words[w] = apps::word(uint32_t(w), uint32_t(options.seed) + uint32_t(i));
    before[size_t(i)] = digestOf(words.data(), kPiece);
    need(cuMemcpyHtoD(device[size_t(i)], words.data(), kPiece), "cuMemcpyHtoD");
    need(cuMemcpyDtoD(device[size_t(pieces + i)], device[size_t(i)], kPiece), "cuMemcpyDtoD");
    need(cuMemsetD32(device[size_t(i)], uint32_t(i), kPiece / 4), "cuMemsetD32");
  };
  const auto check = [&](int i) {
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::vector<uint32_t> words(kPiece / 4);
    need(cuMemcpyDtoH(words.data(), device[size_t(pieces + i)], kPiece), "cuMemcpyDtoH");
    if (digestOf(words.data(), kPiece) != before[size_t(i)])
      throw std::runtime_error("piece " + std::to_string(i) + " differs");
    need(cuMemcpyDtoH(words.data(), device[size_t(i)], kPiece), "cuMemcpyDtoH");
    for (const uint32_t word : words)
      if (word != uint32_t(i))
        throw std::runtime_error("the set piece " + std::to_string(i) + " differs");
    ++right;
  };
  try {
    tbb::parallel_for(0, pieces, task);
    for (int round = 0; round < 2; ++round) tbb::parallel_for(0, pieces, check);
  } catch (const std::exception& error) {
    apps::fail("%s", error.what());
  }
  CHECK(right == 2 * pieces, "%d of %d checks were made", right.load(), 2 * pieces);
  // An exception that starts below a call through the driver's library, in a task, ends above it.
  int caught = 0;
  for (int round = 0; round < 3; ++round) {
    try {
      tbb::parallel_for(0, 8, [&](int i) {
        CUdeviceptr p = 0;
        need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        need(cuMemAlloc(&p, 0), i % 2 == 0 ? "cuMemAlloc of nothing" : "cuMemAlloc of 0 bytes");
      });
    } catch (const std::runtime_error& error) {
      caught += std::string(error.what()).find("failed with 1") != std::string::npos;
    }
  }
  CHECK(caught == 3, "%d of 3 exceptions arrived", caught);
  for (CUdeviceptr p : device) DRIVER_OK(cuMemFree(p));
  DRIVER_OK(cuDevicePrimaryCtxRelease(0));
  return apps::ok("own_runtimes with %d pieces", pieces);
}
