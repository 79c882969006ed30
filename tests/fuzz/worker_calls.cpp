// A client's calls, one after the other, against a real worker: libolpager.so in local mode on the
// simulated GPU. An input is a program: which call, with which of the handles and addresses that
// came out of earlier ones, gone ones among them, and with what nonsense between. Each input has a
// process of its own, since a device that a kernel broke is not to be had again; what it reaches
// counts for libFuzzer as if it were this one. Found is what ends the process, or does not end.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/log.h"
#include "forwarding/wire/copies.h"
#include "forwarding/wire/export_token.h"
#include "forwarding/wire/launch_wire.h"
#include "forwarding/wire/straight.h"
#include "gpunode/worker/worker.h"
#include "tests/fuzz/rig/other_worker.h"
#include "tests/fuzz/rig/sampler.h"

namespace {

using namespace olpager;
using forward::Operation;
using fuzz::Input;
using fuzz::Known;
using fuzz::OtherWorker;
using fuzz::Sampler;
using gpunode::HandleKind;

constexpr unsigned kMostSeconds = 60;
constexpr size_t kMostCalls = 300;
constexpr uint64_t kPrimary = forward::primaryHandle(0, 0);

const char* const kModule = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter;
.visible .entry add(.param .u64 address, .param .u32 value)
{
  .reg .b32 %r<3>;
  .reg .b64 %d;
  ld.param.u64 %d, [address];
  ld.param.u32 %r1, [value];
  ld.global.u32 %r2, [%d];
  add.u32 %r2, %r2, %r1;
  st.global.u32 [%d], %r2;
  ret;
}
)";

constexpr uint32_t kFunctionNumber = 7, kGateNumber = 9;

std::string buildFolder() {
  char path[PATH_MAX] = {};
  (void)!readlink("/proc/self/exe", path, sizeof path - 1);
  const std::string program = path;
  return program.substr(0, program.rfind("/tests/fuzz/"));
}

// --- calls that are written by hand --------------------------------------------------------------

void place(Sampler& out) {  // device memory at an address of the client's choice
  static_assert(sizeof(CUdeviceptr) == 8);
  const uint64_t base = out.known().addresses.front();
  const uint64_t address = base + out.input().byte() % 32 * (2ull << 20);
  out.writer().value(address);
  out.writer().value(out.drawNumber());
  out.known().addresses.push_back(address);
}

void copyHead(Sampler& out, bool in) {
  forward::CopyHead head;
  head.stream = out.drawHandle(HandleKind::kStream);
  const uint8_t how = out.input().byte();
  head.in_order = how & 1;
  head.per_thread = how >> 1 & 1;
  head.device = out.drawAddress();
  head.bytes = out.drawNumber();
  if (how % 16 == 4)
    head.array = 1, head.device = out.drawHandle(HandleKind::kArray),
    head.offset = out.drawNumber();
  if (how % 16 == 5) head.number = out.input().byte();
  if (how % 16 == 6) head.near = forward::kWindow + out.drawNumber() % (1 << 20);
  if (how % 16 == 7) head.offset = out.drawAddress();
  if (how % 8 == 3) {
    head.shape = how % 16 == 3 ? forward::CopyShape::kBox2d : forward::CopyShape::kBox3d;
    out.draw(&head.box, sizeof head.box);
    if (how % 3 != 0) {
      auto& box = head.box;
      box.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      box.dstMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      box.srcDevice = box.dstDevice = head.device;
      box.WidthInBytes = 1 + out.drawNumber() % 512, box.Height = 1 + out.drawNumber() % 8,
      box.Depth = 1;
      box.srcPitch = box.dstPitch = box.WidthInBytes;
      box.srcHeight = box.dstHeight = box.Height;
      box.srcXInBytes = box.dstXInBytes = box.srcY = box.dstY = box.srcZ = box.dstZ = 0;
      head.bytes = box.WidthInBytes * box.Height;
    }
  }
  out.writer().value(head);
  if (in && head.bytes <= 65536) out.writer().bytes.resize(out.writer().bytes.size() + head.bytes);
}

