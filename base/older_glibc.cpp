// The C++ runtime that is linked into our libraries and programs takes these from glibc, and glibc
// 2.34 does not have them yet: what is built here should run there too.
//   _dl_find_object (2.35): the unwinder asks it since GCC 12. This one answers from
//     dl_iterate_phdr, as the unwinder itself did before; it is slower, and exceptions here are
//     thrown only at start-up.
//   arc4random (2.36): std::random_device is linked in with other parts of the library; nothing
//     here uses it.
#include <link.h>
#include <unistd.h>

#include <cstdint>

// Same layout as glibc's struct dl_find_object on x86-64, under a name that does not collide with
// it.
struct OlpagerFoundObject {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  link_map* link;
  void* eh_frame;
  unsigned long long reserved[7];
};

namespace {

struct Search {
  uintptr_t address;
  OlpagerFoundObject* out;
};

int visit(dl_phdr_info* info, size_t /*size*/, void* data) {
  auto* search = static_cast<Search*>(data);
  uintptr_t low = UINTPTR_MAX;
  uintptr_t high = 0;
  uintptr_t eh_frame = 0;
  bool inside = false;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) eh_frame = begin;
    if (header.p_type != PT_LOAD) continue;
    const uintptr_t end = begin + header.p_memsz;
    if (begin < low) low = begin;
    if (end > high) high = end;
    inside = inside || (search->address >= begin && search->address < end);
  }
  if (!inside) return 0;
  if (eh_frame == 0) return -1;
  *search->out = OlpagerFoundObject{};
  search->out->map_start = reinterpret_cast<void*>(low);
  search->out->map_end = reinterpret_cast<void*>(high);
  search->out->eh_frame = reinterpret_cast<void*>(eh_frame);
  return 1;
}

}  // namespace

extern "C" __attribute__((visibility("hidden"))) int olpagerFindObject(
    void* address, OlpagerFoundObject* out) asm("_dl_find_object");

extern "C" int olpagerFindObject(void* address, OlpagerFoundObject* out) {
  Search search{reinterpret_cast<uintptr_t>(address), out};
  return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}

extern "C" __attribute__((visibility("hidden"))) uint32_t olpagerRandom() asm("arc4random");

extern "C" uint32_t olpagerRandom() {
  uint32_t value = 0;
  // Fails only for more than 256 bytes, or on kernels older than any CUDA driver's.
  if (getentropy(&value, sizeof(value)) != 0) __builtin_trap();
  return value;
}
