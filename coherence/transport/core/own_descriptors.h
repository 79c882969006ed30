// Which descriptors of this process are the transport's: sockets and shared memory, by number and
// by what they are. A forked child closes these and no other, since a peer would else take it for
// its parent for as long as it lives. Thread-safety: any thread; closeInForkedChild() in the child
// alone, where it takes no lock.
#pragma once

namespace olpager::transport {

/// `fd` has just been opened by the transport. Of a socket, a file or shared memory it need not be
/// told that it is closed: what has its number then is another thing.
void noteOwnDescriptor(int fd);
/// Before an event channel or an opened device is closed: others of the kind look just like it, the
/// program's own among them.
void forgetOwnDescriptor(int fd);
/// Closes what was noted and is still the same. Descriptors beyond 65535 stay open.
void closeInForkedChild();

}  // namespace olpager::transport