void launch(Sampler& out) {
  forward::LaunchHead head;
  head.function = out.drawHandle(HandleKind::kFunction);
  head.stream = out.drawHandle(HandleKind::kStream);
  const uint8_t how = out.input().byte();
  for (int i = 0; i < 3; ++i) head.grid[i] = head.block[i] = 1;
  if (how % 8 == 0) head.grid[how % 3] = static_cast<uint32_t>(out.drawNumber() % 70000);
  if (how % 8 == 1) head.block[how % 3] = static_cast<uint32_t>(out.drawNumber());
  if (how % 8 == 2) head.shared = static_cast<uint32_t>(out.drawNumber());
  head.kind = static_cast<forward::LaunchKind>(how % 16 < 10 ? 0 : how % 4);
  head.parameter_bytes = 12;
  if (how % 16 == 3) head.pinned = how % 3;
  if (how % 16 == 11) head.attributes = how % 4;
  head.by_pointers = how / 16 % 2;
  out.writer().value(head);
  for (uint32_t i = 0; i < head.attributes; ++i) {
    CUlaunchAttribute attribute{};
    out.draw(&attribute, sizeof attribute);
    out.writer().value(attribute);
  }
  out.writer().value(how < 240 && !out.known().addresses.empty() ? out.known().addresses.front()
                                                                 : out.drawAddress());
  out.writer().value(uint32_t{1});
  for (uint32_t i = 0; i < head.pinned; ++i) out.writer().value(forward::kWindow + i * 4096);
}

void nodeTarget(Sampler& out) {
  out.writer().value(static_cast<forward::NodeCall>(out.input().byte() % 4));
  out.writer().value(out.drawHandle(HandleKind::kGraph));
  out.writer().value(out.drawHandle(HandleKind::kGraphNode));
  out.writer().value(out.drawHandle(HandleKind::kGraphExec));
  const uint64_t count = out.input().byte() % 4;
  out.writer().value(count);
  (void)out.handles<CUgraphNode>(count);
}

// PTX, or nearly; the last of its call.
void image(Sampler& out) {
  std::string text = kModule;
  const uint8_t how = out.input().byte();
  if (how < 16) text.resize(how * 8);
  if (how >= 16 && how < 32) text[how * 7] = static_cast<char>(out.input().byte());
  out.writer().value(how < 250 ? forward::ImageForm::kBytes
                               : static_cast<forward::ImageForm>(how % 5));
  out.writer().value(static_cast<uint64_t>(text.size()));
  out.writer().raw(text.data(), text.size());
}

// Options of the compiler: mostly none, else logs with their sizes, or anything.
void options(Sampler& out) {
  const uint8_t how = out.input().byte();
  const uint32_t count = how < 160 ? 0 : how % 5;
  out.writer().value(count);
  for (uint32_t i = 0; i < count; ++i) {
    out.writer().value(how < 240 ? static_cast<int32_t>(3 + (how + i) % 4)
                                 : static_cast<int32_t>(out.drawNumber()));
    out.writer().value(out.drawNumber());
  }
}

