#include "gpunode/worker/operations.h"

#include <type_traits>

#include "gpunode/worker/driver_library.h"

namespace olpager::gpunode {

bool OperationFunctions::load(const DriverLibrary& library) {
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    return function != nullptr;
  };
  return find("olpager_operation_new", make) && find("olpager_operation_delete", end) &&
         find("olpager_operation_enter", enter) && find("olpager_operation_uses", uses) &&
         find("olpager_operation_alone", alone) && find("olpager_operation_suspended", suspended) &&
         find("olpager_operation_again", again) && find("olpager_operation_over", over);
}

}  // namespace olpager::gpunode
