// Reader of cubins, the ELF files with a GPU's machine code: kernels with the layout of their
// parameters, and the variables in global and constant memory. The machine code itself is not read.
// Every read is checked against the file's size; only `cubinSize` follows a trusted pointer.
// Thread-safety: pure functions. Ownership: names are copies; `init` views the caller's bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fatbin/bytes.h"
#include "base/result.h"

namespace olpager::fatbin {

struct Parameter {
  uint32_t ordinal = 0;
  uint32_t offset = 0;  ///< bytes from the start of the parameter block
  uint32_t size = 0;    ///< bytes
};

struct Kernel {
  std::string name;
  uint32_t parameter_bytes = 0;       ///< size of the whole block
  std::vector<Parameter> parameters;  ///< by ordinal
};

enum class Space { global, constant };

struct Variable {
  std::string name;
  Space space{};
  uint64_t offset = 0;  ///< bytes from the start of its section
  uint64_t size = 0;    ///< bytes
  bool managed = false;
  bool local = false;  ///< its ELF binding (nvcc makes variables of whole-program modules local)
  Bytes init;          ///< the initial bytes; empty where they are zeros
};

struct Cubin {
  uint32_t arch = 0;  ///< 90 for sm_90
  std::vector<Kernel> kernels;
  std::vector<Variable> variables;
};

/// Reads a cubin. The result views `elf`.
Result<Cubin> readCubin(Bytes elf);

/// The size in bytes of the cubin at `elf` in this process's memory, from its headers. The pointer
/// is trusted.
Result<uint64_t> cubinSize(const void* elf);

}  // namespace olpager::fatbin
