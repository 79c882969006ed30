// Decoders of a client's records: every one is given nonsense of every length, under no driver. A
// decoder has to end with an error, and touch nothing beyond the record (the sanitizers look).
#include <random>

#include "forwarding/wire/copies.h"
#include "forwarding/wire/launch_wire.h"
#include "gpunode/worker/handles.h"
#include "gpunode/worker/invocation.h"
#include "gpunode/worker/parameters.h"
#include "gpunode/worker/worker.h"
#include "interpose/api/driver_symbols.h"
#include "tests/catch.h"
#include "tests/seed.h"

namespace {

using namespace olpager;
using gpunode::HandleKind;
using gpunode::HandleTable;
using gpunode::Invocation;

}  // namespace

TEST_CASE("decoders take nonsense of every length", "[gpunode]") {
  const uint64_t chosen = test::seed();
  INFO("OL_TEST_SEED=" << chosen);
  std::mt19937_64 random(chosen);
  gpunode::Worker worker({});
  size_t decoders = 0;
  for (size_t symbol = 0; symbol < api::kSymbolCount; ++symbol) {
    const gpunode::Serve serve = gpunode::generatedService(symbol);
    if (serve == nullptr) continue;
    ++decoders;
    for (int turn = 0; turn < 200; ++turn) {
      // Small numbers make for sizes that fit, large ones for those that don't.
      std::vector<std::byte> bytes(random() % 200);
      const bool small = turn % 2 == 0;
      for (auto& byte : bytes)
        byte = static_cast<std::byte>(small && random() % 4 != 0 ? random() % 3 : random());
      const std::vector<std::byte> exact(bytes);  // its end is the heap's
      forward::CallHead head{};
      head.function = static_cast<uint16_t>(symbol);
      Invocation in(worker, head, forward::Reader(exact));
      CHECK(serve(in) != CUDA_SUCCESS);  // there is no driver
    }
  }
  CHECK(decoders > 400);
}

TEST_CASE("no decoder takes the name of a file", "[gpunode]") {
  using api::Symbol;
  for (const Symbol symbol :
       {Symbol::kCuModuleLoad, Symbol::kCuLibraryLoadFromFile, Symbol::kCuLinkAddFile,
        Symbol::kCuLinkAddFile_v2, Symbol::kCuGraphDebugDotPrint, Symbol::kCuLogsDumpToFile,
        Symbol::kCuProfilerInitialize, Symbol::kCuCoredumpSetAttribute,
        Symbol::kCuCoredumpSetAttributeGlobal})
    CHECK(gpunode::generatedService(static_cast<size_t>(symbol)) == nullptr);
}

