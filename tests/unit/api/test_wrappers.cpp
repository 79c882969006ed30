// The residency wrappers: what each kind of function names, to which stream, in which order; and
// that each calls its own.
#define __CUDA_API_VERSION_INTERNAL
#include <array>
#include <new>
#include <stdexcept>
#include <utility>

#include "interpose/api/local_functions.h"
#include "tests/catch.h"
#include "tests/unit/api/recording_pager.h"

using olpager::api::kSymbolCount;
using olpager::api::Symbol;
using olpager::local::Behaviour;
using olpager::local::localBehaviour;
using olpager::local::localFunction;

namespace {

constexpr int kRead = 1, kWrite = 2, kReadWrite = 3;
constexpr uint64_t kA = kPoolBase + 0x1000;
constexpr uint64_t kB = kPoolBase + 0x20000000;
constexpr uint64_t kOutside = 0x7f00'0000'0000;
void* const kHost = reinterpret_cast<void*>(kOutside);
CUstream const kStream = reinterpret_cast<CUstream>(0x5000);

template <size_t kIndex>
CUresult driverAnswer() {
  g_record.steps += 'd';
  g_record.symbol = static_cast<int>(kIndex);
  return g_driver_result;
}

using AnyFunction = CUresult (*)();
template <size_t... kIndices>
constexpr std::array<AnyFunction, sizeof...(kIndices)> answers(std::index_sequence<kIndices...>) {
  return {&driverAnswer<kIndices>...};
}

void fillDriver() {
  static const auto all = answers(std::make_index_sequence<kSymbolCount>());
  for (size_t i = 0; i < kSymbolCount; ++i) {
    olpager::api::setDriverFunction(recordingDriver(), static_cast<Symbol>(i),
                                    reinterpret_cast<void*>(all[i]));
  }
}

/// Calls `function` afresh.
template <typename... Parameters, typename... Arguments>
CUresult call(CUresult (*function)(Parameters...), Arguments... arguments) {
  fillDriver();
  g_record = {};
  return function(arguments...);
}

void expect(const std::vector<RecordedRange>& ranges, Symbol symbol, CUstream stream) {
  CHECK(g_record.steps == "edl");
  CHECK(g_record.symbol == static_cast<int>(symbol));
  CHECK(g_record.ranges == ranges);
  CHECK(g_record.stream.stream == stream);
  CHECK(g_record.stream.context == kContext);
}

}  // namespace

