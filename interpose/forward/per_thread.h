// An object of each thread's own that outlives the program's exit handlers: calls still come from
// those, after the main thread's thread_local objects were destroyed. Destroyed when another thread
// ends, never for the thread that calls exit(). Thread-safety: each thread sees its own.
#pragma once

#include <pthread.h>

namespace olpager::forward {

/// One variable for each pair of T and Tag.
template <typename T, typename Tag>
class PerThread {
 public:
  static T& get() {
    if (t_object == nullptr) {
      t_object = new T;
      (void)pthread_setspecific(key(), t_object);
    }
    return *t_object;
  }

 private:
  static pthread_key_t key() {
    static const pthread_key_t made = [] {
      pthread_key_t key{};
      (void)pthread_key_create(&key, [](void* object) {
        delete static_cast<T*>(object);
        t_object = nullptr;
      });
      return key;
    }();
    return made;
  }
  static inline thread_local T* t_object = nullptr;
};

}  // namespace olpager::forward
