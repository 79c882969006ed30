#include "interpose/local/ipc_imports.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "interpose/local/captures.h"
#include "interpose/local/context.h"
#include "interpose/local/ipc_exports.h"
#include "interpose/local/ipc_wire.h"
#include "interpose/local/locks.h"
#include "interpose/local/root.h"

namespace olpager::local {

namespace {

constexpr timeval kExporterPatience{10, 0};

struct Import {
  IpcName name{};
  uint64_t start = 0;  // of the mappings
  uint64_t reserved = 0;
  uint64_t base = 0;  // of the allocation in them: what the program got
  uint64_t bytes = 0;
  unsigned opened = 0;
  std::set<CUdevice> devices;  // that have access
  struct Piece {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
  };
  std::vector<Piece> pieces;
};

struct IpcImports {
  base::RankedMutex mutex{kIpcImportsMutex};
  std::map<CUdeviceptr, Import> by_base;
};

IpcImports& ipcImports() {
  static auto* instance = new IpcImports;
  return *instance;
}

std::atomic<bool> g_any_import{false};

// The exporter's message.
struct Received {
  IpcReply reply{};
  std::vector<base::UniqueFd> pieces;
  std::vector<uint64_t> sizes;
};

// One packet of sizes with as many descriptors.
bool receivePieces(int peer, Received& received) {
  std::array<uint64_t, kIpcPieces> sizes{};
  iovec part{sizes.data(), sizeof(sizes)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kIpcPieces * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
  size_t count = 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); got > 0 && header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.pieces.emplace_back(descriptor);  // owned at once, whatever follows
    }
    count += here;
  }
  if (got <= 0 || count == 0 || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0 ||
      static_cast<size_t>(got) != count * sizeof(uint64_t))
    return false;
  received.sizes.insert(received.sizes.end(), sizes.begin(),
                        sizes.begin() + static_cast<ptrdiff_t>(count));
  return true;
}

CUresult refuse(CUresult result, const char* why) {
  base::logWarn("cuIpcOpenMemHandle: %s", why);
  return result;
}

std::atomic<int (*)(const char* name)> g_connect{nullptr};

// None: it is not there.
base::UniqueFd connectTo(const IpcName& name) {
  sockaddr_un address;
  const socklen_t length = ipcAddress(name.process, name.socket, address);
  if (const auto other = g_connect.load())
    return base::UniqueFd(other(address.sun_path + 1));  // a NUL is behind it
  base::UniqueFd peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (peer && connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    peer.reset();
  return peer;
}

CUresult ask(const IpcName& name, Received& received) {
  const base::UniqueFd peer = connectTo(name);
  if (!peer)
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "the process that made the handle is gone, or runs in another network namespace");
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &kExporterPatience, sizeof(kExporterPatience));
  setsockopt(peer.get(), SOL_SOCKET, SO_SNDTIMEO, &kExporterPatience, sizeof(kExporterPatience));
  ucred other{};
  socklen_t size = sizeof(other);
  if (getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.uid != geteuid())
    return refuse(CUDA_ERROR_NOT_PERMITTED, "the process that made the handle is another user's");
  const IpcRequest request{kIpcMagic, name.allocation, {name.nonce[0], name.nonce[1]}};
  if (send(peer.get(), &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request) ||
      recv(peer.get(), &received.reply, sizeof(received.reply), 0) != sizeof(received.reply) ||
      received.reply.magic != kIpcMagic)
    return refuse(CUDA_ERROR_INVALID_VALUE, "the process that made the handle does not answer");
  if (received.reply.status == IpcStatus::kOtherUser)
    return refuse(CUDA_ERROR_NOT_PERMITTED, "the process that made the handle is another user's");
  if (received.reply.status != IpcStatus::kFound || received.reply.pieces == 0 ||
      received.reply.pieces > kMostIpcPieces)
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "the memory was freed by the process that made the handle");
  while (received.pieces.size() < received.reply.pieces)
    if (!receivePieces(peer.get(), received))
      return refuse(CUDA_ERROR_INVALID_VALUE,
                    "the process that made the handle ended, or this one has no descriptors left");
  return received.pieces.size() == received.reply.pieces ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void unmapAll(const Import& import) {
  uint64_t at = import.start;
  for (const Import::Piece& piece : import.pieces) {
    (void)driver().cuMemUnmap(at, piece.bytes);
    (void)driver().cuMemRelease(piece.handle);
    at += piece.bytes;
  }
  if (import.start != 0) (void)driver().cuMemAddressFree(import.start, import.reserved);
}

