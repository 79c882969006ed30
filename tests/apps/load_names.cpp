// Every way in which programs open the driver library: by its names, by an absolute path, deeply
// bound, in a namespace of its own; each has to lead to the same memory. Plain C++, links to no
// CUDA library.
#include <dlfcn.h>

#include <type_traits>

#include "common.h"

namespace {

struct Opened {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  CUresult (*alloc)(CUdeviceptr*, size_t);
  CUresult (*release)(CUdeviceptr);
  CUresult (*to_device)(CUdeviceptr, const void*, size_t);
  CUresult (*to_host)(void*, CUdeviceptr, size_t);
  CUresult (*attribute)(void*, CUpointer_attribute, CUdeviceptr);
};

bool resolve(void* library, Opened& opened) {
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  return get(opened.init, "cuInit") && get(opened.retain, "cuDevicePrimaryCtxRetain") &&
         get(opened.set_current, "cuCtxSetCurrent") && get(opened.alloc, "cuMemAlloc_v2") &&
         get(opened.release, "cuMemFree_v2") && get(opened.to_device, "cuMemcpyHtoD_v2") &&
         get(opened.to_host, "cuMemcpyDtoH_v2") && get(opened.attribute, "cuPointerGetAttribute");
}

}  // namespace

int main(int argc, char** argv) {
  const apps::Options options = apps::parse(argc, argv);
  Opened first;
  void* plain = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(plain != nullptr && resolve(plain, first), "dlopen(libcuda.so.1): %s", dlerror());
  DRIVER_OK(first.init(0));
  CUcontext context;
  DRIVER_OK(first.retain(&context, 0));
  DRIVER_OK(first.set_current(context));
  Dl_info where{};
  CHECK(dladdr(reinterpret_cast<void*>(first.alloc), &where) != 0, "dladdr failed");
  // Names of libcuda on other systems, and the file itself.
  const char* const names[] = {"libcuda.so.1", "libcuda.so", where.dli_fname,
                               "/usr/lib/x86_64-linux-gnu/libcuda.so.1"};
  const int flags[] = {RTLD_NOW, RTLD_LAZY | RTLD_GLOBAL, RTLD_NOW | RTLD_DEEPBIND};
  std::vector<uint32_t> words(1 << 16), got(1 << 16);
  for (uint32_t i = 0; i < words.size(); ++i) words[i] = apps::word(i, uint32_t(options.seed));
  int opened_ways = 0;
  for (const char* name : names) {
    for (const int flag : flags) {
      void* library = dlopen(name, flag);
      if (library == nullptr) continue;  // not every name exists everywhere
      Opened opened;
      CHECK(resolve(library, opened), "%s lacks a function", name);
      CUdeviceptr p = 0;
      DRIVER_OK(opened.alloc(&p, words.size() * 4));
      DRIVER_OK(opened.to_device(p, words.data(), words.size() * 4));
      // Memory of this opening is known to the first one: they are one driver.
      CUmemorytype type{};
      DRIVER_OK(first.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
      CHECK(type == CU_MEMORYTYPE_DEVICE, "memory type %d", int(type));
      DRIVER_OK(first.to_host(got.data(), p, words.size() * 4));
      CHECK(got == words, "data written through %s differs", name);
      DRIVER_OK(first.release(p));
      ++opened_ways;
    }
  }
  CHECK(opened_ways >= 6, "only %d ways of opening worked", opened_ways);
  // In a namespace of its own a library is a second copy: it has to work or to refuse, not to
  // crash.
  void* apart = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  if (apart != nullptr) {
    Opened opened;
    CHECK(resolve(apart, opened), "the copy in its own namespace lacks a function");
    (void)opened.init(0);
  }
  return apps::ok("load_names: %d ways to open the driver%s", opened_ways,
                  apart != nullptr ? ", and one apart" : "");
}
