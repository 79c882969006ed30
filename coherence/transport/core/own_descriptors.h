// Registers this process's descriptors that belong to the transport: sockets and shared memory, by
// number and by kind. A forked child closes these and no other, since a peer would else take it for
// its parent for as long as it lives. Thread-safety: any thread; closeInForkedChild() in the child
// alone, where it takes no lock.
#pragma once

namespace olpager::transport {

/// `fd` has just been opened by the transport. A closed socket, file or shared memory need not be
/// reported: the new owner of its number is recognised as another thing.
void noteOwnDescriptor(int fd);
/// Before an event channel or an opened device is closed: others of the kind look just like it, the
/// program's own among them.
void forgetOwnDescriptor(int fd);
/// Closes the noted descriptors that are still the same. Descriptors beyond 65535 stay open.
void closeInForkedChild();

}  // namespace olpager::transport
