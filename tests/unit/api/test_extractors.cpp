// Ranges of copies and memory operations whose arguments are structures or arrays.
#include "interpose/api/range_extractors.h"

#include <tuple>
#include <vector>

#include "tests/catch.h"

using namespace olpager::api::extract;  // NOLINT(google-build-using-namespace)

namespace {

using Range = std::tuple<uint64_t, uint64_t, Use>;

class Recorder : public RangeSink {
 public:
  void add(uint64_t address, uint64_t bytes, Use use) override {
    ranges.emplace_back(address, bytes, use);
  }
  void addFrom(uint64_t address) override { open.push_back(address); }
  uint64_t arrayElementBytes(CUarray) override { return 16; }
  std::vector<Range> ranges;
  std::vector<uint64_t> open;
};

constexpr uint64_t kA = 0x2100'0000'0000;
constexpr uint64_t kB = 0x2200'0000'0000;

}  // namespace

TEST_CASE("spans saturate") {
  CHECK(span2d(512, 100, 4) == 3 * 512 + 100);
  CHECK(span2d(512, 0, 4) == 0);
  CHECK(span2d(512, 100, 0) == 0);
  CHECK(span2d(1ull << 40, 100, 1ull << 40) == UINT64_MAX);
  CHECK(saturatingProduct(1ull << 32, 1ull << 32) == UINT64_MAX);
}

TEST_CASE("a filled rectangle is written whole only when its rows touch") {
  Recorder r;
  fill2d(r, kA, 256, 256, 8);
  fill2d(r, kA, 512, 256, 8);
  fill2d(r, kA, 512, 256, 1);
  CHECK(r.ranges == std::vector<Range>{{kA, 2048, Use::kWrite},
                                       {kA, 7 * 512 + 256, Use::kReadWrite},
                                       {kA, 256, Use::kWrite}});
}

TEST_CASE("2D copies") {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = kA;
  copy.srcPitch = 1024;
  copy.srcXInBytes = 16;
  copy.srcY = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = kB;
  copy.dstPitch = 128;
  copy.WidthInBytes = 128;
  copy.Height = 10;
  Recorder r;
  copy2d(r, &copy);
  CHECK(r.ranges == std::vector<Range>{{kA + 3 * 1024 + 16, 9 * 1024 + 128, Use::kRead},
                                       {kB, 1280, Use::kWrite}});

  copy.dstPitch = 256;
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = reinterpret_cast<void*>(0x7000);
  copy.srcY = 0;
  copy.srcXInBytes = 0;
  copy.srcPitch = 0;  // packed
  Recorder host;
  copy2d(host, &copy);
  CHECK(host.ranges ==
        std::vector<Range>{{0x7000, 1280, Use::kRead}, {kB, 9 * 256 + 128, Use::kReadWrite}});

  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.Height = 0;
  Recorder nothing;
  copy2d(nothing, &copy);
  copy2d(nothing, nullptr);
  CHECK(nothing.ranges.empty());
}

TEST_CASE("3D copies, also between peers") {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = kA;
  copy.srcPitch = 100;
  copy.srcHeight = 20;
  copy.srcZ = 2;
  copy.srcY = 1;
  copy.srcXInBytes = 5;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kB;
  copy.dstPitch = 10;
  copy.dstHeight = 4;
  copy.WidthInBytes = 10;
  copy.Height = 4;
  copy.Depth = 3;
  Recorder r;
  copy3d(r, &copy);
  const uint64_t start = kA + (2 * 20 + 1) * 100 + 5;
  CHECK(r.ranges ==
        std::vector<Range>{{start, (2 * 20 + 3) * 100 + 10, Use::kRead}, {kB, 120, Use::kWrite}});

  CUDA_MEMCPY3D_PEER peer = {};
  peer.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.srcDevice = kA;
  peer.srcPitch = 64;
  peer.srcHeight = 2;
  peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.dstDevice = kB;
  peer.dstPitch = 64;
  peer.dstHeight = 8;
  peer.WidthInBytes = 64;
  peer.Height = 2;
  peer.Depth = 2;
  Recorder p;
  copy3dPeer(p, &peer);
  CHECK(p.ranges == std::vector<Range>{{kA, 256, Use::kRead}, {kB, 10 * 64, Use::kReadWrite}});
}

TEST_CASE("batches") {
  const CUdeviceptr destinations[] = {kA, kA + 4096};
  const CUdeviceptr sources[] = {kB, kB + 4096};
  const size_t sizes[] = {10, 20};
  Recorder r;
  copyBatch(r, destinations, sources, sizes, 2);
  copyBatch(r, nullptr, sources, sizes, 2);
  CHECK(r.ranges == std::vector<Range>{{kB, 10, Use::kRead},
                                       {kA, 10, Use::kWrite},
                                       {kB + 4096, 20, Use::kRead},
                                       {kA + 4096, 20, Use::kWrite}});

  CUDA_MEMCPY3D_BATCH_OP op = {};
  op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = kA;
  op.src.op.ptr.rowLength = 8;
  op.src.op.ptr.layerHeight = 4;
  op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  op.extent = {4, 2, 2};
  Recorder b;
  copy3dBatch(b, &op, 1);
  // Elements of 16 bytes: rows 128 bytes apart, 4 rows a layer.
  CHECK(b.ranges == std::vector<Range>{{kA, 5 * 128 + 64, Use::kRead}});

  CUmemDecompressParams decompress = {};
  decompress.src = reinterpret_cast<void*>(kA);
  decompress.srcNumBytes = 100;
  decompress.dst = reinterpret_cast<void*>(kB);
  decompress.dstActBytes = reinterpret_cast<cuuint32_t*>(kB + 8192);
  Recorder d;
  decompressBatch(d, &decompress, 1);
  CHECK(d.ranges == std::vector<Range>{{kA, 100, Use::kRead}, {kB + 8192, 4, Use::kWrite}});
  CHECK(d.open == std::vector<uint64_t>{kB});
}

TEST_CASE("stream memory operations") {
  CUstreamBatchMemOpParams ops[5] = {};
  ops[0].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, kA, {}, 0, 0};
  ops[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_64, kA + 8, {}, 0, 0};
  ops[2].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, kA + 16, {}, 0, 0};
  ops[3].operation = CU_STREAM_MEM_OP_BARRIER;
  ops[4].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, kA + 24, {}, 0, 0};
  Recorder r;
  memOps(r, ops, 5);
  const auto value = reinterpret_cast<uint64_t>(&ops[4].writeValue.value64);
  CHECK(r.ranges == std::vector<Range>{{kA, 4, Use::kRead},
                                       {kA + 8, 8, Use::kRead},
                                       {kA + 16, 4, Use::kWrite},
                                       {value, 8, Use::kRead},
                                       {kA + 24, 8, Use::kWrite}});
}
