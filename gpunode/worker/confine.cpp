#include "gpunode/worker/confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
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

// None of these belongs to calls of CUDA. A driver asks the kernel for ioctl, mmap, open and the
// like, which stay.
constexpr uint32_t kRefused[] = {
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_kcmp,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_tkill,
    SYS_migrate_pages,
    SYS_process_madvise,
    SYS_process_mrelease,
    SYS_mount_setattr,
    // Requests to the kernel that no filter sees.
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fspick,
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

// Calls whose first argument is a process: they are about this one alone.
constexpr uint32_t kOfItself[] = {SYS_kill,
                                  SYS_tgkill,
                                  SYS_rt_sigqueueinfo,
                                  SYS_rt_tgsigqueueinfo,
                                  SYS_process_vm_readv,
                                  SYS_process_vm_writev};
// Requests that put input into a terminal, or take one over.
constexpr uint32_t kOfTerminals[] = {TIOCSTI, TIOCLINUX, TIOCSCTTY};

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

constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM, kAbsent = SECCOMP_RET_ERRNO | ENOSYS;

using Filter = std::vector<sock_filter>;

// The call, where that argument is one of the values, ends with `found`, else with `other`.
void byArgument(Filter& filter, uint32_t call, size_t number, std::span<const uint32_t> values,
                uint32_t found, uint32_t other) {
  const auto count = static_cast<uint8_t>(values.size());
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, static_cast<uint8_t>(count + 3)));
  filter.push_back(load(argument(number)));
  for (uint8_t i = 0; i < count; ++i)
    filter.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, values[i], static_cast<uint8_t>(count - i), 0));
  filter.push_back(answer(other));
  filter.push_back(answer(found));
}

// Sockets of this machine that have one peer: one without could send to any address.
void onlyPaired(Filter& filter, uint32_t call) {
  constexpr uint32_t kTypes = 0xf;  // above it are flags
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 8));
  filter.push_back(load(argument(0)));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 5));
  filter.push_back(load(argument(1)));
  filter.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kTypes));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_STREAM, 1, 0));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_SEQPACKET, 0, 1));
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  filter.push_back(answer(kRefuse));
}

// A driver with NVIDIA's multi-process service connects to that with each context.
bool hasProcessService() {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string control =
      std::string(folder != nullptr ? folder : "/tmp/nvidia-mps") + "/control";
  return access(control.c_str(), F_OK) == 0;
}

Filter filterFor(const Confinement& allowed) {
  Filter filter = {
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
  const auto itself = static_cast<uint32_t>(getpid());
  for (const uint32_t call : kOfItself)
    byArgument(filter, call, 0, std::span(&itself, 1), SECCOMP_RET_ALLOW, kRefuse);
  const uint32_t own[] = {0, itself}, none[] = {0};
  byArgument(filter, SYS_prlimit64, 0, own, SECCOMP_RET_ALLOW, kRefuse);
  byArgument(filter, SYS_setpriority, 1, none, SECCOMP_RET_ALLOW, kRefuse);
  byArgument(filter, SYS_ioctl, 1, kOfTerminals, kRefuse, SECCOMP_RET_ALLOW);
  // Threads, no processes. A filter can't see the flags of clone3: without it the C library uses
  // clone.
  filter.push_back(unlessEqual(SYS_clone3));
  filter.push_back(answer(kAbsent));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4));
  filter.push_back(load(argument(0)));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
  filter.push_back(answer(kRefuse));
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  if (!allowed.connects) {
    onlyPaired(filter, SYS_socket);
    onlyPaired(filter, SYS_socketpair);
    if (!hasProcessService()) {
      filter.push_back(unlessEqual(SYS_connect));
      filter.push_back(answer(kRefuse));
    }
  }
  filter.push_back(answer(SECCOMP_RET_ALLOW));
  return filter;
}

// A domain of Landlock's: from it the kernel lets nobody look into a process outside of it, by
// /proc as well, nor, from version 6 on, signal one. A kernel without Landlock: what the filter
// refuses.
void enterDomain() {
  struct {  // as of version 6: the headers may be older, and older kernels take zeros
    uint64_t files, network, scopes;
  } rules{LANDLOCK_ACCESS_FS_MAKE_BLOCK, 0,
          0};  // a domain has to keep something from its processes
  constexpr uint64_t kSignals = 2;
  const long version =
      syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version >= 6) rules.scopes = kSignals;
  const int domain =
      static_cast<int>(syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (domain < 0) return;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
    (void)syscall(SYS_landlock_restrict_self, domain, 0);
  close(domain);
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
  enterDomain();
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
