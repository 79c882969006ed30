#include "interpose/forward/kernel_attributes.h"

#include <cstring>

#include "interpose/api/forward_functions.h"
#include "interpose/api/function_facts.h"
#include "interpose/forward/answer_cache.h"
#include "interpose/forward/call.h"
#include "interpose/forward/contexts.h"
#include "interpose/forward/known_kernels.h"
#include "interpose/forward/launch.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session_parts.h"
#include "interpose/forward/variables.h"

namespace olpager::forward {
namespace {

using Kind = SetAttributes::Kind;

KernelAliases& aliases() { return *program().parts().kernel_aliases; }
uint64_t kernelOf(uint64_t handle) {
  std::shared_lock lock(aliases().mutex);
  const auto found = aliases().of_functions.find(handle);
  return found != aliases().of_functions.end() ? found->second : handle;
}
void anyFunctionMayBeOfAnyKernel() {
  std::unique_lock lock(aliases().mutex);
  aliases().any = true;
}
// `kinds`: whether they may be one of each kind.
bool mayBeOne(uint64_t handle, uint64_t other, bool kinds) {
  if (kernelOf(handle) == kernelOf(other)) return true;
  std::shared_lock lock(aliases().mutex);
  return kinds && aliases().any;
}

SetAttributes& known() { return *program().parts().set_attributes; }

// A question about attributes, as the generated encoder writes it: the attribute, then the handle.
struct AttributeQuestion {
  CUfunction_attribute attribute;
  uint64_t handle;
};
bool asksForAttribute(size_t function, std::string_view arguments, AttributeQuestion* question) {
  const auto symbol = static_cast<api::Symbol>(function);
  if (symbol != api::Symbol::kCuFuncGetAttribute && symbol != api::Symbol::kCuKernelGetAttribute)
    return false;
  if (arguments.size() < sizeof question->attribute + sizeof question->handle) return false;
  std::memcpy(&question->attribute, arguments.data(), sizeof question->attribute);
  std::memcpy(&question->handle, arguments.data() + sizeof question->attribute,
              sizeof question->handle);
  return true;
}

bool asksForOccupancy(size_t function) {
  return function == static_cast<size_t>(Operation::kClusters) ||
         api::holds(api::Fact::kOccupancy, function);
}

// The generated encoders write the kernel first.
bool asksForOccupancyOfAnother(size_t function, std::string_view arguments, uint64_t handle) {
  uint64_t asked = 0;
  if (function >= api::kSymbolCount || arguments.size() < sizeof asked) return false;
  std::memcpy(&asked, arguments.data(), sizeof asked);
  return !mayBeOne(asked, handle, true);
}

// True if setting this makes the answer another.
bool changes(const SetAttributes::Key& key, size_t function, std::string_view arguments) {
  const auto [kind, attribute, handle, device] = key;
  AttributeQuestion question{};
  if (!asksForAttribute(function, arguments, &question))
    return asksForOccupancy(function) && !asksForOccupancyOfAnother(function, arguments, handle);
  const bool by_kernel = static_cast<api::Symbol>(function) == api::Symbol::kCuKernelGetAttribute;
  return question.attribute == attribute &&
         mayBeOne(question.handle, handle, by_kernel != (kind == Kind::kKernel));
}

// `make` asks the driver; `repeat` tells it what it has taken before.
template <typename Make, typename Repeat>
CUresult set(const SetAttributes::Key& key, int value, Make make, Repeat repeat) {
  const CUfunction_attribute attribute = std::get<1>(key);
  const uint64_t set_of = std::get<2>(key);
  if (known().isSo(key, value)) return CUDA_SUCCESS;
  const CUresult result = known().wasTaken(key, value) ? repeat() : make();
  if (result != CUDA_SUCCESS) return result;
  known().note(key, value);
  forgetTakenIf([&](uint64_t handle, uint32_t shared) {
    // A launch that was taken with no more than is allowed now would be taken again.
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 &&
        shared <= static_cast<uint32_t>(value))
      return false;
    return mayBeOne(handle, set_of, true);
  });
  for (Session* const session : existingSessions())
    session->answers().forgetIf([&](size_t function, std::string_view arguments) {
      return changes(key, function, arguments);
    });
  return result;
}

}  // namespace

