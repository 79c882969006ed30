#include "gpunode/worker/operations.h"

#include "gpunode/worker/driver_library.h"

namespace olpager::gpunode {

bool OperationFunctions::load(const DriverLibrary& library) {
  return library.find("olpager_operation_new", make) &&
         library.find("olpager_operation_delete", end) &&
         library.find("olpager_operation_enter", enter) &&
         library.find("olpager_operation_uses", uses) &&
         library.find("olpager_operation_alone", alone) &&
         library.find("olpager_operation_suspended", suspended) &&
         library.find("olpager_operation_again", again) &&
         library.find("olpager_operation_over", over);
}

}  // namespace olpager::gpunode