TEST_CASE("each wrapper calls the driver's function of its own name") {
  int wrapped = 0;
  for (size_t i = 0; i < kSymbolCount; ++i) {
    const Symbol symbol = static_cast<Symbol>(i);
    if (localBehaviour(symbol) != Behaviour::kWrap) continue;
    INFO(olpager::api::symbolName(symbol));
    ++wrapped;
    auto* function = reinterpret_cast<CUresult (*)(void*, void*, void*, void*, void*, void*, void*,
                                                   void*, void*)>(localFunction(symbol));
    REQUIRE(function != nullptr);
    for (const bool pool : {true, false}) {
      usePool(pool);
      CHECK(call(function, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                 nullptr) == CUDA_SUCCESS);
      CHECK(g_record.steps == "d");  // nothing in the range: straight to the driver
      CHECK(g_record.symbol == static_cast<int>(i));
    }
    usePool(true);
    // A driver without the function.
    olpager::api::setDriverFunction(recordingDriver(), symbol, nullptr);
    g_record = {};
    CHECK(function(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                   nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  }
  CHECK(wrapped > 100);
}

TEST_CASE("what is not written by hand is the driver's own") {
  CHECK(localBehaviour(Symbol::kCuMemAlloc_v2) == Behaviour::kOwn);
  CHECK(localFunction(Symbol::kCuMemAlloc_v2) == nullptr);  // not linked into this test
  CHECK(localBehaviour(Symbol::kCuDriverGetVersion) == Behaviour::kPass);
  CHECK(localFunction(Symbol::kCuDriverGetVersion) == nullptr);
  CHECK(localFunction(Symbol::kCuGLInit) == nullptr);
}

TEST_CASE("no exception leaves a wrapper") {
  g_enter_throws = [] { throw std::bad_alloc(); };
  CHECK(call(&ol_local_cuMemcpyDtoH_v2, kHost, kA, 64) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(g_record.steps == "e");  // the driver was not called
  CHECK(g_record.failed == "cuMemcpyDtoH_v2");
  g_enter_throws = [] { throw std::runtime_error("something else"); };
  CHECK(call(&ol_local_cuMemsetD8Async, kA, 1, 10, kStream) == CUDA_ERROR_UNKNOWN);
  CHECK(g_record.failed == "cuMemsetD8Async");
  g_enter_throws = nullptr;
}

TEST_CASE("without a stream, what touches managed memory is done when it returns") {
  g_managed = true;
  CHECK(call(&ol_local_cuMemcpyDtoD_v2, kA, kB, 100) == CUDA_SUCCESS);
  CHECK(g_record.steps == "fedld");
  CHECK(g_record.symbol == static_cast<int>(Symbol::kCuStreamSynchronize));
  CHECK(call(&ol_local_cuMemsetD8_v2, kA, 1, 10) == CUDA_SUCCESS);
  CHECK(g_record.steps == "fedld");
  CHECK(call(&ol_local_cuMemcpyDtoDAsync_v2, kA, kB, 100, kStream) == CUDA_SUCCESS);
  CHECK(g_record.steps == "fedl");
  g_driver_result = CUDA_ERROR_INVALID_VALUE;
  CHECK(call(&ol_local_cuMemsetD8_v2, kA, 1, 10) == CUDA_ERROR_INVALID_VALUE);
  CHECK(g_record.steps == "fedl");
  g_driver_result = CUDA_SUCCESS;
  g_managed = false;
}

TEST_CASE("a copy that waits inside the driver is made when its stream is done") {
  g_managed = true;
  for (const bool sync : {true, false}) {
    const auto out = [&] {
      return sync ? call(&ol_local_cuMemcpyDtoH_v2, kHost, kA, 16)
                  : call(&ol_local_cuMemcpyDtoHAsync_v2, kHost, kA, 16, kStream);
    };
    CHECK(out() == CUDA_SUCCESS);
    CHECK(g_record.steps == (sync ? "wfedld" : "wfedl"));
  }
  // The driver takes what comes from the host in stream order, or it is waited for.
  CHECK(call(&ol_local_cuMemcpyHtoDAsync_v2, kA, kHost, 16, kStream) == CUDA_SUCCESS);
  CHECK(g_record.steps == "fedl");
  CHECK(call(&ol_local_cuMemcpyHtoD_v2, kA, kHost, 16) == CUDA_SUCCESS);
  CHECK(g_record.steps == "wfedld");
  // Boxes.
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE, box.srcDevice = kA, box.srcPitch = 8;
  box.dstMemoryType = CU_MEMORYTYPE_HOST, box.dstHost = kHost, box.dstPitch = 8;
  box.WidthInBytes = 8, box.Height = 2;
  CHECK(call(&ol_local_cuMemcpy2DAsync_v2, &box, kStream) == CUDA_SUCCESS);
  CHECK(g_record.steps == "wfedl");
  g_managed = false;
  CHECK(call(&ol_local_cuMemcpyDtoH_v2, kHost, kA, 16) == CUDA_SUCCESS);
  CHECK(g_record.steps == "edl");
}

TEST_CASE("copies name both sides") {
  CHECK(call(&ol_local_cuMemcpyDtoDAsync_v2, kA, kB, 100, kStream) == CUDA_SUCCESS);
  expect({{kA, 100, kWrite}, {kB, 100, kRead}}, Symbol::kCuMemcpyDtoDAsync_v2, kStream);
  CHECK(call(&ol_local_cuMemcpy, kA, kB, 100) == CUDA_SUCCESS);
  expect({{kA, 100, kWrite}, {kB, 100, kRead}}, Symbol::kCuMemcpy, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemcpyPeerAsync_ptsz, kA, nullptr, kB, nullptr, 100, nullptr) ==
        CUDA_SUCCESS);
  expect({{kA, 100, kWrite}, {kB, 100, kRead}}, Symbol::kCuMemcpyPeerAsync_ptsz,
         CU_STREAM_PER_THREAD);
  CHECK(call(&ol_local_cuMemcpyDtoH_v2, kHost, kA, 64) == CUDA_SUCCESS);
  expect({{kA, 64, kRead}}, Symbol::kCuMemcpyDtoH_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemcpyDtoA_v2, nullptr, 0, kA, 64) == CUDA_SUCCESS);
  expect({{kA, 64, kRead}}, Symbol::kCuMemcpyDtoA_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemcpyAtoD_v2, kA, nullptr, 0, 64) == CUDA_SUCCESS);
  expect({{kA, 64, kWrite}}, Symbol::kCuMemcpyAtoD_v2, CU_STREAM_LEGACY);
  // By unified addressing a "host" pointer may be device memory.
  CHECK(call(&ol_local_cuMemcpyHtoD_v2, kOutside, reinterpret_cast<void*>(kA), 64) == CUDA_SUCCESS);
  expect({{kA, 64, kRead}}, Symbol::kCuMemcpyHtoD_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemcpyDtoH_v2_ptds, reinterpret_cast<void*>(kA), kOutside, 64) ==
        CUDA_SUCCESS);
  expect({{kA, 64, kWrite}}, Symbol::kCuMemcpyDtoH_v2_ptds, CU_STREAM_PER_THREAD);
}

