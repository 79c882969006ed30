// Operations of a worker (forwarding/operations.h).
#include "forwarding/operations.h"

#include <memory>
#include <new>
#include <system_error>

#include "base/log.h"
#include "interpose/local/root.h"
#include "pager/launch/external_operation.h"

using olpager::local::pool;
using olpager::pager::ExternalOperation;
using olpager::pager::ToldOperation;

static_assert(kOlpagerSuspended == olpager::pager::kSuspended);

struct OlpagerOperation {
  ExternalOperation operation;
};

OlpagerOperation* olpager_operation_new(void (*resumable)(void* of), void* of) try {
  if (resumable != nullptr && pool() != nullptr) pool()->startSuspending();
  return new OlpagerOperation{{pool() != nullptr ? resumable : nullptr, of}};
} catch (const std::exception& error) {  // no memory, or no thread
  olpager::base::logWarn("an operation can't be suspended: %s", error.what());
  return nullptr;
}

void olpager_operation_delete(OlpagerOperation* operation) { delete operation; }

void olpager_operation_enter(OlpagerOperation* operation, uint64_t age, uint64_t oldest) {
  ExternalOperation& its = operation->operation;
  its.told.reset();
  if (age != UINT64_MAX) its.told.emplace(ToldOperation{.age = age, .oldest = oldest});
  ExternalOperation::setCurrent(&its);
}

void olpager_operation_uses(CUdeviceptr address, uint64_t bytes) {
  ExternalOperation* const now = ExternalOperation::current();
  if (now != nullptr && now->told && bytes != 0) now->told->uses.emplace_back(address, bytes);
}

void olpager_operation_alone() {
  if (ExternalOperation* const now = ExternalOperation::current(); now != nullptr && now->told)
    now->told->alone = true;
}

void olpager_operation_suspended() { ExternalOperation::setCurrent(nullptr); }

void olpager_operation_again(OlpagerOperation* operation) {
  ExternalOperation::setCurrent(&operation->operation);
}

int olpager_operation_over(OlpagerOperation* operation) {
  ExternalOperation::setCurrent(nullptr);
  ExternalOperation& its = operation->operation;
  if (pool() != nullptr) pool()->giveUp(its);
  return its.told && pool()->operationOver(*its.told) ? 1 : 0;
}
