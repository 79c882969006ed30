#include "interpose/forward/kernel_attributes.h"

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "interpose/api/forward_functions.h"
#include "interpose/forward/call.h"
#include "interpose/forward/launch.h"

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
    std::erase_if(values, [&](const auto& entry) {
      return std::get<0>(entry.first) != std::get<0>(key) && std::get<1>(entry.first) == std::get<1>(key);
    });
    values[key] = value;
  }
};
SetAttributes& known() {
  static auto* instance = new SetAttributes;
  return *instance;
}

// What is asked of attributes, as the generated encoder writes it: the attribute, then the handle.
struct AttributeQuestion {
  CUfunction_attribute attribute;
  uint64_t handle;
};
bool asksForAttribute(size_t function, std::string_view arguments, AttributeQuestion* question) {
  const auto symbol = static_cast<api::Symbol>(function);
  if (symbol != api::Symbol::kCuFuncGetAttribute && symbol != api::Symbol::kCuKernelGetAttribute) return false;
  if (arguments.size() < sizeof question->attribute + sizeof question->handle) return false;
  std::memcpy(&question->attribute, arguments.data(), sizeof question->attribute);
  std::memcpy(&question->handle, arguments.data() + sizeof question->attribute, sizeof question->handle);
  return true;
}

bool asksForOccupancy(size_t function) {
  if (function >= api::kSymbolCount) return function == static_cast<size_t>(Operation::kClusters);
  return std::string_view(api::symbolName(static_cast<api::Symbol>(function))).starts_with("cuOccupancy");
}

// Whether setting this makes the answer another: of the same handle, or of a handle of the other kind.
bool changes(const SetAttributes::Key& key, size_t function, std::string_view arguments) {
  const auto [kind, attribute, handle, device] = key;
  AttributeQuestion question{};
  if (!asksForAttribute(function, arguments, &question)) return asksForOccupancy(function);
  const bool by_kernel = static_cast<api::Symbol>(function) == api::Symbol::kCuKernelGetAttribute;
  return question.attribute == attribute && (question.handle == handle || by_kernel != (kind == Kind::kKernel));
}

template <typename Set>
CUresult set(const SetAttributes::Key& key, int value, Set make) {
  if (known().isSo(key, value)) return CUDA_SUCCESS;
  const CUresult result = make();
  if (result != CUDA_SUCCESS) return result;
  known().note(key, value);
  forgetTaken();
  for (Session* const session : existingSessions())
    session->forgetAnswersIf(
        [&](size_t function, std::string_view arguments) { return changes(key, function, arguments); });
  return result;
}

}  // namespace

bool changesWithKernel(size_t function, std::string_view arguments) {
  AttributeQuestion question{};
  if (!asksForAttribute(function, arguments, &question)) return asksForOccupancy(function);
  // Those before this one are of the kernel's code.
  return question.attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
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
