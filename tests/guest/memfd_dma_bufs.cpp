// Stands in for dma-bufs, of which software RDMA has none: loaded in front (LD_PRELOAD), it
// registers memfds in their place, as the simulated GPU gives them (OL_SIM_DMA_BUF). A card pins
// the pages of the memfd itself, so what the card writes the memfd has.
//
// Thread-safety: as ibv_reg_mr's.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

namespace {

using Register = ibv_mr* (*)(ibv_pd*, void*, size_t, uint64_t, unsigned);

Register realRegister() {
  static const auto found = [] {
    void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Register>(dlsym(library, "ibv_reg_mr_iova2"));
  }();
  return found;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ibv_mr* ibv_reg_dmabuf_mr(
    ibv_pd* domain, uint64_t offset, size_t length, uint64_t address, int fd, int rights) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return nullptr;  // EBADF, as the kernel says it
  // The answer of a card or a kernel without dma-bufs, from the registration with this number on.
  static const char* const refused = std::getenv("OL_TEST_DMA_BUFS_REFUSED");
  static int made = 0;
  if (refused != nullptr && made++ >= std::atoi(refused)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const memory =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  ibv_mr* const region =
      realRegister()(domain, memory, length, address, static_cast<unsigned>(rights));
  const int error = errno;
  munmap(memory, length);  // its pages stay pinned
  errno = error;
  return region;
}
