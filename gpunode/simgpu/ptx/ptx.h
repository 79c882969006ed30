// The PTX interpreter of the simulated GPU: compiles PTX text to a compact form once, links it to
// addresses, runs kernels.
//
// Use: compile() a module, give every global an address with setGlobalAddress() (the caller
// allocates the device memory), link(), copy each global's image() to its address, then run() its
// kernels as often as wanted, from any number of threads.
//
// Addresses: `.global`, `.const` and generic pointers are the device's virtual addresses, answered
// by AddressSpace. Shared, local and kernel-parameter memory have generic windows above 2^48, where
// no user-space mapping can lie.
//
// Execution: a warp of 32 lanes is interpreted at once, over registers kept as [register][lane].
// Divergence follows independent thread scheduling: lanes reconverge at the immediate
// post-dominator of a branch (convergence barriers as NVIDIA describes them for Volta), a waiting
// lane never keeps the others from making progress.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace olpager::simgpu::ptx {

inline constexpr std::uint32_t kWarpSize = 32;

/// Generic address windows of the memories that are not in the device's address space. Bit 48 is
/// set in all of them.
inline constexpr std::uint64_t kSharedWindow =
    0x0001'0000'0000'0000;  ///< + (block rank in cluster << 24) + offset
inline constexpr std::uint64_t kLocalWindow =
    0x0001'0001'0000'0000;  ///< + offset in the thread's stack
inline constexpr std::uint64_t kParamWindow =
    0x0001'0002'0000'0000;  ///< + offset in the kernel's parameters
inline constexpr std::uint64_t kCodeWindow =
    0x0001'0100'0000'0000;  ///< + (module id << 20) + 16 * function index
inline constexpr std::uint64_t kWindowSize = 0x0000'0001'0000'0000;

/// One parameter of a kernel, in bytes from the start of the parameter buffer.
struct ParamInfo {
  std::string name;
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
  std::uint32_t align = 1;
};

/// The facts about a kernel for the driver's cuFuncGetAttribute and occupancy functions. Zero in a
/// limit means: not given.
struct KernelInfo {
  std::string name;
  std::vector<ParamInfo> params;
  std::uint32_t param_bytes = 0;  ///< size of the parameter buffer
  std::uint32_t static_shared_bytes =
      0;                          ///< `.shared` variables of the kernel and of what it calls
  std::uint32_t local_bytes = 0;  ///< per thread; of the deepest call path, recursion counted once
  std::uint32_t const_bytes = 0;  ///< `.const` variables of the module
  std::uint32_t registers = 0;    ///< estimate: the most 32-bit registers live at once
  std::uint32_t max_threads = 1024;                  ///< from `.reqntid` / `.maxntid`, else 1024
  std::array<std::uint32_t, 3> reqntid{};            ///< `.reqntid`, zeros if absent
  std::array<std::uint32_t, 3> maxntid{};            ///< `.maxntid`, zeros if absent
  std::array<std::uint32_t, 3> reqnctapercluster{};  ///< `.reqnctapercluster`, zeros if absent
  std::uint32_t minnctapersm = 0;
  std::uint32_t maxnreg = 0;
  bool uses_barriers = false;
  bool uses_grid_workspace =
      false;  ///< reads %envreg1/%envreg2, as cooperative groups' grid sync does
};

/// The place of an address constant in a global's initial image.
struct Relocation {
  std::uint32_t offset = 0;  ///< in the global's image
  std::uint32_t size = 8;    ///< 8, or 4 / 1 for a slice of the address
  std::uint32_t shift = 0;   ///< bits to shift the address right first (`mask(0xFF00, sym)` forms)
  std::string symbol;        ///< a global or a function of the module
  std::int64_t addend = 0;
};

/// A module-scope `.global` or `.const` variable.
struct GlobalInfo {
  std::string name;
  std::uint64_t size = 0;
  std::uint32_t align = 1;
  bool is_const = false;
  bool is_extern = false;  ///< declared here, defined elsewhere: the linker must supply the address
  bool is_managed = false;
  bool is_visible = false;  ///< `.visible`, `.weak` or `.common`: cuModuleGetGlobal finds it
  std::vector<std::byte>
      init;  ///< initial bytes before relocation; shorter than size: the rest is zero
  std::vector<Relocation> relocations;
};

class TextureTable;  // texture.h

struct Program;  // decoded code: private to the interpreter
struct CodeFunction;

/// An entry function. Valid as long as its Module.
class Kernel {
 public:
  Kernel(KernelInfo info, std::uint32_t function) : info_(std::move(info)), function_(function) {}
  const KernelInfo& info() const { return info_; }
  std::uint32_t functionIndex() const { return function_; }

 private:
  friend class Module;
  KernelInfo info_;
  std::uint32_t function_;
};

struct CompileOptions {
  std::string name = "ptx";  ///< names the module in error messages
};

/// A compiled PTX module. Immutable after link() and then usable from any thread; before it, from
/// one thread.
class Module {
 public:
  explicit Module(std::unique_ptr<Program> program);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::vector<GlobalInfo>& globals() const;
  const std::vector<std::unique_ptr<Kernel>>& kernels() const;
  /// The kernel of that name, or null.
  const Kernel* kernel(std::string_view name) const;
  /// Names of the `.visible` device functions (not entries).
  std::vector<std::string> deviceFunctions() const;
  /// Generic address of a device function (what taking its address in device code gives), or 0.
  std::uint64_t functionAddress(std::string_view name) const;