TEST_CASE("what comes from outside the pool may bring addresses with it") {
  CHECK(call(&ol_local_cuMemcpyHtoD_v2, kA, kHost, 64) == CUDA_SUCCESS);
  expect({{kA, 64, kWrite}}, Symbol::kCuMemcpyHtoD_v2, CU_STREAM_LEGACY);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 64, true}});
  CHECK(call(&ol_local_cuMemcpyHtoDAsync_v2, kA, kHost, 64, kStream) == CUDA_SUCCESS);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 64, false}});
  CHECK(call(&ol_local_cuMemcpy, kA, kOutside, 64) == CUDA_SUCCESS);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 64, false}});
  CHECK(call(&ol_local_cuMemcpyDtoD_v2, kA, kB, 64) == CUDA_SUCCESS);
  CHECK(g_record.sources.empty());
  CHECK(call(&ol_local_cuStreamWriteValue64_v2, kStream, kA, kB, 0) == CUDA_SUCCESS);
  REQUIRE(g_record.sources.size() == 1);
  CHECK(g_record.sources[0].bytes == 8);
  CHECK(g_record.sources[0].stable);
}

TEST_CASE("memsets") {
  CHECK(call(&ol_local_cuMemsetD8Async, kA, 1, 10, kStream) == CUDA_SUCCESS);
  expect({{kA, 10, kWrite}}, Symbol::kCuMemsetD8Async, kStream);
  CHECK(call(&ol_local_cuMemsetD16_v2, kA, 1, 10) == CUDA_SUCCESS);
  expect({{kA, 20, kWrite}}, Symbol::kCuMemsetD16_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemsetD32Async_ptsz, kA, 1, 10, nullptr) == CUDA_SUCCESS);
  expect({{kA, 40, kWrite}}, Symbol::kCuMemsetD32Async_ptsz, CU_STREAM_PER_THREAD);
  CHECK(call(&ol_local_cuMemsetD32_v2, kA, 1, size_t{1} << 62) == CUDA_SUCCESS);
  expect({{kA, uint64_t{1} << 62, kWrite}}, Symbol::kCuMemsetD32_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemsetD2D32Async, kA, 512, 1, 16, 4, kStream) == CUDA_SUCCESS);
  expect({{kA, 3 * 512 + 64, kReadWrite}}, Symbol::kCuMemsetD2D32Async, kStream);
  CHECK(call(&ol_local_cuMemsetD2D8_v2, kA, 64, 1, 64, 4) == CUDA_SUCCESS);
  expect({{kA, 256, kWrite}}, Symbol::kCuMemsetD2D8_v2, CU_STREAM_LEGACY);
}