bool SetAttributes::isSo(const Key& key, int value) {
  std::lock_guard lock(mutex);
  const auto found = values.find(key);
  return found != values.end() && found->second == value;
}

void SetAttributes::note(const Key& key, int value) {
  std::lock_guard lock(mutex);
  std::erase_if(values, [&](const auto& entry) {
    const auto& [kind, attribute, handle, device] = entry.first;
    return entry.first != key && attribute == std::get<1>(key) &&
           mayBeOne(handle, std::get<2>(key), kind != std::get<0>(key));
  });
  values[key] = value;
  taken[key].insert(value);
}

bool SetAttributes::wasTaken(const Key& key, int value) {
  std::lock_guard lock(mutex);
  const auto found = taken.find(key);
  return found != taken.end() && found->second.contains(value);
}

bool changesWithKernel(size_t function, std::string_view arguments) {
  AttributeQuestion question{};
  if (!asksForAttribute(function, arguments, &question)) return asksForOccupancy(function);
  // Those before this one are of the kernel's code.
  return question.attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
}

void forgetSetAttributes() {
  std::lock_guard lock(known().mutex);
  known().values.clear();
  known().taken.clear();
}

}  // namespace olpager::forward

using namespace olpager::forward;  // NOLINT(google-build-using-namespace): the functions below are
                                   // C functions

extern "C" {

CUresult ol_forward_cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  const CUresult result = ol_forward_generated_cuKernelGetFunction(function, kernel);
  if (result == CUDA_SUCCESS && function != nullptr) {
    std::unique_lock lock(aliases().mutex);
    aliases().of_functions[reinterpret_cast<uint64_t>(*function)] =
        reinterpret_cast<uint64_t>(kernel);
    program().parts().known_kernels->isFunctionOf(reinterpret_cast<uint64_t>(*function),
                                                  reinterpret_cast<uint64_t>(kernel));
  }
  return result;
}

CUresult ol_forward_cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  anyFunctionMayBeOfAnyKernel();
  const CUresult result = ol_forward_generated_cuLibraryGetModule(module, library);
  if (result == CUDA_SUCCESS && module != nullptr) {
    noteModuleOf(reinterpret_cast<uint64_t>(*module), reinterpret_cast<uint64_t>(library));
    program().parts().known_kernels->isOf(reinterpret_cast<uint64_t>(*module),
                                          reinterpret_cast<uint64_t>(library));
  }
  return result;
}

CUresult ol_forward_cuFuncGetModule(CUmodule* module, CUfunction function) {
  anyFunctionMayBeOfAnyKernel();
  return ol_forward_generated_cuFuncGetModule(module, function);
}

CUresult ol_forward_cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                       int value) {
  // A kernel may stand for its function in the current context.
  CUdevice device = CU_DEVICE_INVALID;
  (void)deviceOf(currentContext(), &device);
  return set(
      {Kind::kFunction, attribute, reinterpret_cast<uint64_t>(function), device}, value,
      [&] { return ol_forward_generated_cuFuncSetAttribute(function, attribute, value); },
      [&] {
        Call call(olpager::api::Symbol::kCuFuncSetAttribute, Route().handle(function));
        call.handle(function);
        call.value(attribute);
        call.value(value);
        return call.oneWay();
      });
}

CUresult ol_forward_cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                         CUdevice device) {
  return set(
      {Kind::kKernel, attribute, reinterpret_cast<uint64_t>(kernel), device}, value,
      [&] { return ol_forward_generated_cuKernelSetAttribute(attribute, value, kernel, device); },
      [&] {
        Call call(olpager::api::Symbol::kCuKernelSetAttribute,
                  Route().device(device).handle(kernel));
        call.value(attribute);
        call.value(value);
        call.handle(kernel);
        call.devices(device);
        return call.oneWay();
      });
}

}  // extern "C"
