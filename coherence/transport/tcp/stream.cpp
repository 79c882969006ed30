#include "coherence/transport/tcp/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace olpager::transport {
namespace {

constexpr size_t kRecord = 16384;  // the most plain bytes of a TLS record

}  // namespace

size_t advance(iovec* parts, size_t first, size_t count, size_t bytes) {
  while (first < count && bytes >= parts[first].iov_len) bytes -= parts[first++].iov_len;
  if (first < count && bytes != 0) {
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + bytes;
    parts[first].iov_len -= bytes;
  }
  return first;
}

ssize_t Stream::read(const iovec* parts, size_t count) {
  const ssize_t got = readNow(parts, count);
  if (got > 0 || got == -EAGAIN) return got;
  const int failed = std::atomic_ref(write_error_).load();
  return failed != 0 ? -failed : got;
}

ssize_t Stream::write(const iovec* parts, size_t count) {
  const ssize_t put = writeNow(parts, count);
  // The system tells it once: a later read would find the end of the stream. EPIPE and EPROTO say
  // only that there was an end.
  if (put < 0 && put != -EAGAIN && put != -EPIPE && put != -EPROTO) {
    std::atomic_ref(write_error_).store(static_cast<int>(-put));
  }
  return put;
}

ssize_t Stream::readNow(const iovec* parts, size_t count) {
  if (!tls_) {
    for (;;) {
      const ssize_t got = readv(fd_.get(), parts, static_cast<int>(count));
      if (got >= 0) return got;
      if (errno != EINTR) return -errno;
    }
  }
  ssize_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const ssize_t got = tls_->read(parts[i].iov_base, parts[i].iov_len);
    if (got <= 0) return total != 0 ? total : got;
    total += got;
    if (static_cast<size_t>(got) < parts[i].iov_len) break;
  }
  return total;
}

ssize_t Stream::writeNow(const iovec* parts, size_t count) {
  if (!tls_) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = count;
    for (;;) {
      const ssize_t put = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put >= 0) return put;
      if (errno != EINTR) return -errno;
    }
  }
  if (count == 1 || parts[0].iov_len >= kRecord)
    return tls_->write(parts[0].iov_base, parts[0].iov_len);
  // A short header goes into one record with what follows it.
  uint8_t record[kRecord];
  size_t length = 0;
  for (size_t i = 0; i < count && length < kRecord; ++i) {
    const size_t part = std::min(parts[i].iov_len, kRecord - length);
    std::memcpy(record + length, parts[i].iov_base, part);
    length += part;
  }
  return tls_->write(record, length);
}

std::string Stream::errorText(ssize_t result) const {
  if (result == 0) return "the peer closed the connection";
  if (result == -EPROTO && tls_) return "TLS: " + tls_->error();
  return std::strerror(static_cast<int>(-result));
}

}  // namespace olpager::transport
