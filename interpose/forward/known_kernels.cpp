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

}  // namespace

KnownCode::KnownCode(std::span<const std::byte> image, bool stays) {
  try {
    if (!stays) copy_.assign(image.begin(), image.end());
    const std::span<const std::byte> kept = stays ? image : copy_;
    reader_.emplace(fatbin::Bytes(reinterpret_cast<const uint8_t*>(kept.data()), kept.size()));
  } catch (const std::exception&) {
    copy_ = {};
    unreadable_ = true;
  }
}

// One image more never takes back what others allow. So the first that allows it decides, and all
// have been read where it is refused.
bool KnownCode::allows(const std::string& kernel, std::span<const ParameterPlace> places) {
  const std::lock_guard lock(mutex_);
  if (!reader_) return unreadable_;
  const auto isAllowed = [&] {
    const auto& kernels = reader_->table().kernels;
    const auto found = kernels.find(kernel);
    return found != kernels.end() && fits(found->second, places);
  };
  while (!isAllowed() && !reader_->allRead()) {
    try {
      (void)reader_->readNext();
    } catch (const std::exception&) {  // no memory for what is packed in it
      unreadable_ = true;
    }
  }
  if (reader_->allRead()) copy_ = {};
  if (isAllowed()) return true;
  const fatbin::KernelTable& table = reader_->table();
  return !table.kernels.contains(kernel) && (unreadable_ || !table.whole);
}

void KnownCode::gone() {
  const std::lock_guard lock(mutex_);
  reader_.reset();
  copy_ = {};
  unreadable_ = false;
}

size_t KnownCode::imagesRead() {
  const std::lock_guard lock(mutex_);
  return reader_ ? reader_->images() : 0;
}

void KnownKernels::loaded(uint64_t owner, Code code) {
  const std::lock_guard lock(mutex_);
  const auto [found, fresh] = code_.try_emplace(owner, std::move(code));
  // No two pieces of code have one handle: of which of them a kernel is nobody could tell.
  if (!fresh) found->second = std::make_shared<KnownCode>();
}

void KnownKernels::isOf(uint64_t module, uint64_t library) {
  const std::lock_guard lock(mutex_);
  of_[module] = library;
}

void KnownKernels::note(uint64_t handle, Kernel kernel) {
  const auto [found, fresh] = kernels_.try_emplace(handle, kernel);
  if (fresh) return;
  Kernel& known = found->second;
  if (known.code != kernel.code || known.name != kernel.name) known.contradicted = true;
}

void KnownKernels::named(uint64_t kernel, uint64_t owner, std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto library = of_.find(owner);
  const uint64_t loaded = library != of_.end() ? library->second : owner;
  const auto code = code_.find(loaded);
  if (code != code_.end()) note(kernel, {loaded, std::string(name), code->second});
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
  Code code;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(of_, [&](const auto& one) { return one.first == owner || one.second == owner; });
    if (const auto found = code_.extract(owner); !found.empty()) code = found.mapped();
    std::erase_if(kernels_, [&](const auto& one) {
      return one.second.owner == owner || one.second.is_function;
    });
  }
  if (code != nullptr) code->gone();
}

bool KnownKernels::hasName(uint64_t kernel) const {
  const std::lock_guard lock(mutex_);
  return kernels_.contains(kernel);
}

bool KnownKernels::agrees(uint64_t kernel, std::span<const ParameterPlace> places,
                          const std::string& name) const {
  std::string its = name;
  std::vector<Code> codes;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(kernel); found != kernels_.end()) {
      if (found->second.contradicted) return false;
      its = found->second.name;
      codes.push_back(found->second.code);
    } else {
      for (const auto& [owner, code] : code_) codes.push_back(code);
    }
  }
  return std::any_of(codes.begin(), codes.end(),
                     [&](const Code& code) { return code->allows(its, places); });
}

}  // namespace olpager::forward
