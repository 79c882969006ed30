// Pieces that the device decompresses: several in one call, in stream order, with how long each has
// become; what is wrong with a call, and with which of its pieces.
#include "driver_program.h"

#if CUDA_VERSION >= 12060
namespace {

constexpr size_t kRoom = 256 << 10;

// LZ4's block format: `literals` bytes, the same again `repeated` bytes long, and the last 12 as
// they are.
std::vector<uint8_t> compressed(uint32_t seed, size_t literals, size_t repeated,
                                std::vector<uint8_t>& plain) {
  std::vector<uint8_t> block;
  plain.clear();
  for (size_t i = 0; i < literals; ++i) plain.push_back(uint8_t(apps::word(uint32_t(i), seed)));
  const auto length = [&](size_t rest) {
    for (; rest >= 255; rest -= 255) block.push_back(255);
    block.push_back(uint8_t(rest));
  };
  const size_t match = repeated - 4;
  block.push_back(uint8_t((literals < 15 ? literals : 15) << 4 | (match < 15 ? match : 15)));
  if (literals >= 15) length(literals - 15);
  block.insert(block.end(), plain.begin(), plain.end());
  block.push_back(uint8_t(literals & 255));
  block.push_back(uint8_t(literals >> 8));
  if (match >= 15) length(match - 15);
  for (size_t i = 0; i < repeated; ++i) plain.push_back(plain[plain.size() - literals]);
  block.push_back(12 << 4);
  for (uint8_t i = 0; i < 12; ++i) {
    block.push_back(i);
    plain.push_back(i);
  }
  return block;
}

}  // namespace
#endif

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
#if CUDA_VERSION < 12060
  apps::skip("the toolkit is older than 12.6");
#else
  const CUdevice device = apps::usePrimaryContext();
  int algorithms = 0;
  if (cuDeviceGetAttribute(&algorithms, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
                           device) != CUDA_SUCCESS ||
      (algorithms & CU_MEM_DECOMPRESS_ALGORITHM_LZ4) == 0)
    apps::skip("the device does not decompress LZ4");
  constexpr size_t kPieces = 5;
  std::vector<uint8_t> blocks[kPieces], plain[kPieces];
  CUmemDecompressParams pieces[kPieces] = {};
  CUdeviceptr from = 0, to = 0, actual = 0;
  DRIVER_OK(cuMemAlloc(&from, kPieces * kRoom));
  DRIVER_OK(cuMemAlloc(&to, kPieces * kRoom));
  DRIVER_OK(cuMemAlloc(&actual, kPieces * sizeof(cuuint32_t)));
  DRIVER_OK(cuMemsetD8(to, 0xee, kPieces * kRoom));
  CUstream stream = nullptr;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER_OK(cuCtxSynchronize());
  apps::Random random(options.seed);
  for (size_t i = 0; i < kPieces; ++i) {
    blocks[i] = compressed(uint32_t(options.seed + i), 1 + random.below(40000),
                           4 + random.below(100000), plain[i]);
    DRIVER_OK(cuMemcpyHtoDAsync(from + i * kRoom, blocks[i].data(), blocks[i].size(), stream));
    pieces[i].srcNumBytes = blocks[i].size();
    pieces[i].dstNumBytes = plain[i].size();
    pieces[i].dstActBytes = reinterpret_cast<cuuint32_t*>(actual + i * sizeof(cuuint32_t));
    pieces[i].src = reinterpret_cast<const void*>(from + i * kRoom);
    pieces[i].dst = reinterpret_cast<void*>(to + i * kRoom);
    pieces[i].algo = CU_MEM_DECOMPRESS_ALGORITHM_LZ4;
  }
  size_t wrong = 77;
  DRIVER_OK(cuMemBatchDecompressAsync(pieces, kPieces - 1, 0, &wrong, stream));
  DRIVER_OK(cuMemBatchDecompressAsync(pieces + kPieces - 1, 1, 0, nullptr, stream));
  // The array was read: it is the program's again.
  CUmemDecompressParams one = pieces[2];
  std::memset(pieces, 0, sizeof pieces);
  std::vector<uint8_t> got(kRoom);
  for (size_t i = 0; i < kPieces; ++i) {
    cuuint32_t bytes = 0;
    DRIVER_OK(cuMemcpyDtoHAsync(&bytes, actual + i * sizeof bytes, sizeof bytes, stream));
    DRIVER_OK(cuMemcpyDtoHAsync(got.data(), to + i * kRoom, kRoom, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    CHECK(bytes == plain[i].size(), "piece %zu: %u bytes, expected %zu", i, bytes, plain[i].size());
    CHECK(std::memcmp(got.data(), plain[i].data(), bytes) == 0, "piece %zu is another", i);
    for (size_t at = bytes; at < kRoom; ++at)
      CHECK(got[at] == 0xee, "piece %zu goes beyond its end", i);
  }

  CUmemDecompressParams pair[2] = {one, one};
  pair[1].algo = CU_MEM_DECOMPRESS_UNSUPPORTED;
  const CUresult result = cuMemBatchDecompressAsync(pair, 2, 0, &wrong, stream);
  CHECK(result != CUDA_SUCCESS && wrong == 1,
        "an algorithm that there is not: CUresult %d, piece %zu", int(result), wrong);
  CHECK(cuMemBatchDecompressAsync(pair, 1, 5, &wrong, stream) == CUDA_ERROR_INVALID_VALUE,
        "flags: piece %zu", wrong);
  DRIVER_OK(cuStreamSynchronize(stream));
  DRIVER_OK(cuStreamDestroy(stream));
  for (const CUdeviceptr memory : {from, to, actual}) DRIVER_OK(cuMemFree(memory));
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  return apps::ok("decompress: %zu pieces", kPieces);
#endif
}
