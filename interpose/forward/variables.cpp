// Variables of modules and libraries. A __managed__ one lies where the gpunode's driver has placed
// it, and the code that uses it has that address in it: so the program gets memory at the same
// address, when it asks for the variable (the runtime does that before the program's first use),
// and the two are exchanged as managed memory of the window is (exchange.h). If the program has
// something else there already, it is refused.
//
// A variable: unknown -> adopted (by the first who asks for it) -> gone (before its library, or its
// module or the context that that is in). Locks: Variables::mutex, above those of blocks and of
// calls; of a session one variable is adopted, or goes, at a time.
#include "interpose/forward/variables.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <mutex>
#include <vector>

#include "base/held_signals.h"
#include "base/log.h"
#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/captures.h"
#include "interpose/forward/driver_memory.h"
#include "interpose/forward/exchange.h"
#include "interpose/forward/executor.h"
#include "interpose/forward/host_blocks.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/window.h"

namespace olpager::forward {
namespace {

constexpr uint64_t kPage = 4096;

using Variable = Variables::Variable;

// Under the mutex. The pages of a variable that have nothing of another one.
struct Pages {
  uint64_t begin, end;
  void* at() const { return reinterpret_cast<void*>(begin); }
  uint64_t bytes() const { return end - begin; }
};
Pages ownPages(const Variables& known, uint64_t address, uint64_t bytes) {
  Pages pages{address / kPage * kPage, (address + bytes + kPage - 1) / kPage * kPage};
  const auto after = known.all.upper_bound(address);
  const auto at = known.all.lower_bound(address);
  if (at != known.all.begin()) {
    const auto& [before, variable] = *std::prev(at);
    if (before + variable.bytes > pages.begin) pages.begin += kPage;
  }
  if (pages.begin < pages.end && after != known.all.end() && after->first < pages.end)
    pages.end -= kPage;
  return pages;
}

CUresult outOfReach(const char* name, const char* why) {
  base::warnOnce(name, "__managed__ variable %s: %s: CUDA_ERROR_NOT_SUPPORTED", name, why);
  return CUDA_ERROR_NOT_SUPPORTED;
}

struct Gone : Call {
  Gone(Session* session, uint64_t address) : Call(Operation::kManagedGone, session) {
    value(address);
    ofOurOwn();
  }
};

// Brings what is there by now: the image's values, and what kernels made of them.
CUresult fetch(Session* session, uint64_t address, uint64_t bytes) {
  const base::HeldSignals held;  // under the mutex, which others need
  // Kernels that are under way were launched when nobody exchanged it.
  if (contextIn(session) != 0 && !capturing()) {
    Call synchronize(api::Symbol::kCuCtxSynchronize, session);
    synchronize.mayWait();
    synchronize.ofOurOwn();
    (void)synchronize.sync();  // what a kernel did wrong is told by other calls
  }
  constexpr uint64_t kPiece = 4 << 20;
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    Call call(Operation::kManagedBytes, session);
    call.value(address);
    call.value(at);
    call.value(std::min(kPiece, bytes - at));
    call.ofOurOwn();
    const CUresult result = call.sync();
    if (!call.answered()) return result != CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
    putVariable(session, call.reply());
  }
  return CUDA_SUCCESS;
}

// Why a variable can't be where the gpunode says; null: it can. Blocks of the window are the
// client's to place, and two variables share no byte.
const char* wrongPlace(const Variables& known, uint64_t address, uint64_t bytes) {
  constexpr uint64_t kUser = 1ull << 47;  // addresses of programs
  if (bytes == 0 || address < kPage || address >= kUser || bytes > kUser - address)
    return "where no variable can be";
  if (address < kWindow + kWindowBytes && kWindow < address + bytes)
    return "where pinned memory is";
  const auto after = known.all.lower_bound(address);
  if (after != known.all.end() && after->first < address + bytes) return "in another variable";
  if (after != known.all.begin()) {
    const auto& [before, variable] = *std::prev(after);
    if (variable.bytes > address - before) return "in another variable";
  }
  BlockInfo block;
  if (blockAt(address, &block) || blockAt(address + bytes - 1, &block))
    return "where pinned memory is";
  return nullptr;
}

// Under the mutex.
void forget(Variables& known, uint64_t address) {
  const auto found = known.all.find(address);
  const Variable variable = found->second;
  // Asynchronous copies may still move it.
  (void)awaitMemory(address, variable.bytes, *variable.session);
  Gone gone(variable.session, address);
  removeVariable(address, gone);
  known.all.erase(found);
  const Pages pages = ownPages(known, address, variable.bytes);
  if (pages.begin < pages.end) munmap(pages.at(), pages.bytes());
}

// Pages that are mapped for a variable, until they are its own.
class Mapped {
 public:
  explicit Mapped(const Pages& pages) : pages_(pages) {}
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() {
    if (pages_.begin < pages_.end) munmap(pages_.at(), pages_.bytes());
  }
  void keep() { pages_ = {}; }

