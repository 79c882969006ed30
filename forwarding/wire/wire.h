// The protocol between a session's client and worker: records of a calls::Channel. Plain
// structures, little-endian, the same compiler's layout of cuda.h's types on both sides (x86-64;
// the greeting carries a hash of the specification).
//
// Both ends read with Reader, which checks every length: arriving bytes are never trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/sanitizer.h"

namespace olpager::forward {

/// Numbers of functions above every symbol: for operations without a function of their own, or said
/// differently than in cuda.h.
enum class Operation : uint16_t {
  kDescribe = 0x4000,  // who the worker is: Description, then a byte for each symbol
  kGoodbye,            // the program ends
  kParameters,         // layout of a kernel's parameters
  kLaunch,
  kCopyIn,      // bytes of the client to device memory or an array
  kCopyOut,     // and back
  kCopyDevice,  // between places of the worker
  kLoadModule,
  kLoadLibrary,
  kHostAlloc,  // memory at an address of the window
  kHostFree,
  kHostBytes,     // what the client changed in it
  kHostFunction,  // calls the client in stream order
  kHostFunctionDone,
  kPointerAttribute,
  kContextCreate,
  kPrimaryRetain,
  kSynchronizeDefault,  // the calling thread's default stream
  kHostChanges,         // what was changed in pinned blocks by what is before it in a stream
  kGraphKernelNode,     // added, or its parameters set
  kGraphHostNode,
  kGraphMemcpyNode,
  kAllocateAt,  // device memory at an address that the client chose in its part of the range
  kClusters,    // how many, or how large, for a launch
  kGraphNodeParameters,  // of a kernel, a copy or a host function
  kGraphKernelNodeAttribute,
  kCopyPeer,    // a box between places of the worker, in two contexts
  kNameKernel,  // a library's kernel gets a number of the client's
  kGate,        // a place in a stream that the client is told of, that waits for it, or both
  kOpenGate,
  kPeerLink,      // the worker connects to the worker of another session (straight.h)
  kStraightOut,   // a copy to another session's worker: this one sends
  kStraightIn,    // and this one takes
  kStraightStop,  // one end need not wait for the other any more
  kLinkCreate,    // cuLink*: a linker gets a number of the client's
  kLinkAdd,       // an input, as an image (see ImageForm)
  kLinkComplete,  // and a piece of what came out
  kLinkDestroy,
  kGraphAllocNode,
  kGraphConditionalNode,  // with the graphs of its bodies
  kVariable,              // of a module or a library: where it is, and whether in managed memory
  kManagedBytes,          // what differs from zeros in a managed one, piece by piece
  kManagedGone,           // it is exchanged no more: what it belongs to is about to go
  kVariableBytes,         // the bytes of many in device memory, when all that was sent is complete
  kUserObjectCreate,
  kGraphBatchNode,   // operations of streams, added to a graph or set
  kGraphDotPrint,    // a file of the driver's: its text is the reply
  kLogsDump,         // likewise, behind where the logs go on
  kLogsListen,       // from now on what the driver logs comes, or no more
  kLaunchOnDevices,  // one kernel on several devices at once
  kGreenContext,     // the context that stands for a green one
  kGreenDestroy,     // a green one, and with it that
  kExportMemory,     // for a descriptor of the program's; answered by an ExportToken
  kImportMemory,     // what a token names
  kExportGone,       // nobody has its descriptor any more
  kGraphHostSides,   // boxes of the copies in a graph that have a side in the window
  kGraphBytes,  // blocks that a graph uses which is launched next, and what the client changed of
                // some: there when the stream comes to it
  kFinishWork,  // waits for all that was launched, in whichever context and stream, without a call
                // that would spoil a capture (an executor's: forwarding/agent.h)
};

/// For kVariable: the variable's owner, and the function that is asked.
enum class VariableKind : uint8_t { kModule, kLibrary, kLibraryManaged };
/// In the answer to kVariable, behind address and bytes (8 each).
enum class VariableMemory : uint8_t {
  kDevice,
  kManaged,     // the worker exchanges it from now on
  kOutOfReach,  // managed, and the CPU can't have it beside kernels there
};

/// At the head of a record of the client's.
struct CallHead {
  uint16_t function;  // api::Symbol or Operation
  uint16_t flags;     // CallFlags
  uint32_t reply;     // number of the wait; 0: nobody waits
  uint64_t context;   // the calling thread's current context; 0: none
  uint32_t thread;    // the calling thread; 0: none of the program's
  uint32_t reserved;
};
static_assert(sizeof(CallHead) == 24);

/// In CallHead::thread: the place, which a thread that begins later takes when it is free, and
/// above it a count of who has had it.
inline constexpr unsigned kThreadPlaceBits = 20;
constexpr uint32_t threadPlace(uint32_t thread) { return thread & ((1u << kThreadPlaceBits) - 1); }

enum CallFlags : uint16_t {
  kMayWait = 1,     // for the GPU, or for the client
  kOthersCall = 2,  // other threads, or host functions, may have calls while this one waits
  kRelaxed = 4,     // no capture forbids this thread anything
  kNames = 8,       // Names are behind the head, and behind Aged
  kAged = 16,       // Aged is behind the head
  kBehindAll = 32,  // made when all operations (kAged) that came before it have been made
};

/// In the unified view of several executors: which operation the call is
/// (docs/internals/coherence.md, "A launch over two executors"). The age follows the head at once,
/// so that it can be filled in last, under the executor's order lock.
struct Aged {
  static constexpr uint64_t kNoOperation = UINT64_MAX;
  uint64_t age = kNoOperation;  // kNoOperation: the call only has to know the regions
  uint64_t oldest = 0;          // all operations below are complete
  uint64_t regions = 0;         // that the home has told so far: they are known before the call is
                                // made
};
static_assert(sizeof(Aged) == 24);

/// Numbers of the client's for handles that the answer tells of and that have none yet, in the
/// order in which they are told of. Has an answer more of them, the worker names the rest.
struct Names {
  uint64_t first = 0;
  uint64_t count = 0;
};

enum class Answer : uint32_t {
  kReply = 1,
  kFailed,  // a call that nobody waits for; the body is its context
  kBytes,
  kHostBytes,
  kHostFunction,
  kText,
  kBroken,  // what was told to succeed failed for good: the context in the body can't be used any
            // more
  kEnds,    // the session ends now; the body says why, in a line
  kUserObjectGone,  // the driver has called its destructor; the body is its number
  kLog,             // a line of the driver's log; the number is its level
  kFault,  // a kernel has ended the context in the body; every call in it fails so from now on
};

/// At the head of a record of the worker's.
struct AnswerHead {
  Answer kind;
  // kReply: of the wait; kFailed: of the thread; kBytes: of the copy; kHostFunction: of the
  // function; kHostBytes: how many launches it answers for; kText: 1 standard output, 2 standard
  // error; kEnds: one more than the executor to which the worker has lost its link, 0: that is not
  // why.
  uint32_t number;
  int32_t result;
  uint32_t function;  // kFailed: which call it was
};
static_assert(sizeof(AnswerHead) == 16);

struct Description {
  uint64_t specification;  // forward::kSpecification
  int32_t driver_version;
  int32_t devices;
  uint64_t va_base, va_size;      // of the pool
  uint64_t window, window_bytes;  // of pinned host memory
  uint64_t placed,
      placed_bytes;  // of device memory whose addresses the client gives out; 0 bytes: none
  // For the first device, in bytes: the VRAM that programs may use, the total that they are told,
  // and the most that they may allocate.
  uint64_t vram, told, capacity;
  // The part of `capacity` and of `told` that memservers lend; `lenders`: equal where these are the
  // same ones, by their names, 0 without any.
  uint64_t lent, told_lent, lenders;
};
static_assert(sizeof(Description) == 112);

/// The room that is left for device memory, as kAllocateAt answers: in all and in one piece.
struct Room {
  uint64_t bytes = 0;
  uint64_t largest = 0;
};

/// How the image of a module, or of a linker's input, comes: its bytes (not worth asking for), its
/// SHA-256 and length alone, or its bytes after the worker did not have that, which are to be kept;
/// where they are more than a call holds, the worker reads them from a region of the client's
/// memory.
enum class ImageForm : uint8_t { kBytes = 0, kDigest = 1, kKeep = 2, kRegion = 3 };
/// In place of a load's result: the worker has no image with that digest.
inline constexpr int32_t kImageUnknown = -1;
/// In place of a host function's status: the stream has not taken it.
inline constexpr int32_t kFunctionNotTaken = -2;

/// Marks a handle of the program's. Below the mark: whether the worker made the number, the slot of
/// the session that it belongs to, and the number itself, of 40 bits.
inline constexpr uint64_t kHandleMark = 0x5a5aull << 48;
inline constexpr uint64_t kWorkersHandle = 1ull << 46;
inline constexpr bool isMarked(uint64_t handle) { return handle >> 48 == 0x5a5a; }
inline constexpr unsigned kSlotShift = 40, kSlotMask = 63;
inline constexpr uint64_t slotBits(unsigned slot) {
  return static_cast<uint64_t>(slot) << kSlotShift;
}
inline constexpr unsigned slotOf(uint64_t handle) {
  return static_cast<unsigned>(handle >> kSlotShift) & kSlotMask;
}
/// In place of a session's: the handle means the same in each of the program's sessions (libraries
/// and their kernels; in the unified view all that the client has made).
inline constexpr unsigned kCommonSlot = kSlotMask;
/// The handle of the primary context of a device of the worker's.
inline constexpr uint64_t primaryHandle(unsigned slot, int device) {
  return kHandleMark | slotBits(slot) | (1 + static_cast<uint64_t>(device));
}
/// The first number that the client gives.
inline constexpr uint64_t firstNumber(unsigned slot) {
  return kHandleMark | slotBits(slot) | 0x1000;
}

inline constexpr uint64_t kMostBytes = 48ull << 20;      // of one call's arguments or answer
inline constexpr uint64_t kMostImageBytes = 1ull << 30;  // of a module's image

/// The place of pinned host memory on both sides: a multiple of its size, which is a power of two.
inline constexpr uint64_t kWindow = base::kThreadSanitizer ? 0x0040'0000'0000 : 0x1a00'0000'0000;
inline constexpr uint64_t kWindowBytes = base::kThreadSanitizer ? 1ull << 38 : 1ull << 40;

class Writer {
 public:
  std::vector<std::byte> bytes;

