// The decoder's interface to the operation families: a function for each variant of an instruction,
// null if there is none.
//
// Families in IsaOps are compiled once for each level of the CPU's vector instructions and chosen
// at run time.
#pragma once

#include <cstdint>

#include "gpunode/simgpu/ptx/program.h"
#include "gpunode/simgpu/ptx/texture.h"

namespace olpager::simgpu::ptx {

/// Register-to-register operations. r[0] destination, r[1].. sources.
enum class Alu : std::uint8_t {
  kMov,
  kAdd,
  kSub,
  kMulLo,
  kMulHi,
  kMulWide,
  kMadLo,
  kMadHi,
  kMadWide,
  kMul24Lo,
  kMul24Hi,
  kMad24Lo,
  kMad24Hi,
  kDiv,
  kRem,
  kMin,
  kMax,
  kMin3,
  kMax3,
  kAbs,
  kNeg,
  kAnd,
  kOr,
  kXor,
  kNot,
  kCnot,
  kShl,
  kShr,
  kPopc,
  kClz,
  kBfind,
  kBfindShift,
  kBrev,
  kBfe,
  kBfi,
  kBmskClamp,
  kBmskWrap,
  kSzextClamp,
  kSzextWrap,
  kPrmt,
  kPrmtF4e,
  kPrmtB4e,
  kPrmtRc8,
  kPrmtEcl,
  kPrmtEcr,
  kPrmtRc16,
  kLop3,
  kSad,
  kShfLClamp,
  kShfLWrap,
  kShfRClamp,
  kShfRWrap,
  kDp4aUU,
  kDp4aUS,
  kDp4aSU,
  kDp4aSS,
  kDp2aLoUU,
  kDp2aLoUS,
  kDp2aLoSU,
  kDp2aLoSS,
  kDp2aHiUU,
  kDp2aHiUS,
  kDp2aHiSU,
  kDp2aHiSS,
  kFns,
  kFma,
  kSqrt,
  kRcp,
  kRsqrt,
  kSin,
  kCos,
  kEx2,
  kLg2,
  kTanh,
  kCopysign,
  kTestp,
  kAddCc,
  kSubCc,
  kMadLoCc,
  kMadHiCc,
  kSelp,
  kSlct,
  kSlctF32,
};

enum class Round : std::uint8_t { kNearest, kZero, kDown, kUp };

/// Modifiers of a floating-point operation; packed into Op::flags.
enum AluFlag : std::uint32_t {
  kFlagRoundMask = 3,     ///< a Round
  kFlagFtz = 1 << 2,      ///< subnormals are zero
  kFlagSat = 1 << 3,      ///< clamp to [0, 1], NaN to 0; integer: saturate
  kFlagNaN = 1 << 4,      ///< min, max: NaN wins
  kFlagXorSign = 1 << 5,  ///< min, max: .xorsign.abs
  kFlagRelu = 1 << 6,
  kFlagCarryIn = 1 << 7,
  kFlagCarryOut = 1 << 8,
  kFlagAbs = 1 << 9,        ///< min, max of 3: |operands|
  kFlagRoundInt = 1 << 10,  ///< cvt: .rni .rzi .rmi .rpi, with the Round
  kFlagSatFinite = 1 << 11,
};

/// testp.
enum class Testp : std::uint8_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

enum class Compare : std::uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};
enum class Combine : std::uint8_t { kNone, kAnd, kOr, kXor };

/// Op::flags of setp: Combine, negation of the combined predicate, flush to zero.
inline constexpr std::uint32_t kSetpNegate = 1 << 4;
inline constexpr std::uint32_t kSetpFtz = 1 << 5;
/// Result of set: all ones, or 1.0 of the destination's type.
inline constexpr std::uint32_t kSetF32 = 1 << 6;
inline constexpr std::uint32_t kSetF16 = 1 << 7;
inline constexpr std::uint32_t kSetBF16 = 1 << 8;

/// Op::flags of memory operations: how the address register r[8] is to be read.
inline constexpr std::uint32_t kAddress32 = 1 << 0;  ///< 32 bits wide
inline constexpr std::uint32_t kStrong =
    1 << 1;  ///< volatile, relaxed, acquire, release: element-wise atomic accesses
inline constexpr std::uint32_t kOrdered = 1 << 2;  ///< acquire, release: with a fence
inline constexpr std::uint32_t kOnce = 1 << 3;     ///< loads: .cs, of what will not be used again

struct MemoryKind {
  bool store = false;
  Space space = Space::kGeneric;  ///< kShared: offsets in the block's memory; kLocal: in the
                                  ///< thread's stack; else generic
  Type type = Type::kB32;         ///< in memory
  std::uint32_t reg_bytes = 4;    ///< of the data registers
  std::uint32_t vector = 1;
};

