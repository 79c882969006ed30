// Variables of modules and libraries, and the records that go with these. Thread-safety: any
// thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "forwarding/wire/wire.h"

namespace olpager::forward {

class Session;

/// A session's variables in managed memory that are here, and the libraries of modules.
struct Variables {
  struct Variable {
    uint64_t bytes = 0;
    uint64_t owner = 0;    // a library, or a module that was loaded by itself
    uint64_t context = 0;  // of such a module
    Session* session = nullptr;
  };
  struct Module {
    uint64_t context = 0;
    uint64_t library = 0;  // whose it is; 0: loaded by itself
  };
  std::mutex mutex;
  std::map<uint64_t, Variable> all;  // by address
  std::map<uint64_t, Module> modules;
};

/// `owner`: the module or library. One in managed memory has its bytes here, at the address that
/// kernels have for it, until its owner goes.
CUresult findVariable(VariableKind kind, uint64_t owner, const char* name, CUdeviceptr* address,
                      size_t* bytes);

/// A module was loaded in a context, or is what a library is there.
void noteModule(uint64_t module, uint64_t context);
void noteModuleOf(uint64_t module, uint64_t library);

/// Before a module, a library, or a context with the modules in it goes: the memory of their
/// managed variables does as well.
void variablesGone(uint64_t owner);

}  // namespace olpager::forward