  void raw(const void* from, size_t count) {
    const auto* const begin = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + count);
  }
  template <typename T>
  void value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    raw(&value, sizeof value);
  }
  void text(std::string_view text) {
    value(static_cast<uint32_t>(text.size()));
    raw(text.data(), text.size());
  }
};

class Reader {
 public:
  Reader() = default;
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  void fail() { ok_ = false; }
  size_t left() const { return bytes_.size(); }
  /// `count` bytes, or none and ok() false.
  std::span<const std::byte> raw(uint64_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const auto found = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return found;
  }
  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const auto found = raw(sizeof value); !found.empty())
      std::memcpy(&value, found.data(), sizeof value);
    return value;
  }
  template <typename T>
  T peek() const {
    T value{};
    if (bytes_.size() >= sizeof value) std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }
  std::string_view text() {
    const auto found = raw(value<uint32_t>());
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

/// The offset of the arguments in a client's record.
constexpr size_t argumentsAt(const CallHead& head) {
  return sizeof head + ((head.flags & kAged) != 0 ? sizeof(Aged) : 0) +
         ((head.flags & kNames) != 0 ? sizeof(Names) : 0);
}
/// The head of a client's record, and the names that it brings: what is left are the arguments.
/// `aged`: what it says of its operation, where somebody wants to know and the record says so.
inline CallHead takeHead(Reader& record, Names* names, Aged* aged = nullptr) {
  const auto head = record.value<CallHead>();
  if ((head.flags & kAged) != 0) {
    const auto said = record.value<Aged>();
    if (aged != nullptr) *aged = said;
  }
  *names = (head.flags & kNames) != 0 ? record.value<Names>() : Names{};
  return head;
}

/// Bytes of an element behind a pointer as the specification counts them: of the type, 1 for void.
template <typename T>
inline constexpr uint64_t kElement = sizeof(T);
template <>
inline constexpr uint64_t kElement<void> = 1;
template <>
inline constexpr uint64_t kElement<const void> = 1;

}  // namespace olpager::forward
