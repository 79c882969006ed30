// Operations as libolpager.so offers them (forwarding/operations.h), and one that a thread makes.
#pragma once

#include <cstdint>
#include <memory>

#include "forwarding/operations.h"

namespace olpager::gpunode {

class DriverLibrary;

/// The library's functions. Thread-safety: any thread, after load().
struct OperationFunctions {
  decltype(&olpager_operation_new) make = nullptr;
  decltype(&olpager_operation_delete) end = nullptr;
  decltype(&olpager_operation_enter) enter = nullptr;
  decltype(&olpager_operation_uses) uses = [](CUdeviceptr, uint64_t) {};
  decltype(&olpager_operation_alone) alone = [] {};
  decltype(&olpager_operation_suspended) suspended = nullptr;
  decltype(&olpager_operation_again) again = nullptr;
  decltype(&olpager_operation_over) over = nullptr;

  /// False: it is of another version, and has none.
  bool load(const DriverLibrary& library);
  explicit operator bool() const { return over != nullptr; }
};

/// One after the other is made by it. A suspended one is not deleted.
class PagerOperation {
 public:
  /// `resumable`: as olpager_operation_new().
  PagerOperation(const OperationFunctions& functions, void (*resumable)(void* of), void* of)
      : functions_(functions), operation_(functions.make(resumable, of)) {}
  ~PagerOperation() {
    if (operation_ != nullptr && !suspended_) functions_.end(operation_);
  }
  PagerOperation(const PagerOperation&) = delete;
  PagerOperation& operator=(const PagerOperation&) = delete;

  /// False: there is none to be had.
  explicit operator bool() const { return operation_ != nullptr; }

  /// The calling thread makes it from now on; where it is suspended, again.
  void enter(uint64_t age, uint64_t oldest) {
    if (!suspended_) return functions_.enter(operation_, age, oldest);
    suspended_ = false;
    functions_.again(operation_);
  }
  /// The thread does not, until enter().
  void suspend() {
    suspended_ = true;
    functions_.suspended();
  }
  bool isSuspended() const { return suspended_; }
  /// The operation has been made. True: the home hears by itself when it is complete.
  bool over() { return functions_.over(operation_) != 0; }

 private:
  const OperationFunctions& functions_;
  OlpagerOperation* const operation_;
  bool suspended_ = false;
};

}  // namespace olpager::gpunode