struct IsaOps {
  OpFn (*integer)(Alu, Type, std::uint32_t flags);
  OpFn (*floating)(Alu, Type, std::uint32_t flags);  ///< f32, f64
  OpFn (*half)(Alu, Type, std::uint32_t flags);      ///< f16, bf16 and pairs
  OpFn (*convert)(Type destination, Type source, std::uint32_t flags);
  OpFn (*compare)(Compare, Type);                   ///< setp
  OpFn (*set)(Compare, Type, std::uint32_t bytes);  ///< set, destination of 2 or 4 bytes
  OpFn (*memory)(const MemoryKind&);
};

/// The families for this CPU.
const IsaOps& isaOps();

// Families that gain nothing from vector instructions.
OpFn guardedOp();
enum class Control : std::uint8_t {
  kJump,
  kBranch,
  kBranchTable,
  kJoin,
  kCall,
  kReturn,
  kExit,
  kTrap,
  kBarrier,
  kBarrierArrive,
  kBarrierRed,
  kNanosleep,
  kSyncWarp,
  kFence,
  kNop,
  kClusterArrive,
  kClusterWait,
};
OpFn controlOp(Control kind);
OpFn predicateOp(Alu kind);  ///< and, or, xor, not, mov of predicates
OpFn broadcastParamOp(std::uint32_t mem_bytes, bool sign,
                      std::uint32_t reg_bytes);  ///< ld.param of an entry
/// ld.param / st.param in the areas of calls and device functions.
OpFn paramOp(bool store, std::uint32_t mem_bytes, bool sign, std::uint32_t reg_bytes);
/// pack / unpack: mov.b64 {a,b}, c and the like. r[0].. pieces in order, then the whole.
OpFn packOp(std::uint32_t piece_bytes, std::uint32_t pieces, bool unpack);
/// Copies between register sizes (zero or sign extension, truncation).
OpFn resizeOp(std::uint32_t to, std::uint32_t from, bool sign);

enum class Special : std::uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kClock,
  kClockHi,
  kClock64,
  kGlobaltimer,
  kGlobaltimerLo,
  kGlobaltimerHi,
  kDynamicSmemSize,
  kTotalSmemSize,
  kAggrSmemSize,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterCtarank,
  kClusterNctarank,
  kEnvreg,
  kReservedSharedBase,
  kDynamicSharedBase,
  kLocalBase,
  kZero,
};
/// r[0] destination (4 or 8 bytes), imm: number of an envreg, addend of a base.
OpFn specialOp(Special which, std::uint32_t bytes);

enum class Atomic : std::uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };
/// r[0] old value (or kNoTarget for red), r[1], r[2] operands, r[8] address. vector > 1: r[0..]
/// old, r[4..]: operands.
OpFn atomicOp(Atomic kind, Type type, std::uint32_t vector, bool shared);

enum class WarpOp : std::uint8_t {
  kShflUp,
  kShflDown,
  kShflBfly,
  kShflIdx,
  kVoteAll,
  kVoteAny,
  kVoteUni,
  kVoteBallot,
  kMatchAny,
  kMatchAll,
  kActiveMask,
  kElect,
  kReduxAdd,
  kReduxMin,
  kReduxMax,
  kReduxAnd,
  kReduxOr,
  kReduxXor,
  kMmaF64,  ///< r: d (2), a, b, c (2); all lanes take part
};
/// r[0] result, r[1] predicate result or kNoTarget, r[2].. sources; the member mask last (r[5]).
OpFn warpOp(WarpOp kind, Type type);

enum class Convert : std::uint8_t {
  kToShared,
  kToLocal,
  kToParam,
  kToGlobal,
  kFromShared,
  kFromLocal,
  kFromParam,
  kMapa,
  kGetCtaRank
};
/// cvta: r[0] destination, r[1] source; flags kAddress32: 32-bit registers.
OpFn cvtaOp(Convert kind, std::uint32_t to_bytes, std::uint32_t from_bytes);
OpFn isspacepOp(Space space);
/// Copies r[2] bytes from generic/global r[1] + imm to shared r[0]; r[3] source bytes register or
/// kNoTarget.
OpFn copyAsyncOp();
/// Op::flags of a bulk copy, beside kAddress32: which of the others are 32 bits wide, what lies in
/// shared memory.
inline constexpr std::uint32_t kBulkFrom32 = 1 << 4;
inline constexpr std::uint32_t kBulkBarrier32 = 1 << 5;
inline constexpr std::uint32_t kBulkToShared = 1 << 6;  ///< and so does the barrier
inline constexpr std::uint32_t kBulkFromShared = 1 << 7;
OpFn copyBulkOp();

