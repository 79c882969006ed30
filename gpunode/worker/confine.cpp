#include "gpunode/worker/confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace olpager::gpunode {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the system calls of this processor are not known here"
#endif

// Nothing of these belongs to calls of CUDA. What a driver asks of the kernel is ioctl, mmap, open
// and the like, which stay.
constexpr uint32_t kRefused[] = {
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_pidfd_getfd,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_open_by_handle_at,
    SYS_swapon,
    SYS_swapoff,
    SYS_reboot,
    SYS_acct,
    SYS_quotactl,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_syslog,
    SYS_personality,
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_kexec_file_load,
#endif
};

sock_filter load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
sock_filter answer(uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }
// Goes on behind the next instruction unless the value is `wanted`.
sock_filter unlessEqual(uint32_t wanted) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wanted, 0, 1);
}

constexpr size_t argument(size_t number) {
  return offsetof(seccomp_data, args) + number * sizeof(uint64_t);  // its lower half: little-endian
}

std::vector<sock_filter> filterFor(const Confinement& allowed) {
  constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM, kAbsent = SECCOMP_RET_ERRNO | ENOSYS;
  std::vector<sock_filter> filter = {
      load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      answer(kRefuse),
      load(offsetof(seccomp_data, nr)),
  };
#if defined(__x86_64__)
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0,
                            1));  // the same calls by other numbers (x32)
  filter.push_back(answer(kRefuse));
#endif
  for (const uint32_t call : kRefused) {
    filter.push_back(unlessEqual(call));
    filter.push_back(answer(kRefuse));
  }
  // Threads, no processes. Of clone3 the flags can't be seen: without it the C library uses clone.
  filter.push_back(unlessEqual(SYS_clone3));
  filter.push_back(answer(kAbsent));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
  filter.push_back(load(argument(0)));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
  filter.push_back(answer(kRefuse));
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  if (!allowed.connects) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 4));
    filter.push_back(load(argument(0)));
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0));
    filter.push_back(answer(kRefuse));
    filter.push_back(answer(SECCOMP_RET_ALLOW));
  }
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  return filter;
}

}  // namespace

void giveUpTracing() {
  // From the bounding set first, which needs a capability itself: what no program that is started
  // by this one gets either.
  (void)prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return;
  auto& set = sets[CAP_TO_INDEX(CAP_SYS_PTRACE)];
  set.effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
  set.permitted &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
  set.inheritable &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
  (void)syscall(SYS_capset, &header, sets);  // less is always allowed
}

Status confine(const Confinement& allowed) {
  const rlimit none{0, 0};
  (void)setrlimit(RLIMIT_CORE, &none);  // a core has keys and the program's data in it
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return Error{std::string("a worker can't be confined (no_new_privs): ") + std::strerror(errno)};
  std::vector<sock_filter> filter = filterFor(allowed);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    return Error{std::string("a worker can't be confined (seccomp): ") + std::strerror(errno) +
                 "; --confine off runs it without"};
  return {};
}

}  // namespace olpager::gpunode