TEST_CASE("structures and arrays of operations") {
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = kHost;
  copy.srcPitch = 32;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = kA;
  copy.dstPitch = 64;
  copy.WidthInBytes = 32;
  copy.Height = 2;
  CHECK(call(&ol_local_cuMemcpy2DAsync_v2, &copy, kStream) == CUDA_SUCCESS);
  expect({{kA, 96, kReadWrite}}, Symbol::kCuMemcpy2DAsync_v2, kStream);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 64, false}});

  CUdeviceptr destinations[] = {kA, kOutside};
  CUdeviceptr sources[] = {kB, kB + 4096};
  size_t sizes[] = {8, 16};
  CHECK(call(&ol_local_cuMemcpyBatchAsync_v2, destinations, sources, sizes, 2, nullptr, nullptr, 0,
             kStream) == CUDA_SUCCESS);
  expect({{kB, 8, kRead}, {kA, 8, kWrite}, {kB + 4096, 16, kRead}}, Symbol::kCuMemcpyBatchAsync_v2,
         kStream);

  CUstreamBatchMemOpParams op = {};
  op.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, kA, {}, 0, 0};
  CHECK(call(&ol_local_cuStreamBatchMemOp_v2_ptsz, nullptr, 1u, &op, 0u) == CUDA_SUCCESS);
  expect({{kA, 4, kRead}}, Symbol::kCuStreamBatchMemOp_v2_ptsz, CU_STREAM_PER_THREAD);

  CUmemDecompressParams decompress = {};
  decompress.src = kHost;
  decompress.srcNumBytes = 8;
  decompress.dst = reinterpret_cast<void*>(kA);
  CHECK(call(&ol_local_cuMemBatchDecompressAsync, &decompress, 1, 0u, nullptr, kStream) ==
        CUDA_SUCCESS);
  CHECK(g_record.words == std::vector<uint64_t>{kA});
}

TEST_CASE("what is written where module variables lie is told, what is read there is not") {
  CHECK(call(&ol_local_cuMemcpyHtoD_v2, kRoot, kHost, 8) == CUDA_SUCCESS);
  expect({{kRoot, 8, kWrite}}, Symbol::kCuMemcpyHtoD_v2, CU_STREAM_LEGACY);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 8, true}});
  CHECK(call(&ol_local_cuMemcpyHtoDAsync_v2, kRoot - 8, kHost, 16, kStream) == CUDA_SUCCESS);
  expect({{kRoot - 8, 16, kWrite}}, Symbol::kCuMemcpyHtoDAsync_v2, kStream);
  CHECK(g_record.sources == std::vector<RecordedSource>{{kHost, 16, false}});
  CHECK(call(&ol_local_cuMemcpyDtoDAsync_v2, kRoot + 8, kA, 8, kStream) == CUDA_SUCCESS);
  expect({{kRoot + 8, 8, kWrite}, {kA, 8, kRead}}, Symbol::kCuMemcpyDtoDAsync_v2, kStream);
  CHECK(call(&ol_local_cuMemsetD32_v2, kRoot, 0u, 2) == CUDA_SUCCESS);
  expect({{kRoot, 8, kWrite}}, Symbol::kCuMemsetD32_v2, CU_STREAM_LEGACY);
  CHECK(call(&ol_local_cuMemcpyDtoH_v2, kHost, kRoot, 8) == CUDA_SUCCESS);
  CHECK(g_record.steps == "d");
  CHECK(call(&ol_local_cuMemcpyHtoD_v2, kRoot - 8, kHost, 8) == CUDA_SUCCESS);
  CHECK(g_record.steps == "d");

  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = kHost;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = kRoot;
  copy.WidthInBytes = 16;
  copy.Height = copy.Depth = 1;
  CHECK(call(&ol_local_cuMemcpy3DAsync_v2, &copy, kStream) == CUDA_SUCCESS);
  CHECK(g_record.ranges.size() == 1);
}

TEST_CASE("what enter refuses is not called, and what the driver answers is told") {
  g_enter_result = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK(call(&ol_local_cuMemcpyDtoD_v2, kA, kB, 64) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(g_record.steps == "e");
  g_enter_result = CUDA_SUCCESS;
  g_driver_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  CHECK(call(&ol_local_cuMemcpyDtoD_v2, kA, kB, 64) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(g_record.left_with == CUDA_ERROR_ILLEGAL_ADDRESS);
  g_driver_result = CUDA_SUCCESS;
}

TEST_CASE("in a context that has ended nothing is copied, also outside the pool") {
  const auto copies = [] {
    return call(ol_local_cuMemcpyDtoHAsync_v2, kHost, kOutside, size_t{8}, kStream);
  };
  for (CUcontext ended : {reinterpret_cast<CUcontext>(0x99), kContext}) {
    g_ended = ended;
    const bool here = ended == kContext;
    CHECK(copies() == (here ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS));
    CHECK(g_record.steps == (here ? "" : "d"));
  }
  g_ended = nullptr;
}

TEST_CASE("without a pager every call goes straight to the driver") {
  usePool(false);
  CHECK(call(&ol_local_cuMemcpyDtoD_v2, kA, kB, 64) == CUDA_SUCCESS);
  CHECK(g_record.steps == "d");
  usePool(true);
}
