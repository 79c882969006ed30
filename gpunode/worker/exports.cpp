#include "gpunode/worker/exports.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "gpunode/worker/export_wire.h"
#include "gpunode/worker/introductions.h"
#include "gpunode/worker/named_sockets.h"

namespace olpager::gpunode {
namespace {

using forward::ExportToken;

// A peer that says or takes nothing for so long is left alone: others wait.
constexpr timeval kPeerPatience{2, 0};
constexpr timeval kExporterPatience{10, 0};

void waitAtMost(int socket, const timeval& patience) {
  (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool isOfThisUser(int peer) {
  ucred other{};
  socklen_t size = sizeof other;
  return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == geteuid();
}

template <typename T>
bool hear(int peer, T* said) {
  return recv(peer, said, sizeof *said, 0) == sizeof *said && said->magic == kExportWireMagic;
}

bool hearReply(int peer, ExportReply* reply, base::UniqueFd* descriptor) {
  return receiveWith(peer, reply, sizeof *reply, descriptor) == sizeof *reply &&
         reply->magic == kExportWireMagic;
}

CUresult refuse(CUresult result, const char* why) {
  base::logWarn("memory of another session can't be imported: %s", why);
  return result;
}

}  // namespace

CUresult Exports::add(base::UniqueFd descriptor, ExportToken* token) {
  std::lock_guard lock(mutex_);
  if (exports_.size() >= kMost) return CUDA_ERROR_OUT_OF_MEMORY;
  if (const CUresult result = startServing(); result != CUDA_SUCCESS) return result;
  while (next_ == 0 || exports_.contains(next_)) ++next_;
  token->socket = socket_;
  token->process = static_cast<uint32_t>(getpid());
  token->number = next_++;
  transport::randomBytes({reinterpret_cast<uint8_t*>(token->secret), sizeof token->secret});
  exports_[token->number] = {*token, std::move(descriptor)};
  return CUDA_SUCCESS;
}

void Exports::remove(uint32_t number) {
  Export dropped;  // closed after the lock
  std::lock_guard lock(mutex_);
  const auto found = exports_.find(number);
  if (found == exports_.end()) return;
  dropped = std::move(found->second);
  exports_.erase(found);
}

size_t Exports::size() const {
  std::lock_guard lock(mutex_);
  return exports_.size();
}

CUresult Exports::take(const ExportToken& token, base::UniqueFd* descriptor) {
  bool own = false;
  {
    std::lock_guard lock(mutex_);
    own =
        socket_ != 0 && token.socket == socket_ && token.process == static_cast<uint32_t>(getpid());
  }
  if (!own) return ask(token, descriptor);
  *descriptor = found(token);
  return *descriptor ? CUDA_SUCCESS
                     : refuse(CUDA_ERROR_INVALID_VALUE, "this one has not exported it");
}

// Another one of the same, which the caller may keep; none where the token is not what was given
// out.
base::UniqueFd Exports::found(const ExportToken& token) const {
  std::lock_guard lock(mutex_);
  const auto known = exports_.find(token.number);
  const auto bytes = [](const ExportToken& one) {
    return std::span(reinterpret_cast<const uint8_t*>(&one), sizeof one);
  };
  if (known == exports_.end() || !transport::sameSecret(bytes(known->second.token), bytes(token)))
    return {};
  return base::UniqueFd(fcntl(known->second.descriptor.get(), F_DUPFD_CLOEXEC, 0));
}

// Under the mutex. The socket and its thread are made with the first export.
CUresult Exports::startServing() {
  if (socket_ != 0) return CUDA_SUCCESS;
  uint64_t number = 0;
  while (number == 0) transport::randomBytes({reinterpret_cast<uint8_t*>(&number), sizeof number});
  base::UniqueFd listening(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = exportAddress(static_cast<uint32_t>(getpid()), number, address);
  if (!listening ||
      bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listening.get(), 64) != 0) {
    base::logError("no Unix socket for other sessions to ask for exported memory at: %s",
                   std::strerror(errno));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  try {
    std::thread([this, fd = listening.get()] { serveAll(fd); }).detach();  // as long as the process
  } catch (const std::system_error&) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  (void)listening.release();
  socket_ = number;
  return CUDA_SUCCESS;
}

void Exports::serveAll(int listening) {
  pthread_setname_np(pthread_self(), "exports");
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

void Exports::serve(int peer) {
  waitAtMost(peer, kPeerPatience);
  if (!isOfThisUser(peer)) {
    base::logWarn(
        "a process of another user asked for a session's exported memory and was refused");
    return;
  }
  ExportHello hello;
  transport::randomBytes(hello.challenge);
  ExportRequest request;
  if (!sendWith(peer, &hello, sizeof hello, -1) || !hear(peer, &request)) return;
  ExportToken token;
  {
    std::lock_guard lock(mutex_);
    const auto known = exports_.find(request.number);
    if (known != exports_.end()) token = known->second.token;
  }
  ExportReply reply;
  base::UniqueFd descriptor;
  if (token.number != 0) {
    const auto proof = exportProof(group_, token, hello.challenge, false);
    reply.status = transport::sameSecret(proof, request.proof) ? ExportStatus::kFound
                                                               : ExportStatus::kNotAllowed;
  }
  if (reply.status == ExportStatus::kNotAllowed)
    base::logWarn(
        "a session asked for exported memory of another key's, or without its token, and was "
        "refused");
  if (reply.status == ExportStatus::kFound) {
    descriptor = found(token);
    if (!descriptor) reply.status = ExportStatus::kGone;  // meanwhile
  }
  if (descriptor) reply.proof = exportProof(group_, token, request.challenge, true);
  (void)sendWith(peer, &reply, sizeof reply, descriptor.get());
}

CUresult Exports::ask(const ExportToken& token, base::UniqueFd* descriptor) const {
  sockaddr_un address;
  const socklen_t length = exportAddress(token.process, token.socket, address);
  const base::UniqueFd peer = introductions().connectTo(
      {address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1});
  if (!peer)
    return refuse(CUDA_ERROR_INVALID_VALUE,
                  "the session that exported it has ended, or is another gpunode's");
  waitAtMost(peer.get(), kExporterPatience);
  ExportHello hello;
  if (!isOfThisUser(peer.get()) || !hear(peer.get(), &hello))
    return refuse(CUDA_ERROR_INVALID_VALUE, "the session that exported it does not answer");
  ExportRequest request;
  request.number = token.number;
  transport::randomBytes(request.challenge);
  request.proof = exportProof(group_, token, hello.challenge, false);
  ExportReply reply;
  base::UniqueFd received;
  if (!sendWith(peer.get(), &request, sizeof request, -1) ||
      !hearReply(peer.get(), &reply, &received))
    return refuse(CUDA_ERROR_INVALID_VALUE, "the session that exported it does not answer");
  if (reply.status == ExportStatus::kNotAllowed)
    return refuse(CUDA_ERROR_INVALID_VALUE, "the session that exported it is another key's");
  if (reply.status != ExportStatus::kFound || !received)
    return refuse(CUDA_ERROR_INVALID_VALUE, "nobody has its descriptor any more");
  if (!transport::sameSecret(reply.proof, exportProof(group_, token, request.challenge, true)))
    return refuse(CUDA_ERROR_INVALID_VALUE, "who answers is no session of the same key");
  *descriptor = std::move(received);
  return CUDA_SUCCESS;
}

}  // namespace olpager::gpunode
