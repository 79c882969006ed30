#include "coherence/transport/verbs/api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>

#include "base/format.h"

namespace olpager::transport::verbs {
namespace {

struct Opened {
  Api functions;
  std::string why;
  const pid_t by = getpid();
};

Opened open() {
  Opened opened;
  void* library = nullptr;
  const auto openLibrary = [&](const char* name) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) opened.why = base::format("no RDMA here: {} can't be opened", name);
    return library != nullptr;
  };
  const auto find = [&](auto& into, const char* name) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
    if (into == nullptr) opened.why = base::format("no RDMA here: the library has no {}", name);
  };
  Api& all = opened.functions;
#define OL_FIND(name) find(all.name, #name);
  if (!openLibrary("libibverbs.so.1")) return opened;
  OL_VERBS(OL_FIND)
  // A function that stands before the library (LD_PRELOAD) is taken: tests give software RDMA,
  // which has none, one for memfds. Another copy of the library, which the program may have, is not
  // meant.
  void* by = dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr");
  Dl_info of{};
  if (by == nullptr || dladdr(by, &of) == 0 || std::strstr(of.dli_fname, "libibverbs") != nullptr)
    by = dlsym(library, "ibv_reg_dmabuf_mr");
  all.ibv_reg_dmabuf_mr = reinterpret_cast<decltype(all.ibv_reg_dmabuf_mr)>(by);
  if (!opened.why.empty() || !openLibrary("librdmacm.so.1")) return opened;
  OL_RDMACM(OL_FIND)
#undef OL_FIND
  if (!opened.why.empty()) return opened;
  int count = 0;
  ibv_device** const devices = all.ibv_get_device_list(&count);
  if (devices != nullptr) all.ibv_free_device_list(devices);
  if (count == 0) opened.why = "no RDMA here: there is no card";
  return opened;
}

const Opened& opened() {
  static const auto* const once = new Opened(open());
  return *once;
}

}  // namespace

const Api* api() { return whyNot().empty() ? &opened().functions : nullptr; }

const std::string& whyNot() {
  static const auto& forked =
      *new std::string("no RDMA in a process that was forked from one that has used it");
  return opened().by == getpid() ? opened().why : forked;
}

}  // namespace olpager::transport::verbs