  /// Gives a global its device address. Must be called for every element of globals() before
  /// link().
  Status setGlobalAddress(std::string_view name, std::uint64_t va);
  /// As setGlobalAddress for every global: the resolver returns the address, 0 meaning that it has
  /// none (an error).
  Status link(const std::function<std::uint64_t(const GlobalInfo&)>& resolver);
  /// Resolves all addresses in the code. Error: a global without address.
  Status link();
  bool linked() const;
  std::uint64_t globalAddress(std::string_view name) const;
  /// The relocated initial bytes of a global, `size` long. After link().
  std::vector<std::byte> image(const GlobalInfo& global) const;

  int ptxVersion() const;  ///< 90 for `.version 9.0`
  int target() const;      ///< 75 for `.target sm_75`
  const Program& program() const { return *program_; }

 private:
  std::unique_ptr<Program> program_;
};

/// Parses, checks and decodes PTX. Errors name the module, the line and the offending text; an
/// instruction that the interpreter does not know is one ("name:LINE: instruction 'foo.bar' is not
/// supported").
Result<std::shared_ptr<Module>> compile(std::string_view ptx_text,
                                        const CompileOptions& options = {});

/// A run of device addresses that are contiguous in host memory.
struct Translation {
  std::uint64_t va_begin = 0;  ///< first address of the run
  std::uint64_t va_end = 0;    ///< one past its last address
  std::byte* host = nullptr;   ///< host memory of va_begin
  bool writable = false;
};

/// The device's page tables as the interpreter sees them. Thread-safe: called from every worker at
/// once.
///
/// Changing mappings while kernels run: change the tables, then bump generation(); each worker
/// drops its cached translations before its next memory access. An access under way may still use
/// the old host memory: every access happens between enterSlice() and leaveSlice() (at most some
/// milliseconds apart), so the host memory of an unmapped run may go once each slice that was
/// entered before the bump has been left.
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;
  /// Finds the mapped run that holds va. False: va is not mapped, or not writable and `write` is
  /// set.
  virtual bool translate(std::uint64_t va, bool write, Translation& out) = 0;
  /// Changes whenever a mapping is changed or removed.
  virtual const std::atomic<std::uint64_t>& generation() const = 0;
  virtual void enterSlice() {}
  virtual void leaveSlice() {}
};

/// Worker threads that blocks run on.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Threads that can run at once, the caller's included.
  virtual unsigned concurrency() const = 0;
  /// Runs fn(0) on the calling thread and up to workers - 1 more fn(i) on others that are free;
  /// returns when all started ones have returned. The caller always takes part, so each launch
  /// makes progress however many run at once.
  virtual void run(unsigned workers, const std::function<void(unsigned)>& fn) = 0;
};

/// A pool of threads for any number of concurrent launches. Thread-safe. threads = 0: one for each
/// core.
std::unique_ptr<Executor> makeThreadPool(unsigned threads = 0);

/// Takes the output of device printf and assert. Called from several workers, one call for each
/// printed message, in one piece.
class PrintfSink {
 public:
  virtual ~PrintfSink() = default;
  virtual void write(std::string_view text) = 0;
  /// The line of an assertion that failed.
  virtual void assertion(std::string_view text) = 0;
};

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  Dim3 cluster;  ///< blocks in a cluster; each dimension must divide the grid's
  std::uint32_t dynamic_shared_bytes = 0;
  std::span<const std::byte> params;  ///< at least param_bytes of the kernel, laid out by
                                      ///< ParamInfo::offset; read during run()
  bool cooperative = false;           ///< all blocks of the grid are resident at once
  std::uint64_t grid_workspace = 0;   ///< device address that %envreg1:%envreg2 give; cooperative
                                      ///< launches need kGridWorkspaceBytes of zeroed memory there
  std::uint32_t stack_bytes =
      64 * 1024;  ///< local memory of a thread for call stacks that have no static bound
  std::uint32_t sm_count = 16;  ///< %nsmid
  std::uint32_t resident_blocks =
      64;  ///< blocks time-sliced at once when they do not finish (not cooperative)
  std::uint64_t grid_id = 0;         ///< %gridid
  TextureTable* textures = nullptr;  ///< null: there are no texture and surface objects
};

inline constexpr std::uint32_t kGridWorkspaceBytes = 4096;

/// How a launch ended. Only kOk leaves the context usable.
enum class LaunchStatus {
  kOk,
  kIllegalAddress,  ///< not mapped, or a store to read-only memory
  kMisaligned,
  kTrap,    ///< the trap instruction
  kAssert,  ///< assert() of device code; its text went to the sink
  kStackOverflow,
  kIllegalInstruction,  ///< an indirect call to what is no function
  kInvalidConfig,       ///< refused before anything ran: block too large, parameters missing, ...
  kDeadlock,            ///< every thread of a block waits at barriers that nobody can complete
  kCancelled,
};

struct LaunchResult {
  LaunchStatus status = LaunchStatus::kOk;
  std::uint64_t address = 0;  ///< of an illegal or misaligned access
  bool write = false;
  std::uint32_t pc = 0;    ///< index of the instruction in the decoded function
  std::uint32_t line = 0;  ///< line of the PTX text
  std::string kernel;
  Dim3 block{0, 0, 0};  ///< of the failing thread
  Dim3 thread{0, 0, 0};
  std::string message;                    ///< one line for the log
  std::uint64_t thread_instructions = 0;  ///< lanes that were active, summed over all instructions

  bool ok() const { return status == LaunchStatus::kOk; }
};

/// Runs a kernel of a linked module to its end. Blocks the caller. Thread-safe; memory of other
/// launches and the CPU may change meanwhile, device atomics are host atomics. Setting `cancel`
/// ends the launch within some milliseconds.
LaunchResult run(const Module& module, const Kernel& kernel, const LaunchConfig& config,
                 AddressSpace& memory, Executor& executor, PrintfSink& sink,
                 const std::atomic<bool>& cancel);

}  // namespace olpager::simgpu::ptx