/// Memory of the thread's stack that the function gives back when it returns.
enum class Stack : std::uint8_t { kAlloca, kSave, kRestore };
OpFn stackOp(Stack kind, std::uint32_t bytes);

/// The operation of a video instruction on each part of a word; packed into Op::imm.
enum class Video : std::uint8_t {
  kAdd,
  kSub,
  kAverage,
  kAbsDiff,
  kMin,
  kMax,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe
};
struct VideoKind {
  Video what = Video::kAdd;
  std::uint32_t parts = 4;  ///< 2 or 4
  bool signed_a = false;
  bool signed_b = false;
  bool signed_result = false;  ///< of .sat
  bool saturate = false;
  bool accumulate = false;  ///< .add: the parts' sum and c

  std::uint64_t pack() const {
    return static_cast<std::uint64_t>(what) | std::uint64_t{parts} << 8 |
           std::uint64_t{signed_a} << 16 | std::uint64_t{signed_b} << 17 |
           std::uint64_t{signed_result} << 18 | std::uint64_t{saturate} << 19 |
           std::uint64_t{accumulate} << 20;
  }
  static VideoKind unpack(std::uint64_t bits) {
    const auto bit = [&](unsigned at) { return (bits >> at & 1) != 0; };
    return {static_cast<Video>(bits & 0xFF),
            static_cast<std::uint32_t>(bits >> 8 & 0xFF),
            bit(16),
            bit(17),
            bit(18),
            bit(19),
            bit(20)};
  }
};
/// r: d, a, b, c.
OpFn videoOp();

/// A texture read; packed into Op::imm.
struct TextureKind {
  TextureShape shape = TextureShape::k1D;
  bool integer_coordinates = false;
  bool gather = false;        ///< tld4
  std::uint32_t channel = 0;  ///< of a gather

  bool layered() const {
    return shape == TextureShape::kLayered1D || shape == TextureShape::kLayered2D;
  }
  std::uint64_t pack() const {
    return static_cast<std::uint64_t>(shape) | std::uint64_t{integer_coordinates} << 8 |
           std::uint64_t{gather} << 9 | std::uint64_t{channel} << 10;
  }
  static TextureKind unpack(std::uint64_t bits) {
    return {static_cast<TextureShape>(bits & 0xFF), (bits >> 8 & 1) != 0, (bits >> 9 & 1) != 0,
            static_cast<std::uint32_t>(bits >> 10 & 3)};
  }
};
/// r[0..3] result, r[4..6] coordinates, r[7] layer, r[8] handle, r[9] predicate or kNoTarget.
OpFn textureOp();

enum class SurfaceBounds : std::uint8_t { kTrap, kClamp, kZero };
/// A surface load or store; packed into Op::imm.
struct SurfaceKind {
  TextureShape shape = TextureShape::k1D;
  bool store = false;
  SurfaceBounds bounds = SurfaceBounds::kTrap;
  std::uint32_t vector = 1;
  std::uint32_t element_bytes = 4;
  std::uint32_t reg_bytes = 4;

  bool layered() const {
    return shape == TextureShape::kLayered1D || shape == TextureShape::kLayered2D;
  }
  std::uint64_t pack() const {
    return static_cast<std::uint64_t>(shape) | std::uint64_t{store} << 8 |
           static_cast<std::uint64_t>(bounds) << 16 | std::uint64_t{vector} << 24 |
           std::uint64_t{element_bytes} << 32 | std::uint64_t{reg_bytes} << 40;
  }
  static SurfaceKind unpack(std::uint64_t bits) {
    const auto byte = [&](unsigned shift) {
      return static_cast<std::uint32_t>(bits >> shift & 0xFF);
    };
    return {static_cast<TextureShape>(byte(0)),
            byte(8) != 0,
            static_cast<SurfaceBounds>(byte(16)),
            byte(24),
            byte(32),
            byte(40)};
  }
};
/// r[0..3] data, r[4..6] coordinates (x in bytes), r[7] layer, r[8] handle.
OpFn surfaceOp();

/// mbarrier operations on 64-bit words in shared memory.
enum class Mbarrier : std::uint8_t {
  kInit,
  kInval,
  kArrive,
  kArriveDrop,
  kArriveExpect,  ///< expects bytes, then arrives
  kArriveDropExpect,
  kExpect,
  kComplete,
  kTestWait,
  kTestWaitParity,
};
OpFn mbarrierOp(Mbarrier kind);

}  // namespace olpager::simgpu::ptx
