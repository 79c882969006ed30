#include "interpose/forward/export_descriptors.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/held_signals.h"
#include "interpose/forward/program.h"
#include "interpose/forward/session.h"

namespace olpager::forward {
namespace {

using Exported = ExportedDescriptors::Exported;

ExportedDescriptors& descriptors() { return *program().parts().descriptors; }

// The other end is closed everywhere.
bool isOver(const pollfd& polled) { return (polled.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0; }

void watch() {
  pthread_setname_np(pthread_self(), "olpager-exports");
  ExportedDescriptors& state = descriptors();
  for (;;) {
    std::vector<pollfd> polled;
    {
      std::lock_guard lock(state.mutex);
      polled.push_back({state.changed.get(), POLLIN, 0});
      for (const Exported& one : state.all) polled.push_back({one.own_end.get(), 0, 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // a signal
    uint64_t count = 0;
    if (polled[0].revents != 0) (void)!read(polled[0].fd, &count, sizeof count);
    std::vector<Exported> over;
    {
      // Only this thread takes any away: they are where they were.
      std::lock_guard lock(state.mutex);
      std::vector<Exported> left;
      for (size_t i = 0; i < state.all.size(); ++i) {
        const bool gone = i + 1 < polled.size() && isOver(polled[i + 1]);
        (gone ? over : left).push_back(std::move(state.all[i]));
      }
      state.all = std::move(left);
    }
    for (const Exported& one : over) one.session->exportGone(one.number);
  }
}

// Under the mutex.
bool startWatching(ExportedDescriptors& state) {
  if (state.changed) return true;
  state.changed.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!state.changed) return false;
  try {
    base::ownThread(watch).detach();
  } catch (const std::system_error&) {
    state.changed.reset();
    errno = EAGAIN;
  }
  return static_cast<bool>(state.changed);
}

}  // namespace

int exportDescriptor(Session* session, const ExportToken& token) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  base::UniqueFd own_end(ends[0]), programs(ends[1]);
  if (send(own_end.get(), &token, sizeof token, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof token)
    return -1;
  ExportedDescriptors& state = descriptors();
  std::lock_guard lock(state.mutex);
  if (!startWatching(state)) return -1;
  state.all.push_back({std::move(own_end), session, token.number});
  const uint64_t one = 1;
  (void)!write(state.changed.get(), &one, sizeof one);
  return programs.release();
}

bool tokenIn(int descriptor, ExportToken* token) {
  // One byte more: what is longer is something else.
  struct {
    ExportToken token;
    char more;
  } found{};
  if (recv(descriptor, &found, sizeof found.token + 1, MSG_PEEK | MSG_DONTWAIT) !=
      sizeof found.token)
    return false;
  *token = found.token;
  return token->magic == kExportMagic;
}

}  // namespace olpager::forward
