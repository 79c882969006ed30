#include "interpose/forward/known_kernels.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace olpager::forward {
namespace {

bool fits(std::span<const uint32_t> sizes, std::span<const ParameterPlace> places) {
  return places.size() <= sizes.size() &&
         std::equal(places.begin(), places.end(), sizes.begin(),
                    [](const ParameterPlace& place, uint32_t size) { return place.bytes <= size; });
}

// Whether code has such a kernel, or may have.
bool allows(const fatbin::KernelTable& table, const std::string& name,
            std::span<const ParameterPlace> places) {
  const auto found = table.kernels.find(name);
  return found != table.kernels.end() ? fits(found->second, places) : !table.whole;
}

}  // namespace

KnownKernels::Table kernelTableOf(std::span<const std::byte> image) {
  auto table = std::make_shared<fatbin::KernelTable>();
  try {
    *table = fatbin::kernelsOf({reinterpret_cast<const uint8_t*>(image.data()), image.size()});
  } catch (const std::exception&) {  // no memory for what is packed in it
    table->whole = false;
  }
  return table;
}

void KnownKernels::loaded(uint64_t owner, Table table) {
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = tables_.try_emplace(owner, std::move(table));
  // No two pieces of code have one handle: of which of them a kernel is nobody could tell.
  if (!fresh) found->second = std::make_shared<const fatbin::KernelTable>();
}

void KnownKernels::isOf(uint64_t module, uint64_t library) {
  const std::lock_guard lock(mutex_);
  of_[module] = library;
}

void KnownKernels::note(uint64_t handle, Kernel kernel) {
  const auto [found, fresh] = kernels_.try_emplace(handle, kernel);
  if (fresh) return;
  Kernel& known = found->second;
  if (known.table != kernel.table || known.name != kernel.name) known.contradicted = true;
}

void KnownKernels::named(uint64_t kernel, uint64_t owner, std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto library = of_.find(owner);
  const uint64_t code = library != of_.end() ? library->second : owner;
  const auto table = tables_.find(code);
  if (table != tables_.end()) note(kernel, {code, std::string(name), table->second});
}

void KnownKernels::isFunctionOf(uint64_t function, uint64_t kernel) {
  const std::lock_guard lock(mutex_);
  const auto found = kernels_.find(kernel);
  if (found == kernels_.end() || function == kernel) return;
  Kernel its = found->second;
  its.is_function = true;
  note(function, std::move(its));
}

void KnownKernels::gone(uint64_t owner) {
  const std::lock_guard lock(mutex_);
  std::erase_if(of_, [&](const auto& one) { return one.first == owner || one.second == owner; });
  tables_.erase(owner);
  std::erase_if(kernels_, [&](const auto& one) {
    return one.second.owner == owner || one.second.is_function;
  });
}

bool KnownKernels::hasName(uint64_t kernel) const {
  const std::lock_guard lock(mutex_);
  return kernels_.contains(kernel);
}

bool KnownKernels::agrees(uint64_t kernel, std::span<const ParameterPlace> places,
                          const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = kernels_.find(kernel); known != kernels_.end())
    return !known->second.contradicted && allows(*known->second.table, known->second.name, places);
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const auto& one) { return allows(*one.second, name, places); });
}

}  // namespace olpager::forward
