#include "coherence/cpu/userfaults.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/fd.h"

// Headers before Linux 6.4 have not all of it.
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP ((__u64)1 << 1)
#endif

namespace olpager::cpu {
namespace {

constexpr uint64_t kFeatures = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS |
                               UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_MINOR_HUGETLBFS;
constexpr uint64_t kProtecting = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;

class KernelFaults final : public UserFaults {
 public:
  KernelFaults(base::UniqueFd fd, Reach reach, std::string why, bool threads, bool protects)
      : fd_(std::move(fd)),
        reach_(reach),
        why_(std::move(why)),
        threads_(threads),
        protects_(protects) {}

  Reach reach() const override { return reach_; }
  const std::string& why() const override { return why_; }
  int descriptor() const override { return fd_.get(); }

  size_t read(std::span<UserFault> to) override {
    std::array<uffd_msg, 32> messages;
    const size_t most = std::min(to.size(), messages.size());
    const ssize_t got = ::read(fd_.get(), messages.data(), most * sizeof(uffd_msg));
    if (got <= 0) return 0;
    size_t count = 0;
    for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) {
      const uffd_msg& message = messages[i];
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      const auto& fault = message.arg.pagefault;
      to[count++] = {.address = fault.address,
                     .write = (fault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                     .thread = threads_ ? static_cast<pid_t>(fault.feat.ptid) : 0};
    }
    return count;
  }

  Status enlist(uint64_t address, uint64_t bytes) override {
    uffdio_register range{};
    range.range = {.start = address, .len = bytes};
    range.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR |
                 (protects_ ? UFFDIO_REGISTER_MODE_WP : 0);
    if (ioctl(fd_.get(), UFFDIO_REGISTER, &range) == 0) return {};
    return Error{std::string("managed memory's faults can't be served: userfaultfd refuses the "
                             "range (") +
                 std::strerror(errno) + "); use --managed driver"};
  }

  void dismiss(uint64_t address, uint64_t bytes) override {
    uffdio_range range{.start = address, .len = bytes};
    while (ioctl(fd_.get(), UFFDIO_UNREGISTER, &range) != 0 && errno == EAGAIN) sched_yield();
    wake(address, bytes);
  }

  bool protects() const override { return protects_; }

  bool publish(uint64_t address, uint64_t bytes, uint64_t base_page, bool writable) override {
    const uint64_t end = address + bytes;
    for (uint64_t at = address; at < end;) {
      uffdio_continue range{};
      range.range = {.start = at, .len = end - at};
      range.mode = writable ? 0 : UFFDIO_CONTINUE_MODE_WP;
      if (ioctl(fd_.get(), UFFDIO_CONTINUE, &range) == 0) break;
      const int error = errno;
      if (range.mapped > 0) {
        at += static_cast<uint64_t>(range.mapped);
        continue;
      }
      if (error == EAGAIN) {
        // The process's mappings are changing.
        sched_yield();
      } else if (error == EEXIST) {
        at += base_page;
      } else {
        // ENOENT, ESRCH: the program has unmapped it, or ends.
        wake(address, bytes);
        return error != EFAULT;
      }
    }
    // Threads that wait at a page that was there already are not woken by that.
    wake(address, bytes);
    return true;
  }

  void allowWrites(uint64_t address, uint64_t bytes) override {
    uffdio_writeprotect range{};
    range.range = {.start = address, .len = bytes};
    while (ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &range) != 0 && errno == EAGAIN) sched_yield();
    wake(address, bytes);  // also where the program has unmapped a part of it
  }

  void wake(uint64_t address, uint64_t bytes) override {
    uffdio_range range{.start = address, .len = bytes};
    ioctl(fd_.get(), UFFDIO_WAKE, &range);
  }

 private:
  base::UniqueFd fd_;
  Reach reach_;
  std::string why_;
  bool threads_;
  bool protects_;
};

/// True if the kernel publishes for reading (Linux 6.4): no feature tells.
bool publishesForReading(const base::UniqueFd& faults) {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const base::UniqueFd file(memfd_create("olpager-probe", MFD_CLOEXEC));
  if (!file || !base::resizeFile(file.get(), bytes)) return false;
  void* const alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  void* const view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  bool does = alias != MAP_FAILED && view != MAP_FAILED;
  if (does) {
    *static_cast<volatile char*>(alias) = 1;  // the file has the page
    uffdio_register range{};
    range.range = {.start = reinterpret_cast<uint64_t>(view), .len = bytes};
    range.mode = UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP;
    uffdio_continue page{};
    page.range = range.range;
    page.mode = UFFDIO_CONTINUE_MODE_WP;
    does = ioctl(faults.get(), UFFDIO_REGISTER, &range) == 0 &&
           ioctl(faults.get(), UFFDIO_CONTINUE, &page) == 0;
  }
  for (void* const mapping : {alias, view})
    if (mapping != MAP_FAILED) munmap(mapping, bytes);
  return does;
}

/// A new descriptor, by the device or by the system call; errno tells why not.
base::UniqueFd make(UserFaults::Reach reach) {
  if (reach == UserFaults::Reach::kUserMode)
    return base::UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY)));
  const base::UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device) {
    base::UniqueFd made(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
    if (made) return made;
  }
  return base::UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, kFlags)));
}

}  // namespace

Result<std::unique_ptr<UserFaults>> openUserFaults(UserFaults::Reach at_most) {
  using Reach = UserFaults::Reach;
  Reach reach = at_most;
  std::string why;
  // A descriptor tells its features once, and then has those that were asked for.
  base::UniqueFd probe = make(reach);
  if (!probe && reach == Reach::kAll) {
    reach = Reach::kUserMode;
    why = std::string("userfaultfd serves no faults of system calls here (") +
          std::strerror(errno) +
          "); give this user /dev/userfaultfd, or set vm.unprivileged_userfaultfd=1";
    probe = make(reach);
  }
  if (!probe)
    return Error{std::string("userfaultfd is not allowed here (") + std::strerror(errno) +
                 "); give this user /dev/userfaultfd, or set vm.unprivileged_userfaultfd=1"};
  uffdio_api api{.api = UFFD_API};
  if (ioctl(probe.get(), UFFDIO_API, &api) != 0 || (api.features & kFeatures) != kFeatures)
    return Error{
        "userfaultfd of this kernel has no minor faults of shared memory; use Linux 5.14 or newer"};
  const uint64_t wanted = kFeatures | (api.features & (UFFD_FEATURE_THREAD_ID | kProtecting));
  base::UniqueFd fd = make(reach);
  uffdio_api chosen{.api = UFFD_API, .features = wanted};
  if (!fd || ioctl(fd.get(), UFFDIO_API, &chosen) != 0)
    return Error{std::string("userfaultfd can't be set up (") + std::strerror(errno) +
                 "); use --managed driver"};
  const bool protects = (wanted & kProtecting) == kProtecting && publishesForReading(fd);
  return std::unique_ptr<UserFaults>(std::make_unique<KernelFaults>(
      std::move(fd), reach, std::move(why), (wanted & UFFD_FEATURE_THREAD_ID) != 0, protects));
}

}  // namespace olpager::cpu