CUresult giveAccess(Import& import, CUdevice device) {
  if (import.devices.contains(device)) return CUDA_SUCCESS;
  CUmemAccessDesc access{};
  access.location = memoryOf(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult result = driver().cuMemSetAccess(import.start, import.reserved, &access, 1);
  if (result == CUDA_SUCCESS) import.devices.insert(device);
  return result;
}

CUresult mapAll(Received& received, CUdevice device, Import& import) {
  for (const uint64_t bytes : received.sizes) {
    if (bytes == 0 || bytes % pager::kPageBytes != 0 || bytes > (1ull << 40))
      return CUDA_ERROR_INVALID_VALUE;
    import.reserved += bytes;
  }
  if (received.reply.offset >= import.reserved ||
      received.reply.bytes > import.reserved - received.reply.offset)
    return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr start = 0;
  CUresult result = driver().cuMemAddressReserve(&start, import.reserved, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  import.start = start;
  uint64_t at = start;
  for (size_t i = 0; i < received.pieces.size() && result == CUDA_SUCCESS; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    const auto descriptor = static_cast<uintptr_t>(received.pieces[i].get());
    // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how the driver takes it
    result = driver().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(descriptor),
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) break;
    result = driver().cuMemMap(at, received.sizes[i], 0, handle, 0);
    if (result != CUDA_SUCCESS) {
      (void)driver().cuMemRelease(handle);
      break;
    }
    import.pieces.push_back({handle, received.sizes[i]});
    at += received.sizes[i];
  }
  if (result != CUDA_SUCCESS) return result;
  result = giveAccess(import, device);
  if (result != CUDA_SUCCESS) return result;
  import.base = start + received.reply.offset;
  import.bytes = received.reply.bytes;
  return CUDA_SUCCESS;
}

}  // namespace

void setConnect(int (*connect)(const char* name)) { g_connect.store(connect); }

bool ipcNamesImport(const CUipcMemHandle& handle) {
  uint64_t magic = 0;
  std::memcpy(&magic, &handle, sizeof(magic));
  return magic == kIpcMagic;
}

CUresult ipcOpen(CUdeviceptr* out, const CUipcMemHandle& handle, unsigned int flags) {
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return CUDA_ERROR_INVALID_VALUE;
  Place place;
  if (const CUresult found = currentPlace(&place); found != CUDA_SUCCESS) return found;
  IpcName name;
  std::memcpy(&name, &handle, sizeof(name));
  if (ipcIsOwn(name.socket))
    return CUDA_ERROR_INVALID_CONTEXT;  // as native: a process does not open its own
  RelaxedCapture relaxed;
  IpcImports& all = ipcImports();
  // Held while the other process is asked, ten seconds at most: two threads that open one handle
  // get one mapping. Nobody takes this lock on the other process's behalf.
  std::lock_guard lock(all.mutex);
  for (auto& [base, import] : all.by_base) {
    if (std::memcmp(&import.name, &name, sizeof(name)) != 0) continue;
    if (const CUresult given = giveAccess(import, place.device); given != CUDA_SUCCESS)
      return given;
    ++import.opened;
    *out = base;
    return CUDA_SUCCESS;
  }
  Received received;
  CUresult result = ask(name, received);
  if (result != CUDA_SUCCESS) return result;
  Import import;
  import.name = name;
  result = mapAll(received, place.device, import);
  if (result != CUDA_SUCCESS) {
    unmapAll(import);
    return result;
  }
  import.opened = 1;
  *out = import.base;
  if (pager::Pool* running = pool(); running != nullptr)
    running->addRoot(memoryContext(), import.base, import.bytes, pager::RootKind::kDevice);
  all.by_base.emplace(import.base, std::move(import));
  g_any_import.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

bool ipcClose(CUdeviceptr address, CUresult* result) {
  if (!g_any_import.load(std::memory_order_acquire)) return false;
  Import closed;
  {
    std::lock_guard lock(ipcImports().mutex);
    const auto found = ipcImports().by_base.find(address);
    if (found == ipcImports().by_base.end()) return false;
    *result = CUDA_SUCCESS;
    if (--found->second.opened > 0) return true;
    closed = std::move(found->second);
    ipcImports().by_base.erase(found);
  }
  // As native: what the context still does with it ends first.
  *result = driver().cuCtxSynchronize();
  if (pager::Pool* running = pool(); running != nullptr) running->removeRoot(closed.base);
  unmapAll(closed);
  return true;
}

bool ipcRange(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) {
  if (!g_any_import.load(std::memory_order_acquire)) return false;
  std::lock_guard lock(ipcImports().mutex);
  auto found = ipcImports().by_base.upper_bound(address);
  if (found == ipcImports().by_base.begin()) return false;
  --found;
  if (address - found->first >= found->second.bytes) return false;
  *base = found->first;
  *bytes = found->second.bytes;
  return true;
}

}  // namespace olpager::local
