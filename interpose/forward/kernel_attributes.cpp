#include "interpose/forward/kernel_attributes.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"

namespace olpager::forward {
namespace {

// What was set last. A kernel of a library and its function in a context are two handles of one thing: what is set by one kind of handle
// ends what is known of the other kind.
enum class Kind { kFunction, kKernel };
struct SetAttributes {
  using Key = std::tuple<Kind, CUfunction_attribute, uint64_t, CUdevice>;
  std::mutex mutex;  // alone
  std::map<Key, int> values;

  bool isSo(const Key& key, int value) {
    std::lock_guard lock(mutex);
    const auto found = values.find(key);
    return found != values.end() && found->second == value;
  }
  void note(const Key& key, int value) {
    std::lock_guard lock(mutex);
    const auto [kind, attribute, handle, device] = key;
    std::erase_if(values, [&](const auto& entry) {
      return std::get<0>(entry.first) != kind && std::get<1>(entry.first) == attribute;
    });
    values[key] = value;
  }
};
SetAttributes& known() {
  static auto* instance = new SetAttributes;
  return *instance;
}

template <typename Set>
CUresult set(const SetAttributes::Key& key, int value, Set make) {
  if (known().isSo(key, value)) return CUDA_SUCCESS;
  const CUresult result = make();
  if (result == CUDA_SUCCESS) known().note(key, value);
  return result;
}

}  // namespace

bool changesWithKernel(api::Symbol symbol, std::string_view arguments) {
  using api::Symbol;
  const auto function = static_cast<size_t>(symbol);
  if (function >= api::kSymbolCount) return function == static_cast<size_t>(Operation::kClusters);
  switch (symbol) {
    case Symbol::kCuFuncGetAttribute:
    case Symbol::kCuKernelGetAttribute: {
      // The attribute comes first. Those before this one are of the kernel's code.
      CUfunction_attribute attribute{};
      if (arguments.size() < sizeof attribute) return true;
      std::memcpy(&attribute, arguments.data(), sizeof attribute);
      return attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    }
    default:
      return std::string_view(api::symbolName(symbol)).starts_with("cuOccupancy");
  }
}

void forgetSetAttributes() {
  std::lock_guard lock(known().mutex);
  known().values.clear();
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are C functions

extern "C" {

CUresult ol_forward_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return set({Kind::kFunction, attribute, reinterpret_cast<uint64_t>(function), 0}, value,
             [&] { return ol_forward_generated_cuFuncSetAttribute(function, attribute, value); });
}

CUresult ol_forward_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  return set({Kind::kKernel, attribute, reinterpret_cast<uint64_t>(kernel), device}, value,
             [&] { return ol_forward_generated_cuKernelSetAttribute(attribute, value, kernel, device); });
}

}  // extern "C"