// The other worker's, or one where nobody is. None is on another machine.
void peerLink(Sampler& out, OtherWorker& other) {
  static const char* const kNowhere[] = {
      "", ":", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:99999", "[::1]:0", "127.0.0.1:-1"};
  const uint8_t how = out.input().byte();
  forward::PeerLinkHead head;
  head.slot = how < 240 ? OtherWorker::kSlot : static_cast<uint32_t>(out.drawNumber());
  head.tls = how % 16 == 3 ? static_cast<uint32_t>(out.drawNumber()) : 0;
  head.tcp_only = how & 1;
  const auto key = OtherWorker::key();
  std::copy(key.begin(), key.end(), std::begin(head.key));
  if (how % 32 == 5) head.key[how % 7] ^= 1;
  out.writer().value(head);
  out.writer().text(how % 16 == 6 ? kNowhere[how % std::size(kNowhere)] : other.address());
}

void straight(Sampler& out, OtherWorker& other, bool takes) {
  const uint8_t how = out.input().byte();
  forward::StraightHead head;
  head.copy = how % 32 == 0 ? out.drawNumber() : out.known().next++;
  head.address = out.drawAddress();
  head.bytes = how < 200 ? 1 + out.input().bytes(2) * (how % 4 == 0 ? 64 : 1) : out.drawNumber();
  head.stream = out.drawHandle(HandleKind::kStream);
  head.slot = how < 250 ? OtherWorker::kSlot : static_cast<uint32_t>(out.drawNumber());
  head.per_thread = how & 1;
  head.now = how >> 1 & 1;
  other.say(out, head, takes);
  out.writer().value(head);
}

void operation(Operation what, Sampler& out, OtherWorker& other) {
  forward::Writer& writer = out.writer();
  switch (what) {
    case Operation::kAllocateAt:
      return place(out);
    case Operation::kCopyIn:
      return copyHead(out, true);
    case Operation::kCopyOut:
    case Operation::kCopyDevice:
    case Operation::kSynchronizeDefault:
      return copyHead(out, false);
    case Operation::kCopyPeer:
      copyHead(out, false);
      writer.value(out.drawHandle(HandleKind::kContext));
      writer.value(out.drawHandle(HandleKind::kContext));
      return;
    case Operation::kLaunch:
      return launch(out);
    case Operation::kParameters:
      writer.value(out.drawHandle(HandleKind::kFunction));
      return;
    case Operation::kLoadModule:
    case Operation::kLoadLibrary:
      if (what == Operation::kLoadLibrary)  // its number is the client's
        writer.value(forward::firstNumber(forward::kCommonSlot) + (out.known().next++ & 0xfff));
      options(out);
      return image(out);
    case Operation::kLinkCreate:
      out.number<CUlinkState>();
      return options(out);
    case Operation::kLinkAdd:
      writer.value(out.drawHandle(HandleKind::kLinkState));
      writer.value(out.input().byte() % 8 != 0 ? int32_t{CU_JIT_INPUT_PTX}
                                               : static_cast<int32_t>(out.drawNumber()));
      out.string();
      options(out);
      return image(out);
    case Operation::kLinkComplete:
      writer.value(out.drawHandle(HandleKind::kLinkState));
      writer.value(out.input().byte() % 2 != 0 ? uint64_t{0} : out.drawNumber());
      return;
    case Operation::kVariable: {
      const uint8_t how = out.input().byte();
      writer.value(static_cast<forward::VariableKind>(how % 8 != 7 ? how % 3 : how));
      writer.value(out.drawHandle(how % 3 == 0 ? HandleKind::kModule : HandleKind::kLibrary));
      return out.string();
    }
    case Operation::kManagedBytes:
      writer.value(out.drawAddress());
      writer.value(out.input().byte() % 2 != 0 ? uint64_t{0} : out.drawNumber());
      writer.value(uint64_t{4096});
      return;
    case Operation::kManagedGone:
      writer.value(out.drawAddress());
      return;
    case Operation::kVariableBytes: {
      const uint32_t count = out.input().byte() % 4;
      writer.value(count);
      for (uint32_t i = 0; i < count; ++i) {
        writer.value(out.drawAddress());
        writer.value(out.input().byte() % 2 != 0 ? uint64_t{64} : out.drawNumber());
      }
      return;
    }
    case Operation::kLinkDestroy:
      writer.value(out.drawHandle(HandleKind::kLinkState));
      return;
    case Operation::kPeerLink:
      return peerLink(out, other);
    case Operation::kStraightOut:
    case Operation::kStraightIn:
      return straight(out, other, what == Operation::kStraightIn);
    case Operation::kStraightStop: {
      forward::StraightStopHead head;
      head.copy = out.drawNumber();
      head.slot = out.input().byte() % 8 != 0 ? OtherWorker::kSlot
                                              : static_cast<uint32_t>(out.drawNumber());
      writer.value(head);
      return;
    }
    case Operation::kGate:
      writer.value(out.drawHandle(HandleKind::kStream));
      writer.value(static_cast<uint8_t>(out.input().byte() % 2));
      writer.value(static_cast<uint32_t>(out.input().byte() % 2));
      writer.value(kGateNumber);
      return;
    case Operation::kOpenGate:
      writer.value(out.input().byte() % 2 != 0 ? kGateNumber
                                               : static_cast<uint32_t>(out.drawNumber()));
      return;
    case Operation::kGraphAllocNode: {
      nodeTarget(out);
      CUmemPoolProps props{};
      out.draw(&props, sizeof props);
      if (out.input().byte() % 4 != 0) {
        props = {};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      }
      writer.value(props);
      writer.value(out.input().byte() % 2 != 0 ? uint64_t{4096} : out.drawNumber());
      const uint64_t count = out.input().byte() % 8 == 0 ? out.drawNumber() : 0;
      writer.value(count);
      (void)out.array<CUmemAccessDesc>(count);
      return;
    }
    case Operation::kGraphConditionalNode:
      nodeTarget(out);
      writer.value(out.drawNumber());
      writer.value(static_cast<int32_t>(out.input().byte() % 4));
      writer.value(out.input().byte() % 8 == 0 ? static_cast<uint32_t>(out.drawNumber()) : 1u);
      writer.value(out.drawHandle(HandleKind::kContext));
      return;
    case Operation::kGreenContext:
    case Operation::kGreenDestroy:
      writer.value(out.drawHandle(HandleKind::kGreenContext));
      return;
    case Operation::kExportMemory:
      writer.value(out.drawHandle(HandleKind::kAllocation));
      return;
    case Operation::kImportMemory: {
      forward::ExportToken token;
      token.process = static_cast<uint32_t>(getpid());
      token.socket = out.drawNumber();
      token.number = out.input().byte();
      writer.value(token);
      return;
    }
    case Operation::kExportGone:
      writer.value(static_cast<uint32_t>(out.input().byte()));
      return;
    case Operation::kHostFunction: {
      writer.value(out.drawHandle(HandleKind::kStream));
      writer.value(static_cast<uint8_t>(out.input().byte() % 2));
      writer.value(static_cast<uint8_t>(out.input().byte() % 2));
      writer.value(kFunctionNumber);
      return;
    }
    case Operation::kHostChanges:
      writer.value(out.drawHandle(HandleKind::kStream));
      writer.value(uint8_t{0});
      writer.value(uint32_t{1});
      writer.value(forward::kWindow + out.drawNumber() % (1 << 20));
      writer.value(uint32_t{1});
      writer.value(forward::kWindow + out.drawNumber() % (1 << 20));
      return;
    case Operation::kGraphHostSides:
      writer.value(out.drawHandle(HandleKind::kGraph));
      return;
    case Operation::kGraphBytes:
      writer.value(out.drawHandle(HandleKind::kStream));
      writer.value(uint8_t{0});
      writer.value(uint32_t{1});
      writer.value(forward::kWindow + out.drawNumber() % (1 << 20));
      writer.value(forward::kWindow + out.drawNumber() % (1 << 20));
      writer.value(uint64_t{16});
      writer.value(out.drawAddress());
      writer.value(out.drawNumber());
      return;
    case Operation::kHostBytes:
      writer.value(forward::kWindow + out.drawNumber() % (1 << 20));
      writer.value(uint64_t{16});
      writer.value(out.drawAddress());
      writer.value(out.drawNumber());
      return;
    case Operation::kContextCreate:
      writer.value(unsigned{0});
      writer.value(static_cast<CUdevice>(out.input().byte() % 3));
      return;
    case Operation::kPrimaryRetain:
      writer.value(static_cast<CUdevice>(out.input().byte() % 3));
      return;
    case Operation::kGraphKernelNode: {
      nodeTarget(out);
      forward::KernelNodeHead head;
      head.function = out.drawHandle(HandleKind::kFunction);
      head.context = out.drawHandle(HandleKind::kContext);
      for (int i = 0; i < 3; ++i) head.grid[i] = head.block[i] = 1;
      head.parameter_bytes = 12;
      const uint8_t how = out.input().byte();
      head.by_pointers = how % 2, head.as_kernel = how / 2 % 2;
      writer.value(head);
      writer.value(out.known().addresses.front());
      writer.value(uint32_t{1});
      return;
    }
    case Operation::kGraphBatchNode: {
      nodeTarget(out);
      const uint8_t how = out.input().byte();
      forward::BatchNodeHead head;
      head.context = how % 4 == 0 ? out.drawHandle(HandleKind::kContext) : 0;
      head.flags = how % 16 == 1 ? static_cast<uint32_t>(out.drawNumber()) : 0;
      head.count = how < 240 ? 1 + how % 3 : static_cast<uint32_t>(out.drawNumber());
      writer.value(head);
      for (int i = 0; i < 1 + how % 3; ++i) {  // nothing that waits: nobody ends it
        CUstreamBatchMemOpParams one{};
        one.operation = how % 8 == 5 ? CU_STREAM_MEM_OP_BARRIER : CU_STREAM_MEM_OP_WRITE_VALUE_32;
        if (how % 8 != 5) one.writeValue.address = out.drawAddress();
        writer.value(one);
      }
      return;
    }
    case Operation::kFinishWork:
      return;
    case Operation::kLaunchOnDevices: {
      const uint8_t how = out.input().byte();
      forward::DevicesLaunchHead head;
      head.flags = how % 16 == 3 ? static_cast<uint32_t>(out.drawNumber()) : how % 4;
      head.count = how < 250 ? 1 + how % 2 : static_cast<uint32_t>(out.drawNumber());
      head.pinned = how % 32 == 5 ? 1 : 0;
      writer.value(head);
      for (int i = 0; i < 1 + how % 2; ++i) {
        forward::LaunchHead part;
        part.function = out.drawHandle(HandleKind::kFunction);
        part.stream = out.drawHandle(HandleKind::kStream);
        for (int d = 0; d < 3; ++d) part.grid[d] = part.block[d] = 1;
        part.parameter_bytes = 12;
        part.by_pointers = how % 8 != 7;
        writer.value(part);
        writer.value(out.known().addresses.front());
        writer.value(uint32_t{1});
      }
      if (head.pinned != 0) writer.value(forward::kWindow);
      return;
    }
    case Operation::kGraphDotPrint:
      writer.value(out.drawHandle(HandleKind::kGraph));
      (void)out.value<unsigned>();
      return;
    case Operation::kUserObjectCreate:
      out.number<CUuserObject>();
      writer.value(static_cast<unsigned>(out.input().byte() % 8 != 0 ? 1 + out.input().byte() % 3
                                                                     : out.drawNumber()));
      writer.value(static_cast<unsigned>(out.input().byte() % 8 != 0 ? 1 : out.drawNumber()));
      return;
    case Operation::kLogsDump:
      (void)out.array<CUlogIterator>(1);
      writer.value(static_cast<unsigned>(out.input().byte() % 8 != 0 ? 0 : out.drawNumber()));
      return;
    case Operation::kLogsListen:
      writer.value(static_cast<uint8_t>(out.input().byte() % 2));
      return;
    case Operation::kGraphHostNode:
      nodeTarget(out);
      writer.value(kFunctionNumber);
      return;
    case Operation::kGraphMemcpyNode: {
      nodeTarget(out);
      CUDA_MEMCPY3D box{};
      out.draw(&box, sizeof box);
      if (out.input().byte() % 4 != 0) {
        box = {};
        box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        box.srcDevice = out.drawAddress(), box.dstDevice = out.drawAddress();
        box.WidthInBytes = 1 + out.drawNumber() % 4096, box.Height = box.Depth = 1;
      }
      writer.value(box);
      writer.value(out.drawHandle(HandleKind::kContext));
      return;
    }
    case Operation::kGraphNodeParameters:
      writer.value(out.drawHandle(HandleKind::kGraphNode));
      writer.value(static_cast<uint8_t>(out.input().byte() % 6));
      return;
    case Operation::kGraphKernelNodeAttribute:
      writer.value(out.drawHandle(HandleKind::kGraphNode));
      writer.value(static_cast<int32_t>(out.drawNumber() % 20));
      writer.value(static_cast<uint8_t>(out.input().byte() % 2));
      (void)out.value<CUlaunchAttributeValue>();
      return;
    case Operation::kPointerAttribute: {
      const uint32_t count = 1 + out.input().byte() % 4;
      writer.value(static_cast<uint8_t>(count > 1));
      writer.value(out.drawAddress());
      writer.value(count);
      for (uint32_t i = 0; i < count; ++i)
        writer.value(static_cast<int32_t>(out.input().byte() % 25));
      return;
    }
    default:  // of no shape that is told here
      for (int i = 0; i < 6; ++i) writer.value(out.drawNumber());
      return;
  }
}

// Leaves out calls that would wait for something that nobody does, and those that end the session.
bool leftOut(size_t function) {
  const std::string name = api::symbolName(static_cast<api::Symbol>(function));
  return name.find("cuStreamWaitValue") == 0 || name.find("cuStreamBatchMemOp") == 0;
}

class Session {
 public:
  explicit Session(const std::string& build)
      : worker_({build + "/interpose/libolpager.so", 0, 0}) {}

  bool start() {
    if (auto started = worker_.start(); !started.ok()) {
      std::fprintf(stderr, "%s\n", started.error().message.c_str());
      return false;
    }
    // Nobody hears what it says, and nobody is waited for.
    worker_.channel().close("there is no client");
    // The session's functions are over as soon as they are called, also while a call waits for one.
    std::thread([this] {
      for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        worker_.clientFunctions().isOver(kFunctionNumber);
    }).detach();
    for (uint64_t i = 0; i < 4; ++i)
      known_.addresses.push_back(worker_.library().placed().base + (i << 21));
    worker_.hostMemory().setLimit(16 << 20);
    worker_.peers().configure({0, true, transport::Choice::kAuto, transport::Tls::kOff});
    return true;
  }

  void call(uint16_t function, const forward::Writer& arguments, uint64_t context, uint8_t how) {
    forward::CallHead head{};
    head.function = function;
    head.flags = how & 1 ? forward::kMayWait : 0;
    head.reply = how & 2 ? 0 : 1;
    head.context = context;
    head.thread = 1 + how % 3;
    // Some bring numbers for what they make: unused ones, those of others, nonsense.
    if ((how & 16) != 0) head.flags |= forward::kNames;
    forward::Writer record;
    record.value(head);
    if ((how & 16) != 0) {
      const uint64_t first = (how & 32) == 0   ? names_
                             : (how & 64) == 0 ? kPrimary - 1
                                               : how * 0x0101010101010101u;
      record.value(forward::Names{first, how & 128 ? ~uint64_t{0} : 3});
      names_ += 3;
    }
    record.raw(arguments.bytes.data(), arguments.bytes.size());
    worker_.make(record.bytes, nullptr);
    worker_.handles().forEach([&](uint64_t number, HandleKind kind) {
      auto& all = known_.handles[kind];
      if (std::find(all.begin(), all.end(), number) == all.end()) all.push_back(number);
    });
  }

  void operate(Operation what, Input& input, uint8_t how) {
    Sampler out(input, known_);
    operation(what, out, other_);
    call(static_cast<uint16_t>(what), out.writer(), contextFor(how, out), how);
    if (what != Operation::kGate) return;
    // Nobody else opens it, and the stream would wait.
    forward::Writer gate;
    gate.value(kGateNumber);
    call(static_cast<uint16_t>(Operation::kOpenGate), gate, kPrimary, 0);
  }

  void run(Input& input) {
    std::vector<uint16_t> generated;
    for (size_t i = 0; i < api::kSymbolCount; ++i) {
      if (fuzz::sampleOf(i) != nullptr && !leftOut(i))
        generated.push_back(static_cast<uint16_t>(i));
    }
    {
      // A context, memory and a module to begin with.
      Input none(nullptr, 0);
      operate(Operation::kPrimaryRetain, none, 0);
      forward::Writer memory;
      memory.value(worker_.library().placed().base);
      memory.value(uint64_t{1} << 20);
      call(static_cast<uint16_t>(Operation::kAllocateAt), memory, kPrimary, 0);
      static const uint8_t kPlain[] = {100, 100};  // no options, and a text that is right
      Input plain(kPlain, sizeof kPlain);
      operate(Operation::kLoadModule, plain, 0);
      forward::Writer named;
      named.value(known_.handles[HandleKind::kModule].empty()
                      ? 0
                      : known_.handles[HandleKind::kModule].front());
      named.value(uint8_t{1});  // a handle is wanted
      named.value(uint8_t{1});
      named.text("add");
      call(static_cast<uint16_t>(api::Symbol::kCuModuleGetFunction), named, kPrimary, 0);
    }
    if (input.byte() % 2 != 0) {  // and a link to another worker
      Input none(nullptr, 0);
      operate(Operation::kPeerLink, none, 0);
    }
    constexpr auto kFirst = static_cast<uint16_t>(Operation::kParameters);
    constexpr auto kLast = static_cast<uint16_t>(Operation::kGraphBytes);
    for (size_t i = 0; i < kMostCalls && !input.empty() && !worker_.ended(); ++i) {
      const uint8_t how = input.byte();
      if (how % 3 == 0) {
        operate(static_cast<Operation>(kFirst + input.byte() % (kLast - kFirst + 1)), input, how);
        continue;
      }
      const uint16_t function = generated[input.bytes(2) % generated.size()];
      Sampler out(input, known_);
      fuzz::sampleOf(function)(out);
      if (how == 254 && !out.writer().bytes.empty())
        out.writer().bytes.resize(input.byte() % out.writer().bytes.size());
      call(function, out.writer(), contextFor(how, out), how);
    }
  }

 private:
  static uint64_t contextFor(uint8_t how, Sampler& out) {
    return how % 16 == 15 ? out.drawHandle(HandleKind::kContext) : kPrimary;
  }

  gpunode::Worker worker_;
  OtherWorker other_;
  Known known_;
  uint64_t names_ = forward::firstNumber(forward::kCommonSlot);  // not used yet
};

// The counters of the code that clang instruments: a child counts where its parent looks. Not by
// declarations: the instrumentation has variables of these names in each file, which would be
// others then.
void shareCounters() {
  uint8_t *begin = nullptr, *end = nullptr;
  asm("lea __start___sancov_cntrs(%%rip), %0" : "=r"(begin));
  asm("lea __stop___sancov_cntrs(%%rip), %0" : "=r"(end));
  constexpr uintptr_t kPage = 4096;
  // Whole pages alone: what lies beside the counters stays each process's own.
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + kPage - 1) / kPage * kPage;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / kPage * kPage;
  if (first >= last) return;
  (void)mmap(reinterpret_cast<void*>(first), last - first, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  const std::string build = buildFolder();
  setenv("OL_DRIVER", (build + "/gpunode/simgpu/libolsimcuda.so").c_str(), 1);
  setenv("OL_SIM_VRAM", "64MiB", 1);
  setenv("OL_SIM_THREADS", "1", 1);
  setenv("OL_HOST", "64MiB", 1);
  setenv("OL_LOG", "off", 0);
  base::setLogLevel(base::LogLevel::kOff);
  shareCounters();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const pid_t child = fork();
  if (child == 0) {
    (void)std::signal(SIGALRM, SIG_DFL);  // libFuzzer's handler only looks at the parent's clock
    alarm(kMostSeconds);
    auto* const session = new Session(buildFolder());  // its threads stay until the process ends
    if (!session->start()) _exit(1);
    Input input(data, size);
    session->run(input);
    _exit(0);
  }
  int status = 0;
  pid_t ended = child;
  if (child > 0) {
    do {
      ended = waitpid(child, &status, 0);
    } while (ended < 0 && errno == EINTR);  // libFuzzer looks at its clock
  }
  if (child < 0 || ended != child) {
    std::perror("fork");
    std::_Exit(1);  // the machine's fault, not the input's
  }
  if (status != 0) {
    std::fprintf(stderr,
                 WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM
                     ? "a sequence of calls did not end\n"
                     : "a sequence of calls ended the worker: %#x\n",
                 static_cast<unsigned>(status));
    std::abort();
  }
  return 0;
}
