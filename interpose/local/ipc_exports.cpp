#include "interpose/local/ipc_exports.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/held_signals.h"
#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/ipc_wire.h"
#include "interpose/local/locks.h"
#include "interpose/local/pinned_users.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

// A peer that says or takes nothing for so long is left alone: others wait.
constexpr timeval kPeerPatience{2, 0};

// One allocation as others get it. The descriptors keep its bytes alive; they are shared with a
// peer that is being served.
struct Export {
  CUdeviceptr base = 0;
  IpcName name{};
  std::vector<base::UniqueFd> pieces;
  std::vector<uint64_t> sizes;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct IpcExports {
  base::RankedMutex mutex{kIpcExportsMutex};
  std::map<CUdeviceptr, std::shared_ptr<const Export>> by_base;
  uint64_t socket = 0;
};

IpcExports& ipcExports() {
  static auto* instance = new IpcExports;
  return *instance;
}

std::atomic<int> g_listening{-1};
std::atomic<uint64_t> g_socket{0};
std::atomic<bool> g_any_export{false};

bool sendPacket(int peer, const void* bytes, size_t size, const int* descriptors = nullptr,
                size_t count = 0) {
  iovec part{const_cast<void*>(bytes),
             size};  // NOLINT(cppcoreguidelines-pro-type-const-cast): sendmsg only reads it
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kIpcPieces * sizeof(int))> control{};
  if (count > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
  }
  return sendmsg(peer, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

void serve(int peer) {
  setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &kPeerPatience, sizeof(kPeerPatience));
  setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &kPeerPatience, sizeof(kPeerPatience));
  IpcReply reply{kIpcMagic, IpcStatus::kGone, 0, 0, 0};
  ucred other{};
  socklen_t size = sizeof(other);
  if (getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.uid != geteuid()) {
    base::logWarn("a process of user %u asked for this process's GPU memory and was refused",
                  other.uid);
    reply.status = IpcStatus::kOtherUser;
    sendPacket(peer, &reply, sizeof(reply));
    return;
  }
  IpcRequest request{};
  if (recv(peer, &request, sizeof(request), 0) != sizeof(request) || request.magic != kIpcMagic)
    return;
  std::shared_ptr<const Export> found;
  {
    std::lock_guard lock(ipcExports().mutex);
    for (const auto& [base, candidate] : ipcExports().by_base)
      if (candidate->name.allocation == request.allocation &&
          std::memcmp(candidate->name.nonce, request.nonce, sizeof(request.nonce)) == 0)
        found = candidate;
  }
  if (found != nullptr) {
    reply.status = IpcStatus::kFound;
    reply.pieces = static_cast<uint32_t>(found->pieces.size());
    reply.offset = found->offset;
    reply.bytes = found->bytes;
  }
  if (!sendPacket(peer, &reply, sizeof(reply)) || found == nullptr) return;
  for (size_t at = 0; at < found->pieces.size(); at += kIpcPieces) {
    const size_t count = std::min<size_t>(kIpcPieces, found->pieces.size() - at);
    std::array<int, kIpcPieces> descriptors{};
    for (size_t i = 0; i < count; ++i) descriptors[i] = found->pieces[at + i].get();
    if (!sendPacket(peer, &found->sizes[at], count * sizeof(uint64_t), descriptors.data(), count))
      return;
  }
}

void serveAll(int listening) {
  pthread_setname_np(pthread_self(), "olpager-ipc");
  for (;;) {
    const base::UniqueFd peer(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer) {
      serve(peer.get());
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // No descriptors left, as a rule.
      poll(nullptr, 0, 50);
    }
  }
}

// The socket and its thread, made with the first handle. Under the mutex.
CUresult startServing(IpcExports& all) {
  if (all.socket != 0) return CUDA_SUCCESS;
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number) || number == 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  base::UniqueFd listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = ipcAddress(static_cast<uint32_t>(getpid()), number, address);
  if (!listening ||
      bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listening.get(), 64) != 0) {
    base::logError("cuIpcGetMemHandle: no Unix socket for other processes to ask at: %s",
                   strerror(errno));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  try {
    base::ownThread([socket = listening.get()] { serveAll(socket); }).detach();
  } catch (const std::system_error&) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  g_listening.store(listening.release());
  all.socket = number;
  g_socket.store(number);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ipcExport(CUdeviceptr address, CUipcMemHandle* out) {
  pager::Pool& running = *pool();
  pager::AllocationInfo info;
  if (!running.describe(address, &info)) return CUDA_ERROR_INVALID_VALUE;
  {
    std::lock_guard lock(ipcExports().mutex);
    const auto found = ipcExports().by_base.find(info.base);
    if (found != ipcExports().by_base.end() && found->second->name.allocation == info.buffer_id) {
      std::memcpy(out, &found->second->name, sizeof(*out));
      return CUDA_SUCCESS;
    }
  }
  RelaxedCapture relaxed;
  CUresult result = pinForLife(info.base);
  if (result != CUDA_SUCCESS) return result;
  pager::Pool::Exported exported;
  result = running.makeExportable(info.base, &exported);
  if (result != CUDA_SUCCESS) {
    if (result == CUDA_ERROR_NOT_READY)
      base::logWarn(
          "cuIpcGetMemHandle: kernels that use the memory have not ended in time; it can't be "
          "shared while they run");
    return result;
  }
  auto made = std::make_shared<Export>();
  made->base = info.base;
  made->offset = exported.offset;
  made->bytes = info.bytes;
  for (const auto& piece : exported.pieces) {
    int descriptor = -1;
    result = driver().cuMemExportToShareableHandle(&descriptor, piece.handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS) {
      base::logWarn(
          "cuIpcGetMemHandle: the driver exports no memory as a file descriptor here (CUDA error "
          "%d)",
          static_cast<int>(result));
      return result;
    }
    made->pieces.emplace_back(descriptor);
    (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    made->sizes.push_back(piece.bytes);
  }
  IpcExports& all = ipcExports();
  std::lock_guard lock(all.mutex);
  result = startServing(all);
  if (result != CUDA_SUCCESS) return result;
  made->name.magic = kIpcMagic;
  made->name.socket = all.socket;
  made->name.process = static_cast<uint32_t>(getpid());
  made->name.user = geteuid();
  made->name.allocation = info.buffer_id;
  if (getrandom(made->name.nonce, sizeof(made->name.nonce), 0) != sizeof(made->name.nonce))
    return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<const Export>& kept = all.by_base[info.base];
  // Another thread may have made it meanwhile.
  if (kept == nullptr || kept->name.allocation != info.buffer_id) kept = std::move(made);
  std::memcpy(out, &kept->name, sizeof(*out));
  g_any_export.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void ipcExportGone(CUdeviceptr base) {
  if (!g_any_export.load(std::memory_order_acquire)) return;
  std::shared_ptr<const Export> dropped;  // its descriptors are closed after the lock
  std::lock_guard lock(ipcExports().mutex);
  const auto found = ipcExports().by_base.find(base);
  if (found == ipcExports().by_base.end()) return;
  dropped = std::move(found->second);
  ipcExports().by_base.erase(found);
}

bool ipcIsOwn(uint64_t socket) { return socket != 0 && socket == g_socket.load(); }

void ipcForked() {
  const int listening = g_listening.exchange(-1);
  if (listening >= 0) close(listening);
}

}  // namespace olpager::local
