#include "pager/space/object_pool.h"

#include <memory_resource>
#include <mutex>
#include <new>

#include "base/held_signals.h"
#include "pager/locks.h"

namespace olpager::pager {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OL_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OL_SANITIZED 1
#endif
#endif

#ifdef OL_SANITIZED

// Each object is the sanitizer's to watch.
void* takePooled(size_t bytes) noexcept { return ::operator new(bytes, std::nothrow); }
void givePooled(void* object, size_t) noexcept { ::operator delete(object); }

#else

namespace {

struct Blocks {
  base::HoldingMutex mutex{kObjectPoolMutex};
  // Up to 512 objects in a block; with the default a block could be as large as all before it
  // together.
  std::pmr::unsynchronized_pool_resource memory{{512, 256}, std::pmr::new_delete_resource()};
};

// Never destroyed: chunks and extents may outlive any other object of the program.
Blocks& blocks() {
  static Blocks* const one = new Blocks;
  return *one;
}

}  // namespace

void* takePooled(size_t bytes) noexcept try {
  Blocks& from = blocks();
  std::lock_guard lock(from.mutex);
  return from.memory.allocate(bytes);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void givePooled(void* object, size_t bytes) noexcept {
  if (object == nullptr) return;
  Blocks& to = blocks();
  std::lock_guard lock(to.mutex);
  to.memory.deallocate(object, bytes);
}

#endif

}  // namespace olpager::pager
