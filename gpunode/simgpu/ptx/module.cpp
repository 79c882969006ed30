// Module: what callers see of a Program; and the link step, which fills in addresses.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "gpunode/simgpu/ptx/program.h"

namespace olpager::simgpu::ptx {

Module::Module(std::unique_ptr<Program> program) : program_(std::move(program)) {}
Module::~Module() = default;

const std::vector<GlobalInfo>& Module::globals() const { return program_->globals; }
const std::vector<std::unique_ptr<Kernel>>& Module::kernels() const { return program_->kernels; }

const Kernel* Module::kernel(std::string_view name) const {
  for (const auto& kernel : program_->kernels) {
    if (kernel->info().name == name) return kernel.get();
  }
  return nullptr;
}

std::vector<std::string> Module::deviceFunctions() const {
  std::vector<std::string> names;
  for (const CodeFunction& function : program_->functions) {
    if (function.has_body && !function.is_entry && function.is_visible)
      names.push_back(function.name);
  }
  return names;
}

std::uint64_t Module::functionAddress(std::string_view name) const {
  const auto found = program_->function_index.find(std::string(name));
  if (found == program_->function_index.end() || !program_->functions[found->second].has_body)
    return 0;
  return program_->codeAddress(found->second);
}

Status Module::setGlobalAddress(std::string_view name, std::uint64_t va) {
  const auto found = program_->global_index.find(std::string(name));
  if (found == program_->global_index.end()) {
    return Error{program_->name + ": no variable '" + std::string(name) + "' in the module"};
  }
  program_->addresses[found->second] = va;
  return {};
}

Status Module::link(const std::function<std::uint64_t(const GlobalInfo&)>& resolver) {
  for (std::size_t i = 0; i < program_->globals.size(); ++i)
    program_->addresses[i] = resolver(program_->globals[i]);
  return link();
}

Status Module::link() {
  static std::atomic<std::uint32_t> next_id{1};
  Program& program = *program_;
  if (program.takes_code_addresses && program.id == 0) program.id = next_id.fetch_add(1) & 0xFFFFF;
  for (std::size_t i = 0; i < program.globals.size(); ++i) {
    // An empty variable needs no memory.
    if (program.addresses[i] == 0 && program.globals[i].size != 0) {
      return Error{
          program.name + ": variable '" + program.globals[i].name + "' has no address" +
          (program.globals[i].is_extern ? " (it is extern: link the module that defines it)" : "")};
    }
  }
  for (const AddressConstant& constant : program.address_constants) {
    const std::uint64_t value = constant.of_function
                                    ? program.codeAddress(constant.index)
                                    : program.addresses[constant.index] + constant.addend;
    auto* const to = reinterpret_cast<std::byte*>(program.constants.data()) + constant.offset;
    for (std::size_t lane = 0; lane < kWarpSize; ++lane)
      std::memcpy(to + lane * constant.size, &value, constant.size);
  }
  for (const GlobalInfo& global : program.globals) {
    for (const Relocation& relocation : global.relocations) {
      if (program.global_index.count(relocation.symbol) == 0 &&
          functionAddress(relocation.symbol) == 0) {
        return Error{program.name + ": initialiser of '" + global.name + "' names unknown '" +
                     relocation.symbol + "'"};
      }
    }
  }
  program.linked = true;
  return {};
}

bool Module::linked() const { return program_->linked; }

std::uint64_t Module::globalAddress(std::string_view name) const {
  const auto found = program_->global_index.find(std::string(name));
  return found == program_->global_index.end() ? 0 : program_->addresses[found->second];
}

std::vector<std::byte> Module::image(const GlobalInfo& global) const {
  std::vector<std::byte> bytes = global.init;
  bytes.resize(global.size);
  for (const Relocation& relocation : global.relocations) {
    const auto found = program_->global_index.find(relocation.symbol);
    std::uint64_t value = found != program_->global_index.end()
                              ? program_->addresses[found->second]
                              : functionAddress(relocation.symbol);
    value += static_cast<std::uint64_t>(relocation.addend);
    value >>= relocation.shift;
    if (relocation.offset + relocation.size <= bytes.size()) {
      std::memcpy(bytes.data() + relocation.offset, &value,
                  std::min<std::size_t>(8, relocation.size));
    }
  }
  return bytes;
}

int Module::ptxVersion() const { return program_->version; }
int Module::target() const { return program_->target; }

Result<std::shared_ptr<Module>> compile(std::string_view ptx_text, const CompileOptions& options) {
  auto ast = parse(ptx_text);
  if (!ast) return Error{options.name + ":" + ast.error().message};
  auto program = decode(ast.value());
  if (!program) return Error{options.name + ":" + program.error().message};
  program.value()->name = options.name;
  return std::make_shared<Module>(std::move(program).value());
}

}  // namespace olpager::simgpu::ptx
