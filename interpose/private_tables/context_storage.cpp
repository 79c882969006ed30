#include "interpose/private_tables/context_storage.h"

#include <utility>
#include <vector>

namespace olpager::interpose {

void ContextStorage::put(CUcontext context, void* key, void* value, Destructor destructor) {
  const std::lock_guard lock(mutex_);
  entries_[{context, key}] = {value, destructor};
}

bool ContextStorage::erase(CUcontext context, void* key) {
  const std::lock_guard lock(mutex_);
  return entries_.erase({context, key}) != 0;
}

bool ContextStorage::get(CUcontext context, void* key, void** value) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries_.find({context, key});
  if (it == entries_.end()) return false;
  *value = it->second.value;
  return true;
}

void ContextStorage::contextGone(CUcontext context) {
  std::vector<std::pair<Key, Entry>> gone;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->first.context == context) {
        gone.emplace_back(it->first, it->second);
        it = entries_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const auto& [key, entry] : gone) {
    if (entry.destructor != nullptr) entry.destructor(key.context, key.key, entry.value);
  }
}

}  // namespace olpager::interpose
