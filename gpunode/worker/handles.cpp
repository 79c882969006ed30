#include "gpunode/worker/handles.h"

namespace olpager::gpunode {
namespace {

bool mayBeClients(uint64_t number) {
  return forward::isMarked(number) && (number & forward::kWorkersHandle) == 0;
}

}  // namespace

uint64_t HandleTable::newNumber(forward::Names* names) {
  if (names != nullptr && names->count != 0) {
    --names->count;
    const uint64_t named = names->first++;
    if (mayBeClients(named) && !entries_.contains(named)) return named;
  }
  return next_++;
}

uint64_t HandleTable::numberOf(HandleKind kind, uint64_t value, forward::Names* names) {
  if (value == 0) return 0;
  // The default streams have numbers that are the same everywhere.
  if (kind == HandleKind::kStream && value <= 2) return value;
  std::lock_guard lock(mutex_);
  const auto [found, fresh] = numbers_.try_emplace({kind, value}, 0);
  if (fresh) {
    found->second = newNumber(names);
    entries_[found->second] = {kind, value, nullptr};
  }
  return found->second;
}

bool HandleTable::bind(uint64_t number, HandleKind kind, uint64_t value) {
  if (!mayBeClients(number) || value == 0) return false;
  std::lock_guard lock(mutex_);
  if (!entries_.try_emplace(number, Entry{kind, value, nullptr}).second) return false;
  numbers_[{kind, value}] = number;
  return true;
}

bool HandleTable::find(uint64_t number, HandleKind kind, uint64_t* value,
                       const ParameterPlaces** places) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.kind != kind) return false;
  *value = found->second.value;
  if (places != nullptr) *places = found->second.places;
  return true;
}

const ParameterPlaces* HandleTable::notePlaces(uint64_t number, ParameterPlaces places) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.kind != HandleKind::kFunction) return nullptr;
  if (found->second.places == nullptr)
    found->second.places = &places_.emplace_back(std::move(places));
  return found->second.places;
}

void HandleTable::gone(uint64_t number) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.kind == HandleKind::kAllocation) return;
  const Entry entry = found->second;
  const auto known = numbers_.find({entry.kind, entry.value});
  if (known != numbers_.end() && known->second == number) numbers_.erase(known);
  entries_.erase(found);
  if (entry.kind != HandleKind::kModule && entry.kind != HandleKind::kLibrary) return;
  // The kernels of a module or library went with it, and the driver may give their handles to
  // others, which are to have numbers of their own.
  std::erase_if(numbers_, [](const auto& one) {
    return one.first.kind == HandleKind::kFunction || one.first.kind == HandleKind::kModule ||
           one.first.kind == HandleKind::kTexref || one.first.kind == HandleKind::kSurfref;
  });
}

void HandleTable::mayComeAgain(HandleKind kind, uint64_t value) {
  std::lock_guard lock(mutex_);
  numbers_.erase({kind, value});
}

void HandleTable::forEach(const std::function<void(uint64_t, HandleKind)>& each) const {
  std::lock_guard lock(mutex_);
  for (const auto& [number, entry] : entries_) each(number, entry.kind);
}

size_t HandleTable::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace olpager::gpunode