 private:
  Pages pages_;
};

CUresult adopt(Session* session, uint64_t address, uint64_t bytes, const Variable& variable,
               const char* name) {
  Variables& known = *session->parts().variables;
  const auto isRefused = [&](const char* why) {
    char line[256];
    std::snprintf(line, sizeof line, "gpunode %s has %llu bytes of it at 0x%llx, %s",
                  session->executor().name().c_str(), static_cast<unsigned long long>(bytes),
                  static_cast<unsigned long long>(address), why);
    (void)Gone(session, address).sync();
    return outOfReach(name, line);
  };
  if (const char* const wrong = wrongPlace(known, address, bytes); wrong != nullptr)
    return isRefused(wrong);
  const Pages pages = ownPages(known, address, bytes);
  if (pages.begin < pages.end) {
    void* const got =
        mmap(pages.at(), pages.bytes(), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != pages.at()) {
      const int error = errno;
      if (got != MAP_FAILED) munmap(got, pages.bytes());  // a kernel that does not know the flag
      char why[160];
      std::snprintf(why, sizeof why,
                    "where this program has memory of its own (%s); another run has other "
                    "addresses",
                    got == MAP_FAILED ? std::strerror(error) : "taken");
      return isRefused(why);
    }
  }
  // The block needs as much memory again. If there is none, nothing stays of the variable.
  Mapped mapped(pages);
  try {
    addVariable(session, address, bytes);
    known.all[address] = variable;
  } catch (const std::exception&) {
    Gone gone(session, address);
    removeVariable(address, gone);
    throw;
  }
  mapped.keep();
  const CUresult result = fetch(session, address, bytes);
  if (result != CUDA_SUCCESS) forget(known, address);
  return result;
}

// Under the mutex. Finds the variable's owner; false: what the module is of is not known.
bool ownerOf(const Variables& known, VariableKind kind, uint64_t owner, Variable* variable) {
  variable->owner = owner;
  if (kind != VariableKind::kModule) return true;
  const auto module = known.modules.find(owner);
  if (module == known.modules.end()) return false;
  if (module->second.library != 0) variable->owner = module->second.library;
  variable->context = module->second.context;
  return true;
}

void noteModule(uint64_t module, const Variables::Module& what) {
  const Session* const session = Route().handle(module).session();
  if (session == nullptr) return;
  Variables& known = *session->parts().variables;
  const std::lock_guard lock(known.mutex);
  known.modules[module] = what;
}

}  // namespace

CUresult findVariable(VariableKind kind, uint64_t owner, const char* name, CUdeviceptr* address,
                      size_t* bytes) {
  const char* const shown = name != nullptr ? name : "";
  if (kind == VariableKind::kLibraryManaged && severalSessions())
    return outOfReach(shown, "libraries are loaded at several gpunodes, each of which has its own");
  Call call(Operation::kVariable, Route().handle(owner));
  call.value(kind);
  call.handle(owner);
  call.string(name);
  const CUresult result = call.sync();
  if (!call.answered()) return result;
  Session* const session = call.session();
  const auto found = call.reply().value<uint64_t>();
  const auto size = call.reply().value<uint64_t>();
  const auto memory = call.reply().value<VariableMemory>();
  Variables& known = *session->parts().variables;
  const std::lock_guard one(known.mutex);
  if (memory == VariableMemory::kDevice) {
    session->parts().driver_memory->note(found, size);
  } else if (memory == VariableMemory::kOutOfReach) {
    return outOfReach(shown, "the gpunode's CPU can't use managed memory while kernels run");
  } else if (!known.all.contains(found)) {
    Variable variable{size, 0, 0, session};
    const bool is_known = ownerOf(known, kind, owner, &variable);
    if (!is_known || severalSessions()) {
      (void)Gone(session, found).sync();
      return outOfReach(shown, is_known ? "the program has several gpunodes"
                                        : "it is not known what its module is of");
    }
    if (const CUresult error = adopt(session, found, size, variable, shown); error != CUDA_SUCCESS)
      return error;
  }
  if (address != nullptr) *address = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

void noteModule(uint64_t module, uint64_t context) { noteModule(module, {context, 0}); }

void noteModuleOf(uint64_t module, uint64_t library) { noteModule(module, {0, library}); }

void variablesGone(uint64_t owner) {
  if (owner == 0 || inForkedChild()) return;  // a child has the memory, and no session
  KnownKernels& kernels = *program().parts().known_kernels;
  kernels.gone(owner);
  for (const Session* const session : existingSessions()) {
    Variables& known = *session->parts().variables;
    const std::lock_guard lock(known.mutex);
    std::vector<uint64_t> going;
    for (const auto& [address, variable] : known.all) {
      if (variable.owner == owner || variable.context == owner) going.push_back(address);
    }
    for (const uint64_t address : going) forget(known, address);
    std::erase_if(known.modules, [&](const auto& module) {
      const bool its =
          module.first == owner || module.second.context == owner || module.second.library == owner;
      if (its) kernels.gone(module.first);
      return its;
    });
  }
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module,
                                         const char* name) {
  return findVariable(VariableKind::kModule, reinterpret_cast<uint64_t>(module), name, address,
                      bytes);
}
CUresult ol_forward_cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                       const char* name) {
  return findVariable(VariableKind::kLibrary, reinterpret_cast<uint64_t>(library), name, address,
                      bytes);
}
CUresult ol_forward_cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library,
                                        const char* name) {
  return findVariable(VariableKind::kLibraryManaged, reinterpret_cast<uint64_t>(library), name,
                      address, bytes);
}

CUresult ol_forward_cuModuleUnload(CUmodule module) {
  variablesGone(reinterpret_cast<uint64_t>(module));
  return ol_forward_generated_cuModuleUnload(module);
}

}  // extern "C"