TEST_CASE("what maps tiles of sparse arrays is looked at before the driver sees it", "[gpunode]") {
  gpunode::Worker worker({});
  const auto made = [&](const std::vector<CUarrayMapInfo>& list, uint32_t count) {
    forward::Writer writer;
    writer.value(count);
    writer.value(uint64_t{0});  // the default stream
    writer.value(uint8_t{1});
    writer.raw(list.data(), list.size() * sizeof(CUarrayMapInfo));
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(api::Symbol::kCuMemMapArrayAsync);
    Invocation in(worker, head, forward::Reader(writer.bytes));
    return gpunode::generatedService(head.function)(in);
  };
  CUarrayMapInfo tile{};
  tile.resourceType = CU_RESOURCE_TYPE_ARRAY;
  tile.resource.array =
      gpunode::handleFrom<CUarray>(worker.handles().numberOf(HandleKind::kArray, 77));
  tile.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  tile.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  tile.memHandle.memHandle = worker.handles().numberOf(HandleKind::kAllocation, 88);
  CHECK(made({tile, tile}, 2) ==
        CUDA_ERROR_NOT_SUPPORTED);  // as far as a driver, which is not there
  CUarrayMapInfo foreign = tile, nothing = tile, unmapped = tile, odd = tile;
  foreign.resource.array = gpunode::handleFrom<CUarray>(77);
  CHECK(made({tile, foreign}, 2) == CUDA_ERROR_INVALID_HANDLE);
  nothing.memHandle.memHandle = 88;
  CHECK(made({nothing}, 1) == CUDA_ERROR_INVALID_HANDLE);
  unmapped.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  unmapped.memHandle.memHandle = 88;
  CHECK(made({unmapped}, 1) == CUDA_ERROR_NOT_SUPPORTED);
  odd.resourceType = CU_RESOURCE_TYPE_LINEAR;
  CHECK(made({odd}, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("boxes that don't match their bytes never reach the driver", "[gpunode]") {
  gpunode::Worker worker({});  // without a driver: a call of it would end the test
  const auto make = [&](forward::Operation operation, forward::CopyShape shape, uint64_t width,
                        uint64_t height, uint64_t depth, uint64_t bytes) {
    forward::CopyHead copy;
    copy.shape = shape;
    copy.bytes = bytes;
    const bool in_copy = operation == forward::Operation::kCopyIn;
    auto& box = copy.box;
    box.WidthInBytes = width, box.Height = height, box.Depth = depth;
    box.srcMemoryType = in_copy ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    box.dstMemoryType = in_copy ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    box.srcPitch = box.dstPitch = width;
    box.srcHeight = box.dstHeight = height;
    forward::Writer writer;
    writer.value(copy);
    if (in_copy) writer.bytes.resize(writer.bytes.size() + bytes);
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(operation);
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
    CHECK_FALSE(in.arguments().ok());  // nonsense: it ends the session
  };
  constexpr uint64_t kHalf = 1ull << 32;
  for (const auto operation : {forward::Operation::kCopyIn, forward::Operation::kCopyOut}) {
    make(operation, forward::CopyShape::kBox2d, 4096, 16, 0, 0);
    make(operation, forward::CopyShape::kBox2d, 4096, 16, 2, uint64_t{4096} * 32);
    make(operation, forward::CopyShape::kBox2d, 4096, 0, 1, 0);
    make(operation, forward::CopyShape::kBox2d, 4096, 16, 1, 4096);
    make(operation, forward::CopyShape::kBox2d, kHalf, kHalf, 1,
         0);  // the product wraps around to 0
    make(operation, forward::CopyShape::kBox3d, 4096, 16, 0, 0);
    make(operation, forward::CopyShape::kBox3d, 0, 16, 16, 0);
    make(operation, forward::CopyShape::kBox3d, kHalf, 1, kHalf, 0);
  }
}

TEST_CASE("what a call owes is answered whichever way it ends", "[gpunode]") {
  const auto told = [](forward::Operation operation, const forward::Writer& writer) {
    gpunode::Worker worker({});
    CHECK_FALSE(worker.channel().unsent());
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(operation);
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(in.arguments().ok());  // a handle of nothing is no nonsense: the session goes on
    return worker.channel().unsent();
  };
  constexpr uint64_t kNoStream = forward::firstNumber(0) + 77;
  for (const uint32_t number : {0u, 5u}) {
    forward::Writer copy, launch, changes, gate;
    forward::CopyHead copy_head;
    copy_head.stream = kNoStream;
    copy_head.number = number;
    copy_head.in_order = 1;
    copy_head.bytes = 64;
    copy.value(copy_head);
    CHECK(told(forward::Operation::kCopyOut, copy) == (number != 0));
    forward::LaunchHead launch_head;
    launch_head.stream = kNoStream;
    launch_head.pinned = number;
    launch.value(launch_head);
    for (uint32_t i = 0; i < number; ++i) launch.value(forward::kWindow);
    CHECK(told(forward::Operation::kLaunch, launch) == (number != 0));
    changes.value(kNoStream);
    changes.value(uint8_t{0});
    changes.value(uint32_t{0});
    changes.value(uint32_t{0});
    CHECK(told(forward::Operation::kHostChanges, changes));
    gate.value(kNoStream);
    gate.value(uint8_t{0});
    gate.value(number);
    gate.value(uint32_t{3});
    CHECK(told(forward::Operation::kGate, gate) == (number != 0));
  }
}

TEST_CASE("batches of operations without, with too many or with fewer than they say are nonsense",
          "[gpunode]") {
  for (const auto& [said, sent] :
       {std::pair{0u, 0u}, {0u, 1u}, {2u, 1u}, {257u, 257u}, {UINT32_MAX, 3u}, {1u, 1u}}) {
    gpunode::Worker worker({});  // without a driver: a call of it would end the test
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(forward::Operation::kGraphBatchNode);
    forward::Writer writer;
    writer.value(forward::NodeCall::kAdd);
    for (int i = 0; i < 3; ++i) writer.value(uint64_t{0});  // no graph, node or executable graph
    writer.value(uint64_t{0});
    writer.value(uint8_t{0});
    writer.value(forward::BatchNodeHead{0, 0, said});
    for (uint32_t i = 0; i < sent; ++i) writer.value(CUstreamBatchMemOpParams{});
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
    CHECK(in.arguments().ok() == (said == 1));
  }
}

TEST_CASE("an allocation that nobody waits for and that fails breaks its context", "[gpunode]") {
  for (const uint32_t reply : {0u, 3u}) {
    gpunode::Worker worker({});  // has no memory to give
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(forward::Operation::kAllocateAt);
    head.reply = reply;
    forward::Writer writer;
    writer.value(uint64_t{0x2000'0000});
    writer.value(uint64_t{4096});
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
    CHECK(worker.channel().unsent() == (reply == 0));
  }
}

TEST_CASE("bulk copies of more than their region has are nonsense", "[gpunode]") {
  for (const auto operation : {forward::Operation::kCopyIn, forward::Operation::kCopyOut}) {
    for (const auto& [offset, bytes] : {std::pair{uint64_t{0}, uint64_t{4097}},
                                        {uint64_t{1}, uint64_t{4096}},
                                        {UINT64_MAX, uint64_t{2}},
                                        {uint64_t{2}, UINT64_MAX},
                                        {uint64_t{0}, uint64_t{0}}}) {
      gpunode::Worker worker({});
      forward::CallHead head{};
      head.function = static_cast<uint16_t>(operation);
      forward::CopyHead copy;
      copy.bytes = bytes;
      copy.region = {77, 4096, 3, 0};
      copy.region_offset = offset;
      forward::Writer writer;
      writer.value(copy);
      Invocation in(worker, head, forward::Reader(writer.bytes));
      CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
      CHECK_FALSE(in.arguments().ok());
    }
  }
}

TEST_CASE("images of no length, or of more than an image may have, are nonsense", "[gpunode]") {
  for (const auto operation : {forward::Operation::kLoadModule, forward::Operation::kLoadLibrary,
                               forward::Operation::kLinkAdd}) {
    for (const uint64_t length : {uint64_t{0}, forward::kMostImageBytes + 1, UINT64_MAX}) {
      gpunode::Worker worker({});
      forward::CallHead head{};
      head.function = static_cast<uint16_t>(operation);
      forward::Writer writer;
      if (operation == forward::Operation::kLoadLibrary) writer.value(uint64_t{0});  // any number
      if (operation == forward::Operation::kLinkAdd) {
        writer.value(forward::firstNumber(0));
        writer.value(static_cast<int32_t>(CU_JIT_INPUT_PTX));
        writer.value(uint8_t{0});  // no name
      }
      writer.value(uint32_t{0});
      writer.value(forward::ImageForm::kRegion);
      writer.value(transport::RemoteKey{77, length, 1, 0});
      Invocation in(worker, head, forward::Reader(writer.bytes));
      CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
      CHECK_FALSE(in.arguments().ok());
    }
  }
}

TEST_CASE("options of the compiler that no client sends are nonsense", "[gpunode]") {
  const auto nonsense = [](uint32_t count, int32_t option) {
    gpunode::Worker worker({});
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(forward::Operation::kLinkCreate);
    forward::Writer writer;
    writer.value(forward::firstNumber(0));
    writer.value(count);
    for (uint32_t i = 0; i < std::min<uint32_t>(count, 100); ++i) {
      writer.value(option);
      writer.value(uint64_t{1} << 40);
    }
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) != CUDA_SUCCESS);
    return !in.arguments().ok();
  };
  CHECK_FALSE(nonsense(1, CU_JIT_INFO_LOG_BUFFER));
  CHECK_FALSE(nonsense(64, CU_JIT_WALL_TIME));
  CHECK(nonsense(65, CU_JIT_WALL_TIME));
  CHECK(nonsense(UINT32_MAX, CU_JIT_WALL_TIME));
  CHECK(nonsense(1, -1));
  CHECK(nonsense(1, CU_JIT_NUM_OPTIONS));
  CHECK(nonsense(1, CU_JIT_GLOBAL_SYMBOL_NAMES));  // a pointer
}

TEST_CASE("a linker that is not there is an error, not nonsense", "[gpunode]") {
  gpunode::Worker worker({});
  for (const auto operation : {forward::Operation::kLinkAdd, forward::Operation::kLinkComplete,
                               forward::Operation::kLinkDestroy}) {
    forward::CallHead head{};
    head.function = static_cast<uint16_t>(operation);
    forward::Writer writer;
    writer.value(forward::firstNumber(0) + 5);
    if (operation == forward::Operation::kLinkComplete) writer.value(uint64_t{0});
    if (operation == forward::Operation::kLinkAdd) {
      writer.value(static_cast<int32_t>(CU_JIT_INPUT_PTX));
      writer.value(uint8_t{0});
      writer.value(uint32_t{0});
      writer.value(forward::ImageForm::kBytes);
      writer.value(uint64_t{4});
      writer.raw("text", 4);
    }
    Invocation in(worker, head, forward::Reader(writer.bytes));
    CHECK(gpunode::writtenService(head.function)(in) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(in.arguments().ok());
  }
}

TEST_CASE("handles mean what they were given for", "[gpunode]") {
  HandleTable table;
  uint64_t value = 0;
  const uint64_t stream = table.numberOf(HandleKind::kStream, 0x1000);
  CHECK(forward::isMarked(stream));
  CHECK(table.numberOf(HandleKind::kStream, 0x1000) == stream);
  CHECK(table.find(stream, HandleKind::kStream, &value));
  CHECK(value == 0x1000);
  CHECK_FALSE(table.find(stream, HandleKind::kEvent, &value));   // of another kind
  CHECK_FALSE(table.find(0x1000, HandleKind::kStream, &value));  // a pointer is no number
  CHECK(table.numberOf(HandleKind::kStream, 2) ==
        2);  // the default streams are the same everywhere
  CHECK(table.numberOf(HandleKind::kStream, 0) == 0);

  // Numbers of the client's own: once.
  CHECK(table.bind(forward::firstNumber(0), HandleKind::kEvent, 0x2000));
  CHECK_FALSE(table.bind(forward::firstNumber(0), HandleKind::kEvent, 0x3000));
  CHECK_FALSE(table.bind(stream, HandleKind::kEvent, 0x3000));  // the worker's
  CHECK_FALSE(table.bind(7, HandleKind::kEvent, 0x3000));       // not marked
  CHECK(table.numberOf(HandleKind::kEvent, 0x2000) == forward::firstNumber(0));

  // A handle that the driver may give again: another number for what gets it, and the first one
  // means what it did.
  const uint64_t node = table.numberOf(HandleKind::kGraphNode, 0x4000);
  table.mayComeAgain(HandleKind::kGraphNode, 0x4000);
  CHECK(table.numberOf(HandleKind::kGraphNode, 0x4000) != node);
  CHECK(table.find(node, HandleKind::kGraphNode, &value));

  table.gone(forward::firstNumber(0));
  CHECK_FALSE(table.find(forward::firstNumber(0), HandleKind::kEvent, &value));
  // The same place for a new object: a new number.
  const uint64_t again = table.numberOf(HandleKind::kEvent, 0x2000);
  CHECK(again != forward::firstNumber(0));
  // Numbers that the client drew ahead: in the order of new objects, and as far as they go.
  forward::Names names{forward::firstNumber(forward::kCommonSlot), 2};
  CHECK(table.numberOf(HandleKind::kEvent, 0x2000, &names) == again);
  CHECK(table.numberOf(HandleKind::kEvent, 0x2100, &names) ==
        forward::firstNumber(forward::kCommonSlot));
  CHECK(table.numberOf(HandleKind::kGraph, 0x2100, &names) ==
        forward::firstNumber(forward::kCommonSlot) + 1);
  CHECK((table.numberOf(HandleKind::kEvent, 0x2200, &names) & forward::kWorkersHandle) != 0);
  CHECK(table.find(forward::firstNumber(forward::kCommonSlot), HandleKind::kEvent, &value));
  CHECK(value == 0x2100);
  // A number that means something, is the worker's or no handle's at all is nobody's name.
  for (const uint64_t wrong : {forward::firstNumber(forward::kCommonSlot), stream, uint64_t{7}}) {
    names = {wrong, 1};
    CHECK((table.numberOf(HandleKind::kEvent, 0x2300 + wrong, &names) & forward::kWorkersHandle) !=
          0);
  }

  // Behind a library that is gone its kernels' handles may be others'; what there was keeps its
  // number.
  const uint64_t library = table.numberOf(HandleKind::kLibrary, 0x5000);
  const uint64_t kernel = table.numberOf(HandleKind::kFunction, 0x6000);
  const uint64_t event = table.numberOf(HandleKind::kEvent, 0x7000);
  table.gone(library);
  CHECK(table.numberOf(HandleKind::kFunction, 0x6000) != kernel);
  CHECK(table.find(kernel, HandleKind::kFunction, &value));
  CHECK(table.numberOf(HandleKind::kEvent, 0x7000) == event);
  // The driver counts allocations: a released number stays.
  const uint64_t allocation = table.numberOf(HandleKind::kAllocation, 0x4000);
  table.gone(allocation);
  CHECK(table.find(allocation, HandleKind::kAllocation, &value));

  // Places of parameters are a kernel's, and the first that were noted.
  const gpunode::ParameterPlaces* places = nullptr;
  CHECK(table.find(kernel, HandleKind::kFunction, &value, &places));
  CHECK(places == nullptr);
  CHECK(table.notePlaces(event, {{0, 8}}) == nullptr);
  CHECK(table.notePlaces(77, {{0, 8}}) == nullptr);
  const auto* const noted = table.notePlaces(kernel, {{0, 8}, {8, 4}});
  REQUIRE(noted != nullptr);
  CHECK(table.notePlaces(kernel, {}) == noted);
  CHECK(table.find(kernel, HandleKind::kFunction, &value, &places));
  CHECK(places == noted);
}

TEST_CASE("a kernel's parameters go by pointers where their places fit the block", "[gpunode]") {
  std::vector<std::byte> block(4000);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 7);
  gpunode::ParameterPlaces many;
  for (uint32_t i = 0; i < 900; ++i) many.push_back({i * 4, 4});
  for (const auto& places : {gpunode::ParameterPlaces{{0, 8}, {8, 4}, {16, 8}}, many}) {
    for (const size_t length : {places.back().offset + size_t{places.back().bytes}, block.size()}) {
      gpunode::Parameters parameters(std::span<const std::byte>(block).first(length), &places);
      REQUIRE(parameters.pointers() != nullptr);
      CHECK(parameters.extra() == nullptr);
      for (size_t i = 0; i < places.size(); ++i)
        REQUIRE(std::memcmp(parameters.pointers()[i], block.data() + places[i].offset,
                            places[i].bytes) == 0);
    }
    // Shorter than they say, or unknown: as it came.
    for (const gpunode::ParameterPlaces* const known :
         {&places, static_cast<const gpunode::ParameterPlaces*>(nullptr)}) {
      gpunode::Parameters parameters(
          std::span<const std::byte>(block).first(known != nullptr ? 23 : 24), known);
      CHECK(parameters.pointers() == nullptr);
      REQUIRE(parameters.extra() != nullptr);
      CHECK(*static_cast<size_t*>(parameters.extra()[3]) == (known != nullptr ? 23 : 24));
      CHECK(std::memcmp(parameters.extra()[1], block.data(), 23) == 0);
    }
  }
  const gpunode::ParameterPlaces beyond{{0xffff'fffc, 8}};
  CHECK(gpunode::Parameters(block, &beyond).pointers() == nullptr);
  CHECK(gpunode::Parameters({}, &many).extra() == nullptr);
}
