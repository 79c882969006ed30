// Which descriptors of this process are the transport's: sockets and shared memory, by number and
// by what they are. A forked child closes these and no other, since a peer would else take it for
// its parent for as long as it lives. Thread-safety: any thread; closeInForkedChild() in the child
// alone, where it takes no lock.
#pragma once

namespace olpager::transport {

/// `fd` has just been opened by the transport. That it is closed need not be told: what has its
/// number then is another thing.
void noteOwnDescriptor(int fd);
/// Closes what was noted and is still the same. Descriptors beyond 65535 stay open.
void closeInForkedChild();

}  // namespace olpager::transport
